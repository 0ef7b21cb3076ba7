"""A log whose copies name what is not there is refused, and nothing wrong is ever read for one of them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.topic_config import TopicConfig
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_data import empty_data
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.engine.replay import Replay, ReplayError
from topicsd.engine.shard_data import ShardData
from topicsd.log.control_frame import ForwardCursor, HeadWatermark, TopicCreate, encode_control
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles
from topicsd.log.reader import WalBatchReader

CREATES = [
    encode_control(TopicCreate(name, TopicConfig(), 256), topic_id=number, ts=0)
    for number, name in ((7, "a"), (8, "d"))
]
RECORDS = [append_frame(1, b"11", tag=b"t"), append_frame(2, b"22222"), append_frame(3, b"3")]
SIZES = [len(frame) for frame in RECORDS]
FIRST = FILE_HEADER_BYTES + sum(map(len, CREATES))
SECOND = FIRST + SIZES[0]


def cursor(**changes: Any) -> bytes:
    said = {"name": "r", "seq": 3, "count": 3, "first_seq": 1, "file": 1, "offsets": [FIRST]}
    said |= {"sizes": [sum(SIZES)]} | changes
    return encode_control(ForwardCursor(**said), topic_id=8, ts=5000)


def replayed(*frames: bytes) -> ShardData:
    """A topic of three records, and behind it these."""
    wal, disk = WalBytes(), MemoryDisk()
    wal.batch(*CREATES, *RECORDS)
    if frames:
        wal.batch(*frames)
    disk.make_dir("/d")
    disk.write_file("/d/wal", bytes(wal.data))
    files = LogFiles(disk)
    fd = disk.open_read("/d/wal")
    files.add(fd, 1, 0, wal.header.epoch, len(wal.data))
    state = empty_data(disk, files)
    replay, reader, position = Replay(state), WalBatchReader(disk, fd, wal.header), 0
    while (batch := reader.next()) is not None:
        replay.batch(batch, position)
        position = reader.offset - FILE_HEADER_BYTES
    return state


def test_copies_have_the_bytes_of_their_originals() -> None:
    state = replayed(cursor())
    run, source = state.topics["d"].run, state.topics["a"].run
    assert run.bytes_positions == source.frame_positions
    assert (run.lengths, list(run.times_ms)) == (source.lengths, [5000] * 3)
    assert (state.topics["d"].head, state.topics["d"].live_bytes) == (3, sum(SIZES))
    assert run.tags.take(b"t", False, 9) == [1]


def test_they_may_be_named_one_by_one_in_any_order() -> None:
    third = FIRST + SIZES[0] + SIZES[1]
    state = replayed(cursor(offsets=[third, FIRST], sizes=[SIZES[2], SIZES[0]], count=2))
    assert list(state.topics["d"].run.lengths) == [SIZES[2], SIZES[0]]


def test_each_stands_for_itself_where_they_are_mixed_with_own_records() -> None:
    state = replayed(append_frame(1, b"0", topic_id=8), cursor(first_seq=2), append_frame(5, topic_id=8))
    run = state.topics["d"].run
    assert [run.is_copy(at) for at in range(5)] == [False, True, True, True, False]
    assert run.copies(0, 1) is None
    assert run.copies(0, 2) == b"\0\1"


WRONG = {
    "a seq that does not follow": ({"first_seq": 2}, "seq 2"),
    "a file that there is not": ({"file": 2}, "wal-0000000000000002.log is not part of the log"),
    "more than there are": ({"count": 4}, "declares 4 records and names 3"),
    "fewer than there are": ({"count": 2}, "declares 2 records and names 3"),
    "an offset without a size": ({"offsets": [FIRST, SECOND], "count": 2}, "2 offsets and 1 sizes"),
    "the middle of a record": ({"offsets": [FIRST + 1]}, f"at offset {FIRST + 1}"),
    "the half of a record": ({"sizes": [SIZES[0] - 1], "count": 1}, "exceeds the remaining"),
    "what lies behind the end": ({"offsets": [1 << 40]}, "too few for a frame length"),
    "what is no record": (
        {"offsets": [FILE_HEADER_BYTES], "sizes": [len(CREATES[0])], "count": 1},
        "no record",
    ),
}


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_what_is_not_there_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ReplayError, match=said) as refused:
        replayed(encode_control(HeadWatermark(300), topic_id=8, ts=0), cursor(**changes))
    assert refused.value.ordinal == 8


def test_what_was_found_is_not_looked_up_for_each_destination() -> None:
    state = replayed(*[cursor(first_seq=1 + 3 * number) for number in range(100)])
    assert state.topics["d"].head == 300
