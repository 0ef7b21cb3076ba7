"""The encoding `segment-v1` of compacted objects: an ordinary sealed segment in one object.

The files of a segment follow each other (`topicsd/segment/data_file.py`, `topicsd/segment/index_file.py`)::

    off              size        content
      0              data_bytes  .data: the file header of 110 bytes, then the frames
    data_bytes       20 * count  .idx: the place of each record, at a fixed stride
    end - 24         24          .idx: its footer, with count and checksum

An extent has the length of its object and the number of its records, so `data_bytes` is known without a
request, and the entry of a seq is at a known place. In the file header the shard, the instance, the epoch and
the generation are 0, and the topic id is the incarnation of the topic. In the frames the seq is the seq.

    >>> from topicsd.broker.frames_v1 import SEGMENT_V1, NewFrame, decode_frames, encode_frames
    >>> builder = SegmentBuilder(incarnation=7, first_seq=41)
    >>> body = encode_frames([NewFrame(b'{"n":1}'), NewFrame(b'{"n":2}')], 7, first_number=1, ts=1000)
    >>> builder.add(body, Rebase(7, 41, 42))
    True
    >>> data = b"".join(builder.parts())
    >>> def read(offset, size):
    ...     return data[offset : offset + size]
    >>> part = SegmentParts().read(read, "key", Rebase(7, 41, 42), len(data), seq=42, bytes_max=1)
    >>> part.rebase
    Rebase(incarnation=7, first_seq=42, last_seq=42)
    >>> [one.data for one in decode_frames(part.body, part.rebase, encoding=SEGMENT_V1).records]
    [b'{"n":2}']

S1  A read from a seq gets the entries from that seq on, at most ENTRIES_AT_ONCE, and the frames that they
    name: never the object from its start.
S2  The first and the last frame of what was read are checked, so the range is the one of its seqs. If they
    are not what the index says, the whole index is checked, and if that is damaged, made again from `.data`.
    So damage is reported with exact seqs (F2), and damage of the index loses no record.
S3  The times of records of different brokers follow their clocks, so the column of times may fall.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from typing import Final, NamedTuple

from topicsd.broker.frames_v1 import TOPIC_ID_MASK, OtherTopic, Rebase
from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAGS_KNOWN,
    FRAME_LEN_MIN,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U64,
    FrameDamage,
    FrameType,
    xxh3,
)
from topicsd.segment.data_file import (
    SEGMENT_HEADER_BYTES,
    Read,
    SegmentHeader,
    check_frame,
    encode_segment_header,
    parse_segment_header,
)
from topicsd.segment.entry import HOT, SegmentEntry, SegmentName
from topicsd.segment.index_file import (
    ENTRY_BYTES,
    FOOTER_BYTES,
    IndexDamage,
    SegmentIndex,
    decode_index,
    encode_entries,
    encode_footer,
)
from topicsd.segment.rebuild import rebuild_index

ENTRIES_AT_ONCE: Final = 8192
INDEXES_MAX: Final = 4
"""Whole indexes that are kept, of damaged objects."""
_APPEND: Final = int(FrameType.APPEND)
_NUMBER_AT: Final = 14
_ENTRY_WORDS: Final = ENTRY_BYTES // 4
_NO_INSTANCE: Final = bytes(16)


class SegmentBuilder:
    """Makes an object of the slices of one topic, which follow each other."""

    def __init__(self, incarnation: int, first_seq: int) -> None:
        self._topic_id = incarnation & TOPIC_ID_MASK
        self._frames: list[bytes] = []
        self._first_seq = first_seq
        self._lengths, self._times_ms = array("I"), array("Q")
        self._flags = bytearray()

    def add(self, body: bytes, rebase: Rebase) -> bool:
        """Add the frames of a slice or a segment; return False, and add nothing, when some are damaged.

        Raises `OtherTopic`, and adds nothing.
        """
        assert rebase.first_seq == self._first_seq + len(self._lengths)
        count = len(self._lengths)
        try:
            frames = self._numbered(body, rebase)
        except (FrameDamage, OtherTopic) as error:
            for column in (self._lengths, self._times_ms, self._flags):
                del column[count:]
            if isinstance(error, OtherTopic):
                raise
            return False
        self._frames.append(frames)
        return True

    def _numbered(self, body: bytes, rebase: Rebase) -> bytes:
        """Check each frame once, give it its seq, and note its place."""
        frames = bytearray(body)
        view = memoryview(frames)
        unpack, pack_u64, unpack_u64, digest = HEADER.unpack_from, U64.pack_into, U64.unpack_from, xxh3
        add_length, add_time, add_flags = self._lengths.append, self._times_ms.append, self._flags.append
        expected_topic, end = self._topic_id, len(frames)
        at, seq = 0, rebase.first_seq
        shift: int | None = None
        # One pass, since the records of a topic are many and small: 2 us each, of which half is checksums.
        while at < end:
            if end - at < HEADER_BYTES:
                raise FrameDamage(at, "too few bytes for a frame")
            frame_len, kind, flags, topic_id, number, ts, node_len, tag_len, data_len = unpack(frames, at)
            stop = at + LEN_BYTES + frame_len
            if stop > end or FRAME_LEN_MIN + node_len + tag_len + data_len != frame_len:
                raise FrameDamage(at, "the lengths do not add up")
            checksum_at = stop - CHECKSUM_BYTES
            # It sees the seq that is written below.
            content = view[at + LEN_BYTES : checksum_at]
            if unpack_u64(frames, checksum_at)[0] != digest(content):
                raise FrameDamage(at, "the checksum does not match the bytes")
            if kind != _APPEND or flags & ~FLAGS_KNOWN:
                raise FrameDamage(at, f"type {kind} with flags {flags:#x}")
            if topic_id != expected_topic:
                raise OtherTopic(f"frames of incarnation {topic_id} instead of {expected_topic}")
            if shift is None:
                shift = seq - number
            if number + shift != seq:
                raise FrameDamage(at, f"no frame of seq {seq}")
            if shift:
                pack_u64(frames, at + _NUMBER_AT, seq)
                pack_u64(frames, checksum_at, digest(content))
            add_length(stop - at)
            add_time(ts)
            add_flags(flags)
            at, seq = stop, seq + 1
        if seq != rebase.last_seq + 1:
            raise FrameDamage(at, "the frames end too early")
        return bytes(frames)

    def parts(self) -> list[bytes]:
        """Return the bytes of the object, in order."""
        header = SegmentHeader(0, _NO_INSTANCE, self._topic_id, 0, self._first_seq, 0)
        offsets = array("I", accumulate(self._lengths[:-1], initial=SEGMENT_HEADER_BYTES))
        entries = encode_entries(offsets, self._lengths, self._times_ms, self._flags)
        return [encode_segment_header(header), *self._frames, entries, encode_footer(entries)]


class SegmentPart(NamedTuple):
    """Frames of a segment that follow each other, in the encoding `segment-v1`."""

    rebase: Rebase
    body: bytes


class _Places(NamedTuple):
    """Where the frames of some seqs are, up to `next_seq`."""

    next_seq: int
    start: int
    last_offset: int
    end: int


class SegmentParts:
    """Reads parts of segments; for all threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()

    def read(
        self, read: Read, key: str, rebase: Rebase, byte_length: int, seq: int, bytes_max: int
    ) -> SegmentPart | None:
        """Return records from `seq` on, at least one, and about `bytes_max` of them.

        Return None when the object is of another incarnation of the topic (F3).
        """
        assert rebase.first_seq <= seq <= rebase.last_seq
        count = rebase.last_seq - rebase.first_seq + 1
        data_bytes = byte_length - count * ENTRY_BYTES - FOOTER_BYTES
        places = self._few_places(read, rebase, data_bytes, seq, bytes_max)
        if places is not None:
            body = read(places.start, places.end - places.start)
            if _is_range(body, places, rebase.incarnation, seq):
                return SegmentPart(Rebase(rebase.incarnation, seq, places.next_seq - 1), body)
        if _is_of_other_topic(read, rebase):
            return None
        index = self._whole_index(read, key, rebase, data_bytes)
        places = _places(index.offsets, index.lengths, seq - rebase.first_seq, seq, bytes_max)
        body = read(places.start, places.end - places.start) if places.end > places.start else b""
        return SegmentPart(Rebase(rebase.incarnation, seq, places.next_seq - 1), body)

    def _few_places(
        self, read: Read, rebase: Rebase, data_bytes: int, seq: int, bytes_max: int
    ) -> _Places | None:
        """Return what the entries from `seq` on say (S1); None when they cannot be of this segment."""
        at, count = seq - rebase.first_seq, min(rebase.last_seq + 1 - seq, ENTRIES_AT_ONCE)
        entries = read(data_bytes + at * ENTRY_BYTES, count * ENTRY_BYTES)
        if len(entries) != count * ENTRY_BYTES:
            return None
        words = array("I", entries)
        places = _places(words[0::_ENTRY_WORDS], words[1::_ENTRY_WORDS], 0, seq, bytes_max)
        is_inside = SEGMENT_HEADER_BYTES <= places.start <= places.last_offset < places.end <= data_bytes
        return places if is_inside else None

    def _whole_index(self, read: Read, key: str, rebase: Rebase, data_bytes: int) -> SegmentIndex:
        """Return the index when it is intact, else make it again from the frames (S2)."""
        with self._lock:
            index = self._indexes.get(key)
        if index is not None:
            return index
        first_seq, count = rebase.first_seq, rebase.last_seq - rebase.first_seq + 1
        try:
            index = decode_index(
                read(data_bytes, count * ENTRY_BYTES + FOOTER_BYTES), first_seq, count, sealed=True
            )
            if index.data_end != data_bytes:
                raise IndexDamage(f"ends at {index.data_end} of {data_bytes} bytes")
        except (IndexDamage, UnknownVersion):
            name, entry = segment_of(rebase, data_bytes)
            index = rebuild_index(read, name, entry)
        with self._lock:
            self._indexes[key] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index


def segment_of(rebase: Rebase, data_bytes: int) -> tuple[SegmentName, SegmentEntry]:
    """Return the name and the entry of a compacted object, as readers of segments need them."""
    count = rebase.last_seq - rebase.first_seq + 1
    name = SegmentName(rebase.incarnation & TOPIC_ID_MASK, 0, rebase.first_seq, 0)
    return name, SegmentEntry(
        rebase.first_seq, count, 0, data_bytes, 0, 0, True, False, HOT, count, data_bytes, 0, 0
    )


def frame_bytes_of(count: int, byte_length: int) -> int:
    """Return the bytes of the frames in an object with this number of records."""
    return byte_length - count * ENTRY_BYTES - FOOTER_BYTES - SEGMENT_HEADER_BYTES


def _places(offsets: array[int], lengths: array[int], at: int, seq: int, bytes_max: int) -> _Places:
    """Return the places of records from the entry `at` on, whose seq is `seq`; at least of one."""
    start = offsets[at]
    stop = max(bisect_right(offsets, start + bytes_max, at), at + 1)
    if stop > at + 1 and offsets[stop - 1] + lengths[stop - 1] - start > bytes_max:
        stop -= 1
    stop = min(stop, at + ENTRIES_AT_ONCE)
    last = offsets[stop - 1]
    return _Places(seq + stop - at, start, last, last + lengths[stop - 1])


def _is_range(body: bytes, places: _Places, incarnation: int, seq: int) -> bool:
    """Return whether the first and the last frame are those of their seqs (S2)."""
    topic_id = incarnation & TOPIC_ID_MASK
    last_at = places.last_offset - places.start
    try:
        (frame_len,) = HEADER.unpack_from(body)[:1]
        check_frame(body, 0, LEN_BYTES + frame_len, topic_id, seq)
        check_frame(body, last_at, places.end - places.last_offset, topic_id, places.next_seq - 1)
    except (FrameDamage, struct.error):
        return False
    return len(body) == places.end - places.start


def _is_of_other_topic(read: Read, rebase: Rebase) -> bool:
    try:
        header = parse_segment_header(read(0, SEGMENT_HEADER_BYTES))
    except (FrameDamage, UnknownVersion):
        return False
    return header.topic_id != rebase.incarnation & TOPIC_ID_MASK
