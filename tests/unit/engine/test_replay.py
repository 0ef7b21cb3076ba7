"""What a start finds in the log is what was there before the end, or it is refused with the frame named."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.topic_config import TopicConfig
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import DATA_DIR, IDENTITY, INSTANCE, PATHS
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.disk.layout import create_data_dir
from topicsd.engine.records.tag_index import TagIndex
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import (
    ConfigUpdate,
    Delete,
    EvictWatermark,
    HeadWatermark,
    Idempotency,
    LostRangeFrame,
    TopicCreate,
    TopicDelete,
    encode_control,
)
from topicsd.log.frame import FrameType, encode_frame
from topicsd.log.recovery import RecoveryRefused

NAMES = ("a", "b", "c")
TAGS = [None, "x", "xy", "y"]
ENDS = ("kill", "restart", "reboot")


def picture(topic: Topic) -> dict[str, Any]:
    """Everything of a topic that a reader or a writer can notice."""
    records = []
    for run in topic.runs:
        assert isinstance(run, TailRun)
        if run.tags.is_unknown:
            assert run.source is not None
            run.tags = TagIndex.of(run.source.tags())
        for seq in range(max(run.first_seq, topic.earliest_seq), run.next_seq):
            at = seq - run.first_seq
            if not run.is_dead(seq):
                records.append((seq, run.lengths[at], run.times_ms[at]))
    live = {seq for seq, *_ in records}
    tags = {
        (tag, seq)
        for run in topic.runs
        for tag, seqs in run.tags.seqs_by_tag().items()
        for seq in seqs
        if seq in live
    }
    return {
        "config": topic.config,
        "epoch": topic.epoch,
        "head": topic.head,
        "next_seq": topic.next_seq,
        "earliest_seq": topic.earliest_seq,
        "evict_floor": topic.evict_floor,
        "evicted_to": topic.evicted_to,
        "live": (topic.live_count, topic.live_bytes),
        "lost": topic.lost.ranges,
        "last_ts": topic.last_ts,
        "records": records,
        "tags": tags,
    }


def pictures(one: OneShard) -> dict[str, dict[str, Any]]:
    return {name: picture(topic) for name, topic in sorted(one.shard.state.topics.items())}


def do_something(one: OneShard, rng: Random) -> None:
    name = rng.choice(NAMES)
    match rng.randrange(12):
        case 0:
            one.send_put(name, cap_records=rng.choice((0, 3, 20)), ttl_ms=rng.choice((0, 500)))
        case 1:
            one.send_put(name, durability=rng.choice(("memory", "disk", "fsync")))
        case 2:
            one.send_put(name, discard=rng.choice(("old", "reject")), cap_bytes=rng.choice((0, 600)))
        case 3 if rng.random() < 0.3:
            one.send_delete_topic(name)
        case 4:
            one.send_delete(name, before_seq=rng.randint(0, 60))
        case 5:
            one.send_delete(name, tag=rng.choice(TAGS[1:]), is_prefix=rng.random() < 0.5)
        case 6 if name in one.shard.topic_names():
            one.read(name)
        case _:
            records = [record(rng.randrange(10**6), tag=rng.choice(TAGS)) for _ in range(rng.randint(1, 6))]
            one.send_append(name, *records, idempotency_key=rng.choice((None, str(rng.randrange(20)))))


@pytest.mark.parametrize("seed", range(20))
def test_the_state_after_a_replay_is_the_state_before(seed: int) -> None:
    rng = Random(seed)
    one = OneShard(wal_file_bytes=8192)
    for _ in range(6):
        for _ in range(rng.randint(5, 60)):
            do_something(one, rng)
            if rng.random() < 0.7:
                one.settle()
            if rng.random() < 0.2:
                one.pass_time(rng.choice((10, 100, 700)))
        one.pass_time(60)
        for name in one.shard.topic_names():
            one.state(name)
        one.pass_time(1500)
        before = pictures(one)
        getattr(one, rng.choice(ENDS))()
        assert pictures(one) == before, f"seed {seed}"


def test_keys_are_found_again_with_what_they_were_used_for() -> None:
    one = OneShard()
    used = {}
    for number in range(50):
        answer = one.append(f"t{number % 3}", *range(number % 4 + 1), idempotency_key=f"k{number}")
        used[number] = (answer.first_seq, answer.last_seq)
    one.kill()
    assert one.shard.state.idempotency_keys.count == 50
    for number, seqs in used.items():
        again = one.append(f"t{number % 3}", *range(number % 4 + 1), idempotency_key=f"k{number}")
        assert ((again.first_seq, again.last_seq), again.deduped) == (seqs, True)


def test_replaying_twice_is_replaying_once() -> None:
    one = OneShard(wal_file_bytes=4096)
    rng = Random(1)
    for _ in range(100):
        do_something(one, rng)
        one.settle()
    one.pass_time(2000)
    one.cut_power(3)
    before = pictures(one)
    for _ in range(3):
        one.kill()
        assert pictures(one) == before


def start(*frames: bytes, **heads: int) -> OneShard:
    """Start a shard on a log with these frames in its second batch."""
    disk = MemoryDisk()
    create_data_dir(disk, DATA_DIR, 1, INSTANCE)
    wal = WalBytes(instance=IDENTITY.instance)
    wal.batch(CREATE, append_frame(1))
    wal.batch(*frames, **heads)
    wal.put(disk, PATHS)
    return OneShard(disk=disk)


def control(payload: object, frame_type: int, topic_id: int = 7) -> bytes:
    return encode_frame(frame_type, topic_id=topic_id, payload=msgspec.msgpack.encode(payload))


CREATE = encode_control(TopicCreate("t", TopicConfig(), 256), topic_id=7, ts=0)


def test_a_log_that_was_put_together_by_hand_is_one_like_any_other() -> None:
    one = start(append_frame(2), append_frame(3, tag=b"x"))
    assert one.seqs("t") == [1, 2, 3]
    assert one.delete("t", tag="x").deleted == 1
    assert one.append("t", "next").first_seq > 3


# The ordinal is that of the frame that is wrong: two frames and a BatchEnd stand in front of the batch.
IMPOSSIBLE = {
    "a gap": ([append_frame(3)], 4),
    "a seq once more": ([append_frame(2), append_frame(2)], 5),
    "a record of a topic that was deleted": (
        [encode_control(TopicDelete(1), topic_id=7, ts=0), append_frame(2)],
        5,
    ),
    "a change of no topic": ([encode_control(HeadWatermark(5), topic_id=8, ts=0)], 4),
    "a configuration of no topic": ([encode_control(ConfigUpdate(TopicConfig(), 5), topic_id=8, ts=0)], 4),
    "a delete in no topic": ([encode_control(Delete(5, None, False), topic_id=8, ts=0)], 4),
    "a floor of no topic": ([encode_control(EvictWatermark({"ttl": 5}), topic_id=8, ts=0)], 4),
    "a key of no topic": ([encode_control(Idempotency(b"k" * 16, b"r" * 16, 1, 1), topic_id=8, ts=0)], 4),
    "a loss that is none": ([encode_control(LostRangeFrame(9, 10, "crash"), topic_id=7, ts=0)], 4),
    "a control frame of another shape": ([append_frame(2), control(["many"], FrameType.HEAD_WATERMARK)], 5),
    "a frame type that is not written yet": ([control([1], FrameType.LEASE)], 4),
    "a file header in the middle": ([control([1], FrameType.FILE_HEADER)], 4),
}


@pytest.mark.parametrize(("frames", "ordinal"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_log_that_says_what_cannot_be_refuses_the_start_and_names_the_frame(
    frames: list[bytes], ordinal: int
) -> None:
    with pytest.raises(RecoveryRefused, match=rf"\bordinal {ordinal}\b") as refused:
        start(*frames)
    assert PATHS.wal in str(refused.value)


@pytest.mark.parametrize("junk", [b"\0" * 40, b"\xff" * 40, b"junk of any length, a sentence will do it"])
def test_a_batch_of_junk_under_a_right_checksum_refuses_the_start(junk: bytes) -> None:
    with pytest.raises(RecoveryRefused, match="ordinal 5"):
        start(append_frame(2), junk)


def test_a_shard_that_refused_to_start_changed_nothing_and_can_be_tried_again() -> None:
    disk = MemoryDisk()
    create_data_dir(disk, DATA_DIR, 1, INSTANCE)
    wal = WalBytes()
    wal.batch(append_frame(1))
    wal.put(disk, PATHS)
    before = {path: disk.read_file(path) for path in disk.all_files() if not path.endswith("LOCK")}
    for _ in range(3):
        with pytest.raises(RecoveryRefused):
            OneShard(disk=disk)
    assert {path: disk.read_file(path) for path in disk.all_files() if not path.endswith("LOCK")} == before
    assert not disk.open_files
