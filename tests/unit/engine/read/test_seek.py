from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shared.contract.seek import Seek
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.harness.shard.shard_driver import PATHS
from topicsd.engine.read.seek import seek


def _seek(one: OneShard, topic: str, **place: int) -> Any:
    reply = RecordedReply()
    seek(one.shard.state, topic, Seek(**place), reply)
    one.settle()
    return reply.answer


def test_a_time_is_the_cursor_in_front_of_the_first_record_that_is_not_older() -> None:
    one = OneShard()
    start = one.clock.now_ms()
    for _ in range(4):
        one.append("t", 1, 2)
        one.clock.advance(10)
    assert [_seek(one, "t", from_ts=start + ms) for ms in (-5, 0, 1, 10, 11, 30, 31, 99)] == [
        *(0, 0, 2, 2, 4, 6, 8, 8)
    ]


def test_the_newest_so_many_are_those_alive() -> None:
    one = OneShard()
    one.append("t", *range(10))
    for seq in (9, 5):
        one.append("t", 0)
        one.delete("t", before_seq=seq - 3)
    assert [_seek(one, "t", last=count) for count in (0, 1, 3, 1000)] == [12, 11, 9, 5]


def test_an_empty_topic_has_one_place_and_an_absent_one_none() -> None:
    one = OneShard()
    one.put("t")
    assert (_seek(one, "t", from_ts=0), _seek(one, "t", last=5)) == (0, 0)
    assert _seek(one, "u", last=1).code == "topic_not_found"


@pytest.mark.parametrize("seed", range(12))
def test_what_is_read_from_there_is_what_was_meant(seed: int) -> None:
    """With caps, ages, deletes, checkpoints and restarts, against looking at every record."""
    rng = Random(seed)
    one = OneShard(segment_max_events=rng.choice((1, 3, 10, 50)))
    one.put("t", cap_records=rng.choice((0, 0, 25)), ttl_ms=rng.choice((0, 0, 4000)), durability="fsync")
    for _ in range(120):
        match rng.randrange(12):
            case 0:
                one.checkpoint()
            case 1:
                one.delete("t", tag=rng.choice("ab"))
            case 2:
                one.delete("t", before_seq=rng.randint(0, one.state("t").head_seq + 1))
            case 3:
                rng.choice((one.restart, one.kill))()
            case 4:
                one.clock.step_wall(rng.choice((-300, 50)))
            case _:
                one.append("t", *range(rng.choice((1, 1, 4))))
                one.clock.advance(rng.choice((0, 1, 40)))
        alive = one.read("t", limit=10_000).records
        times = [record.ts for record in alive] or [0]
        ts = rng.choice(times) + rng.choice((-1, 0, 1))
        behind = one.read("t", _seek(one, "t", from_ts=ts), limit=10_000)
        assert [record.seq for record in behind.records] == [one.seq for one in alive if one.ts >= ts]
        count = rng.randint(0, len(alive) + 2)
        newest = one.read("t", _seek(one, "t", last=count), limit=10_000)
        assert newest.records == alive[len(alive) - min(count, len(alive)) :]
        assert (behind.tombstone, newest.tombstone) == (None, None)


def test_a_read_from_before_a_lost_range_reports_it() -> None:
    one = OneShard()
    one.append("t", 1)
    one.clock.advance(100)
    between = one.clock.now_ms()
    one.reboot()
    one.clock.advance(100)
    seq = one.append("t", 2).first_seq
    assert seq > 2
    answer = one.read("t", _seek(one, "t", from_ts=between))
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (2, seq - 1)
    assert [record.seq for record in answer.records] == [seq]
    assert one.read("t", _seek(one, "t", last=1)).tombstone is None


def test_a_damaged_index_begins_with_more_than_was_asked_for() -> None:
    one = OneShard(segment_max_events=4)
    one.put("t", durability="fsync")
    for _ in range(8):
        one.append("t", 1)
        one.clock.advance(10)
    one.checkpoint()
    one.append("t", 1)
    one.checkpoint()
    sealed = one.topic("t").runs[0]
    ts = sealed.times_ms[2]
    one.restart()
    for path in [path for path in one.disk.all_files() if path.startswith(PATHS.topics)]:
        if path.endswith(("0000000000000001.idx", "0000000000000001.data")):
            one.disk.unlink(path)
    assert _seek(one, "t", from_ts=ts) == 0
