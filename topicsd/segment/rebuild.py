"""Rebuilding of index and tags from `.data`, which holds all their information.

From an intact file the result is byte for byte the original: the offset and the timestamp of a dead record
of a compacted segment follow from the records around it.

Nearly every file is intact, so a fast pass is tried first that does the least work to prove it. Only if it
fails, the file is scanned with the search for frames after damage (`scan_data`).
"""

from __future__ import annotations

import struct
from array import array
from operator import lt
from typing import NamedTuple

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAGS_KNOWN,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U32,
    U64,
    FrameDamage,
    FrameType,
    xxh3,
)
from topicsd.segment.data_file import (
    SCAN_BYTES,
    SEGMENT_HEADER_BYTES,
    Read,
    ScannedDamage,
    parse_segment_header,
    scan_data,
)
from topicsd.segment.entry import SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import DAMAGED, SegmentIndex
from topicsd.segment.tags_file import tags_of

_APPEND = int(FrameType.APPEND)
_unpack = HEADER.unpack_from
_unpack_u64 = U64.unpack_from


class IndexBuilder:
    """The columns of an index, filled in seq order; seqs that are left out are dead."""

    def __init__(self, first_seq: int) -> None:
        self._first_seq = first_seq
        self._offsets = array("I")
        self._lengths = array("I")
        self._times_ms = array("Q")
        self._flags = bytearray()
        self._end = SEGMENT_HEADER_BYTES
        self._has_damage = False

    @property
    def next_seq(self) -> int:
        return self._first_seq + len(self._offsets)

    def add(self, seq: int, offset: int, size: int, ts: int, flags: int) -> None:
        if len(self._times_ms) == 0:
            # Dead records before the first record have no earlier timestamp: they take this one.
            self._fill(seq, ts, 0)
        else:
            self._fill(seq, self._times_ms[-1], 0)
        self._append(offset, size, ts, flags)
        self._end = offset + size

    def add_damage(self, last_seq: int) -> None:
        """Mark the records up to `last_seq` as damaged; dead ones among them are unknown."""
        if self.next_seq <= last_seq:
            self._fill(last_seq + 1, self._times_ms[-1] if self._times_ms else 0, DAMAGED)
        self._has_damage = True

    def build(self, last_seq: int) -> SegmentIndex:
        self._fill(last_seq + 1, self._times_ms[-1] if self._times_ms else 0, 0)
        return SegmentIndex(
            self._first_seq,
            self._offsets,
            self._lengths,
            self._times_ms,
            bytes(self._flags),
            self._has_damage,
        )

    def _fill(self, to_seq: int, ts: int, flags: int) -> None:
        for _ in range(to_seq - self.next_seq):
            self._append(self._end, 0, ts, flags)

    def _append(self, offset: int, size: int, ts: int, flags: int) -> None:
        self._offsets.append(offset)
        self._lengths.append(size)
        self._times_ms.append(ts)
        self._flags.append(flags)


Row = tuple[int, int, int, int, int, bytes]
"""Seq, offset, size, ts, flags and tag of a record; a plain tuple for speed, ten thousand per segment."""


def rebuild_index(read: Read, name: SegmentName, entry: SegmentEntry) -> SegmentIndex:
    """Rebuild the index from .data; an index with damaged records must not be written to a file."""
    builder = IndexBuilder(entry.first_seq)
    rows = _intact_rows(read, name, entry)
    if rows is not None:
        for seq, offset, size, ts, flags, _ in rows:
            builder.add(seq, offset, size, ts, flags)
        return builder.build(entry.last_seq)
    for item in scan_data(read, name, entry):
        if isinstance(item, ScannedDamage):
            builder.add_damage(item.last_seq)
        else:
            frame = item.frame
            builder.add(item.seq, item.offset, frame.size, frame.ts, frame.flags)
    return builder.build(entry.last_seq)


def rebuild_tags(read: Read, name: SegmentName, entry: SegmentEntry) -> dict[bytes, list[int]]:
    """Rebuild the tags from .data; raise SegmentDamage when a damaged record may have had one."""
    rows = _intact_rows(read, name, entry)
    if rows is not None:
        return tags_of((row[0], row[5]) for row in rows)
    pairs: list[tuple[int, bytes]] = []
    for item in scan_data(read, name, entry):
        if not isinstance(item, ScannedDamage):
            pairs.append((item.seq, item.frame.tag))
        elif item.first_seq <= item.last_seq:
            raise SegmentDamage(name, item.first_seq, item.last_seq, item.what)
    return tags_of(pairs)


class SalvagedTags(NamedTuple):
    """The seqs of each tag of the intact records of a segment, and the seqs of the damaged ones."""

    by_tag: dict[bytes, list[int]]
    damaged: list[int]


def salvage_tags(read: Read, name: SegmentName, entry: SegmentEntry) -> SalvagedTags:
    pairs: list[tuple[int, bytes]] = []
    damaged: list[int] = []
    for item in scan_data(read, name, entry):
        if isinstance(item, ScannedDamage):
            damaged += range(item.first_seq, item.last_seq + 1)
        else:
            pairs.append((item.seq, item.frame.tag))
    return SalvagedTags(tags_of(pairs), damaged)


def _intact_rows(read: Read, name: SegmentName, entry: SegmentEntry) -> list[Row] | None:
    """Return all records of an intact file; None when it is damaged or cannot be read."""
    rows: list[Row] = []
    offset = SEGMENT_HEADER_BYTES
    try:
        if parse_segment_header(read(0, SEGMENT_HEADER_BYTES)).name != name:
            return None
        while offset < entry.data_bytes:
            window = read(offset, min(SCAN_BYTES, entry.data_bytes - offset))
            used = _rows_in(window, offset, name, rows)
            if used == 0:
                # A frame larger than the window, or damage.
                size = U32.unpack_from(window)[0] + LEN_BYTES
                if size <= len(window) or size > entry.data_bytes - offset:
                    return None
                used = _rows_in(read(offset, size), offset, name, rows)
                if used != size:
                    return None
            offset += used
    except (FrameDamage, OSError, struct.error):
        # `scan_data` meets the same error again and decides what it means.
        return None
    seqs = [row[0] for row in rows]
    if name.generation == 0 or not seqs:
        is_valid = seqs == list(range(entry.first_seq, entry.last_seq + 1))
    else:
        is_valid = all(map(lt, seqs, seqs[1:])) and entry.first_seq <= seqs[0] and seqs[-1] <= entry.last_seq
    return rows if is_valid else None


def _rows_in(window: bytes, base: int, name: SegmentName, rows: list[Row]) -> int:
    """Add the records of the whole frames at the window's start; return these frames' size."""

    at, end = 0, len(window)
    view = memoryview(window)
    topic_id = name.topic_id
    while end - at >= HEADER_BYTES:
        frame_len, frame_type, flags, frame_topic_id, seq, ts, node_len, tag_len, data_len = _unpack(
            window, at
        )
        stop = at + LEN_BYTES + frame_len
        if stop > end:
            break
        if (
            frame_type != _APPEND
            or frame_topic_id != topic_id
            or flags & ~FLAGS_KNOWN
            or FRAME_LEN_MIN + node_len + tag_len + data_len != frame_len
            or _unpack_u64(window, stop - CHECKSUM_BYTES)[0]
            != xxh3(view[at + LEN_BYTES : stop - CHECKSUM_BYTES])
        ):
            raise FrameDamage(base + at, "no intact record")
        tag_at = at + HEADER_BYTES + node_len
        rows.append((seq, base + at, stop - at, ts, flags, window[tag_at : tag_at + tag_len]))
        at = stop
    return at
