from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.read.cursors import Lag, delete_cursor, measure_lag, put_cursor, records_after


def _put(one: OneShard, topic: str, name: str, seq: int, epoch: int | None = None) -> Any:
    reply = RecordedReply()
    put_cursor(one.shard.state, topic, name, seq, epoch, reply)
    one.settle()
    return reply.answer


def _delete(one: OneShard, topic: str, name: str) -> Any:
    reply = RecordedReply()
    delete_cursor(one.shard.state, topic, name, reply)
    one.settle()
    return reply.answer


def _places(one: OneShard, topic: str) -> dict[str, int]:
    return {name: cursor.from_seq for name, cursor in one.topic(topic).cursors.items()}


def _lag(one: OneShard, topic: str, seq: int) -> Lag:
    reply = RecordedReply()
    measure_lag(one.shard.state, one.topic(topic), seq, reply)
    one.settle()
    lag = reply.answer
    assert isinstance(lag, Lag)
    assert records_after(one.topic(topic), [seq]) == [lag.records]
    return lag


def test_a_cursor_is_set_forward_and_back_and_deleted() -> None:
    one = OneShard()
    one.append("t", 1, 2, 3)
    assert _put(one, "t", "c", 2).created
    assert not _put(one, "t", "c", 3).created
    assert not _put(one, "t", "c", 0).created
    assert _put(one, "t", "d", 1).created
    assert _places(one, "t") == {"c": 0, "d": 1}
    assert (_delete(one, "t", "c").deleted, _delete(one, "t", "c").deleted) == (True, False)
    assert _places(one, "t") == {"d": 1}


def test_what_is_wrong_is_refused() -> None:
    one = OneShard(max_cursors=2)
    assert _put(one, "t", "c", 0).code == "topic_not_found"
    assert _delete(one, "t", "c").code == "topic_not_found"
    one.append("t", 1)
    epoch = one.state("t").epoch
    beyond = _put(one, "t", "c", 2)
    assert (beyond.code, beyond.detail) == ("head_mismatch", {"head_seq": 1, "epoch": epoch})
    assert _put(one, "t", "c", 1, epoch + 1).code == "head_mismatch"
    assert _put(one, "t", "a b", 1).code == "invalid_request"
    assert _put(one, "t", "a", -1).code == "invalid_request"
    for name in ("a", "b", "a"):
        _put(one, "t", name, 1, epoch)
    full = _put(one, "t", "c", 1)
    assert (full.code, full.detail) == ("throttled", {"limit": "max_cursors", "max": 2})


def test_they_go_with_their_topic() -> None:
    one = OneShard()
    one.append("t", 1)
    _put(one, "t", "c", 1)
    one.delete_topic("t")
    one.append("t", 1)
    assert _places(one, "t") == {}
    one.kill()
    assert _places(one, "t") == {}


@pytest.mark.parametrize("end", ["restart", "kill", "reboot", "cut_power"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_they_outlive_an_end_as_the_records_of_their_topic_do(end: str, checkpoints: int) -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.put("e", durability="ephemeral")
    for name in ("t", "e"):
        one.append(name, 1, 2, 3)
        _put(one, name, "a", 1)
        _put(one, name, "b", 2)
    for _ in range(checkpoints):
        one.checkpoint()
    _delete(one, "t", "a")
    _put(one, "t", "c", 3)
    getattr(one, end)()
    assert _places(one, "t") == {"b": 2, "c": 3}
    assert _places(one, "e") == {}


def test_a_cursor_that_came_to_nothing_stays_where_it_was() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.append("t", 1, 2)
    _put(one, "t", "c", 1)
    one.disk.fail("sync_data")
    assert _put(one, "t", "c", 2).code == "storage_failed"
    assert _places(one, "t") == {"c": 1}


@pytest.mark.parametrize("seed", range(10))
def test_its_lag_is_what_is_alive_behind_it(seed: int) -> None:
    rng = Random(seed)
    one = OneShard(segment_max_events=rng.choice((1, 3, 10)))
    one.put("t", cap_records=rng.choice((0, 25)), ttl_ms=rng.choice((0, 3000)), durability="fsync")
    for _ in range(100):
        match rng.randrange(10):
            case 0:
                one.checkpoint()
            case 1:
                one.delete("t", tag="a")
            case 2:
                one.delete("t", before_seq=rng.randint(0, one.state("t").head_seq + 1))
            case 3:
                rng.choice((one.restart, one.kill))()
            case _:
                one.append("t", *("x" * rng.randint(0, 9) for _ in range(rng.choice((1, 4)))))
                one.clock.advance(rng.choice((0, 1, 40)))
        seq = rng.randint(0, one.state("t").head_seq)
        alive = one.read("t", limit=10_000).records
        behind = [record for record in alive if record.seq > seq]
        lag = _lag(one, "t", seq)
        assert lag.records == len(behind)
        assert lag.ms == (one.clock.now_ms() - behind[0].ts if behind else 0)
        framing = one.state("t").bytes - sum(
            len(record.data) for record in one.read("t", limit=10_000).records
        )
        each = framing // one.state("t").count if one.state("t").count else 0
        assert lag.bytes == sum(len(record.data) + each for record in behind)


def _positions(one: OneShard) -> list[int]:
    return one.seqs("t")


@pytest.mark.parametrize("segment_max_events", [2, 1000])
def test_a_protected_cursor_holds_what_is_behind_it_to_twice_the_cap(segment_max_events: int) -> None:
    one = OneShard(segment_max_events=segment_max_events)
    one.put("t", cap_records=3, protect_cursors=True, durability="fsync")
    one.append("t", 1, 2, 3)
    _put(one, "t", "slow", 1)
    _put(one, "t", "fast", 3)
    one.append("t", 4, 5)
    one.checkpoint()
    assert _positions(one) == [2, 3, 4, 5]
    one.append("t", 6, 7)
    assert _positions(one) == [2, 3, 4, 5, 6, 7]
    one.append("t", 8)
    assert _positions(one) == [3, 4, 5, 6, 7, 8]
    one.kill()
    assert _positions(one) == [3, 4, 5, 6, 7, 8]
    assert one.read("t", 1).tombstone is not None
    _put(one, "t", "slow", 4)
    assert _positions(one) == [4, 5, 6, 7, 8]
    _delete(one, "t", "slow")
    _delete(one, "t", "fast")
    assert _positions(one) == [6, 7, 8]
    one.kill()
    assert _positions(one) == [6, 7, 8]


def test_bytes_are_held_to_twice_the_cap_too() -> None:
    one = OneShard()
    one.append("t", "x" * 54)
    size = one.state("t").bytes
    one.put("t", cap_bytes=2 * size, protect_cursors=True)
    _put(one, "t", "c", 0)
    for _ in range(5):
        one.append("t", "x" * 54)
    assert _positions(one) == [3, 4, 5, 6]
    one.put("t", protect_cursors=False)
    assert _positions(one) == [5, 6]


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_age_waits_for_a_cursor_to_twice_the_age(checkpoints: int) -> None:
    one = OneShard(segment_max_events=4)
    one.put("t", ttl_ms=1000, protect_cursors=True, durability="fsync")
    for _ in range(8):
        one.append("t", 1)
        one.clock.advance(100)
    _put(one, "t", "c", 2)
    for _ in range(checkpoints):
        one.checkpoint()
    one.clock.advance(600)
    assert _positions(one) == [3, 4, 5, 6, 7, 8]
    one.clock.advance(901)
    assert _positions(one) == [5, 6, 7, 8]
    _put(one, "t", "c", 8)
    assert _positions(one) == []
