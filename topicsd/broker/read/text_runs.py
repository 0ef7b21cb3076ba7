"""Runs of records of a chunk as bytes, without an object for each record.

A run has plain frames only: JSON without tag, node, meta and flags. Where another frame is, or damage, there
is no run, and `decode_frames` says what is there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from topicsd.broker.frames_v1 import FRAMES_V1, SEGMENT_V1, TOPIC_ID_MASK, Decoded
from topicsd.broker.read.tail_cache import TailChunk
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U64,
    FrameType,
    Record,
    xxh3,
)

_PLAIN: Final = int(FrameType.APPEND), 0
_NUMBER_FIELD: Final = 4


class TextRun(NamedTuple):
    """JSON records that follow each other."""

    first_seq: int
    values: list[bytes]
    byte_count: int
    """The size of their frames."""
    are_strings: bool = False
    """Whether all are known to be JSON strings."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.values)


def records_of_texts(chunk: TailChunk, seq: int, bytes_max: int) -> Decoded:
    """Return the same as `text_run` as records, for a chunk of texts."""
    run = text_run(chunk, seq, bytes_max)
    assert run is not None
    ts = chunk.ts
    records = [Record(number, ts, text) for number, text in enumerate(run.values, seq)]
    return Decoded(records, [], run.next_seq, run.byte_count)


def text_run(chunk: TailChunk, seq: int, bytes_max: int) -> TextRun | None:
    """Return records from `seq` on, at least one, and no more than fit `bytes_max`.

    Return None when some are not plain. Frames are checked once, those that this process has encoded never.
    """
    rebase = chunk.rebase
    if chunk.encoding not in (FRAMES_V1, SEGMENT_V1) or not rebase.first_seq <= seq <= rebase.last_seq:
        return None
    low = seq - rebase.first_seq
    texts = chunk.texts
    if texts is not None and not low and chunk.byte_count <= bytes_max:
        return TextRun(seq, texts, chunk.byte_count, True)
    starts = chunk.frame_starts(chunk.count)
    if len(starts) <= chunk.count:
        return None
    high = max(low + 1, bisect_right(starts, starts[low] + bytes_max, low) - 1)
    byte_count = starts[high] - starts[low]
    if texts is not None:
        return TextRun(seq, texts[low:high], byte_count, True)
    checked = chunk.plain_count
    if high > checked:
        if not _are_plain(chunk, max(low, checked) if low <= checked else low, high):
            return None
        if low <= checked:
            chunk.plain_count = high
    body = chunk.body
    values: list[bytes] = []
    add = values.append
    data_at = starts[low] + HEADER_BYTES
    for stop in starts[low + 1 : high + 1]:
        add(body[data_at : stop - CHECKSUM_BYTES])
        data_at = stop + HEADER_BYTES
    return TextRun(seq, values, byte_count)


def _are_plain(chunk: TailChunk, low: int, high: int) -> bool:
    """Return whether these frames are plain, intact, and of the numbers of their seqs."""
    rebase, body, starts = chunk.rebase, chunk.body, chunk.frame_starts(chunk.count)
    if len(body) < HEADER_BYTES:
        return False
    topic_id = rebase.incarnation & TOPIC_ID_MASK
    is_segment = chunk.encoding == SEGMENT_V1
    first_number = rebase.first_seq if is_segment else HEADER.unpack_from(body)[_NUMBER_FIELD]
    view, unpack, unpack_u64, digest = memoryview(body), HEADER.unpack_from, U64.unpack_from, xxh3
    at = starts[low]
    for number, stop in enumerate(starts[low + 1 : high + 1], first_number + low):
        if stop - at < HEADER_BYTES + CHECKSUM_BYTES:
            return False
        _, kind, flags, frame_topic, frame_number, _, node_len, tag_len, data_len = unpack(body, at)
        checksum_at = stop - CHECKSUM_BYTES
        if (
            (kind, flags) != _PLAIN
            or (frame_topic, frame_number) != (topic_id, number)
            or node_len
            or tag_len
            or at + HEADER_BYTES + data_len != checksum_at
            or unpack_u64(body, checksum_at)[0] != digest(view[at + LEN_BYTES : checksum_at])
        ):
            return False
        at = stop
    return True
