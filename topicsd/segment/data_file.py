"""The `.data` file of a segment: a header that identifies it, then the Append frames as they were logged.

The file begins with a FileHeader frame (see `topicsd/log/frame.py`; its other fields are 0). Its payload::

    off  size  field
      0    8   magic       b"TOPICSEG"
      8    4   version     1
     12    4   shard
     16   16   instance    of the data directory
     32    8   topic_id
     40    8   epoch       of the topic's incarnation
     48    8   first_seq
     56    8   generation  0 as first written; each rewrite adds 1 to the highest

    >>> header = SegmentHeader(shard=1, instance=b"i" * 16, topic_id=7, epoch=9, first_seq=3, generation=0)
    >>> frame = encode_segment_header(header)
    >>> len(frame) == SEGMENT_HEADER_BYTES, frame[38:62].hex(" ", 4)
    (True, '544f5049 43534547 01000000 01000000 69696969 69696969')
    >>> parse_segment_header(frame) == header
    True

Frames follow each other without a gap in the order of their seqs. A segment of generation 0 has every seq; a
rewritten segment lacks the records that were dead.

The valid length of a file is in its entry in the snapshot, not in the file. How to change the format: raise
VERSION, keep reading the earlier versions, and add a golden file of the new version to `tests/golden/`. A
file of an unknown version is refused.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FRAME_LEN_MAX,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U32,
    U64,
    FrameDamage,
    FrameType,
    LogFrame,
    damaged_frame_sizes,
    encode_frame,
    parse_frame,
    xxh3,
)
from topicsd.segment.entry import SegmentEntry, SegmentName
from topicsd.segment.frame_chains import Chain, chains_of_records

MAGIC = b"TOPICSEG"
VERSION = 1

_LAYOUT = struct.Struct("<8sII16sQQQQ")
SEGMENT_HEADER_BYTES = HEADER_BYTES + _LAYOUT.size + CHECKSUM_BYTES

SCAN_BYTES = 1 << 20
# A search skips to the next block of this size after an unreadable place.
BLOCK_BYTES = 4096
# With these errors the media reports lost bytes. Other errors do not concern the bytes.
_MEDIA_ERRORS = frozenset((errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA))
# Offset of the topic id in a frame.
_TOPIC_ID_AT = 6

Read = Callable[[int, int], bytes]
"""Function that returns the bytes at an offset, of a size; fewer only at the end of the file."""


def is_media_error(error: OSError) -> bool:
    return error.errno in _MEDIA_ERRORS


class SegmentHeader(NamedTuple):
    shard: int
    instance: bytes
    topic_id: int
    epoch: int
    first_seq: int
    generation: int

    @property
    def name(self) -> SegmentName:
        return SegmentName(self.topic_id, self.epoch, self.first_seq, self.generation)


def encode_segment_header(header: SegmentHeader) -> bytes:
    assert len(header.instance) == 16
    payload = _LAYOUT.pack(MAGIC, VERSION, *header)
    return encode_frame(FrameType.FILE_HEADER, payload=payload)


def parse_segment_header(buffer: bytes) -> SegmentHeader:
    frame = parse_frame(buffer, 0, min(len(buffer), SEGMENT_HEADER_BYTES))
    if frame.type != FrameType.FILE_HEADER or len(frame.payload) != _LAYOUT.size:
        raise FrameDamage(0, "the first frame is not a segment header")
    magic, version, *fields = _LAYOUT.unpack(frame.payload)
    if magic != MAGIC:
        raise FrameDamage(0, "the segment header has an unknown magic")
    if version != VERSION:
        raise UnknownVersion(f"segment format version {version}; this program reads version {VERSION}")
    return SegmentHeader(*fields)


def check_frame(buffer: bytes, at: int, size: int, topic_id: int, seq: int) -> None:
    """Check that a whole Append frame of this record is at `at`; 4 times cheaper than parsing."""
    if len(buffer) - at < size:
        raise FrameDamage(at, f"{len(buffer) - at} bytes are left of a frame of {size}")
    frame_len, frame_type, _, frame_topic_id, frame_seq, _, _, _, _ = HEADER.unpack_from(buffer, at)
    if (frame_len, frame_type) != (size - LEN_BYTES, FrameType.APPEND):
        raise FrameDamage(at, f"no record of {size} bytes begins here")
    if (frame_topic_id, frame_seq) != (topic_id, seq):
        raise FrameDamage(at, f"holds seq {frame_seq} of topic id {frame_topic_id:016x}")
    checksum_at = at + size - CHECKSUM_BYTES
    if U64.unpack_from(buffer, checksum_at)[0] != xxh3(memoryview(buffer)[at + LEN_BYTES : checksum_at]):
        raise FrameDamage(at, "the checksum does not match the bytes")


def with_topic_id(buffer: bytes, sizes: Iterable[int], topic_id: int) -> bytes:
    """Return whole Append frames of these sizes, which are checked already, with another topic id.

    A size of 0 is of a record that compaction left out.
    """
    frames = bytearray(buffer)
    view = memoryview(frames)
    at = 0
    for size in sizes:
        if size:
            U64.pack_into(frames, at + _TOPIC_ID_AT, topic_id)
            checksum_at = at + size - CHECKSUM_BYTES
            U64.pack_into(frames, checksum_at, xxh3(view[at + LEN_BYTES : checksum_at]))
            at += size
    assert at == len(buffer)
    return bytes(frames)


class ScannedFrame(NamedTuple):
    seq: int
    offset: int
    frame: LogFrame


class ScannedDamage(NamedTuple):
    """The seqs `first_seq` to `last_seq`, which were not found; none when `last_seq` is lower.

    In a compacted segment some of them may be dead records that compaction left out.
    """

    first_seq: int
    last_seq: int
    offset: int
    what: str


def scan_data(read: Read, name: SegmentName, entry: SegmentEntry) -> Iterator[ScannedFrame | ScannedDamage]:
    """Iterate over the frames of a segment in order, each checked, and the damage between them.

    Memory is bounded. After damage the next frame is searched for, first where the damaged one ends by its
    lengths: a record of bytes may have frames inside, which are none of the segment.
    """
    try:
        header = parse_segment_header(read(0, SEGMENT_HEADER_BYTES))
    except (FrameDamage, OSError) as damage:
        if isinstance(damage, OSError) and not is_media_error(damage):
            raise
        # The records can be read without the header.
        yield ScannedDamage(entry.first_seq, entry.first_seq - 1, 0, f"the header: {damage}")
    else:
        if header.name != name:
            what = f"the header names another segment: {header.name}"
            yield ScannedDamage(entry.first_seq, entry.last_seq, 0, what)
            return
    yield from _Scan(read, name, entry).run()


class _Scan:
    """One scan of a segment, through a window of bounded size."""

    def __init__(self, read: Read, name: SegmentName, entry: SegmentEntry) -> None:
        self._read = read
        self._name = name
        self._entry = entry
        self._last_seq = entry.last_seq
        self._window = b""
        self._window_offset = 0
        self._error = ""
        self._is_dense = name.generation == 0

    def run(self) -> Iterator[ScannedFrame | ScannedDamage]:
        offset, seq = SEGMENT_HEADER_BYTES, self._entry.first_seq
        end = self._entry.data_bytes
        chains: list[Chain] | None = None
        while offset < end and seq <= self._last_seq:
            try:
                frame = self._frame_at(offset, seq)
            except FrameDamage as damage:
                if chains is None:
                    chains = self._chains_after(offset, seq)
                chains = [
                    one
                    for one in chains
                    if one.start >= offset and (one.start, one.first_number) > (offset, seq)
                ]
                until = chains[0].first_number if chains else self._last_seq + 1
                yield ScannedDamage(seq, until - 1, offset, damage.what)
                if not chains:
                    return
                offset, seq = chains[0].start, chains[0].first_number
                continue
            yield ScannedFrame(frame.seq, offset, frame)
            offset += frame.size
            seq = frame.seq + 1
        if offset != end:
            yield ScannedDamage(seq, self._last_seq, offset, f"{end - offset} bytes follow the last frame")
        elif seq <= self._last_seq and self._is_dense:
            yield ScannedDamage(seq, self._last_seq, offset, "the frames end too early")

    def _frame_at(self, offset: int, seq: int) -> LogFrame:
        """Return the frame at `offset`; FrameDamage unless it is of this segment and from `seq` on."""
        self._load(offset, LEN_BYTES)
        head = self._bytes(offset, LEN_BYTES)
        if len(head) == LEN_BYTES:
            (frame_len,) = U32.unpack(head)
            if frame_len <= FRAME_LEN_MAX:
                self._load(offset, LEN_BYTES + frame_len)
        if self._error:
            raise FrameDamage(offset, f"cannot be read: {self._error}")
        frame = parse_frame(self._window, offset - self._window_offset, len(self._window))
        if frame.type != FrameType.APPEND or frame.topic_id != self._name.topic_id:
            raise FrameDamage(offset, f"holds type {frame.type} of topic id {frame.topic_id:016x}")
        if not seq <= frame.seq <= self._last_seq or (self._is_dense and frame.seq != seq):
            raise FrameDamage(offset, f"holds seq {frame.seq} instead of {seq}")
        return frame

    def _chains_after(self, offset: int, seq: int) -> list[Chain]:
        """Find the frames after the first damage, which is at `offset`; not those inside a damaged frame."""
        chains: list[Chain] = []
        lengths = {offset: self._ends_of(offset)}
        after = self._next_frame(offset, seq)
        while after is not None:
            first, last = after, after
            while after is not None:
                last, end = after, after.offset + after.frame.size
                after = self._candidate(end, last.seq + 1)
                if after is not None and self._is_dense and after.seq != last.seq + 1:
                    after = None
            chains.append(Chain(first.offset, end, first.seq, last.seq))
            lengths[end] = self._ends_of(end)
            after = self._next_frame(end, seq)
        bounds = Chain(offset, self._entry.data_bytes, seq, self._last_seq)
        return chains_of_records(chains, bounds, lengths, self._is_dense)

    def _ends_of(self, offset: int) -> tuple[int, ...]:
        """Return where a damaged frame ends, as its lengths say."""
        self._load(offset, HEADER_BYTES)
        head = self._bytes(offset, HEADER_BYTES)
        return (
            tuple(offset + size for size in damaged_frame_sizes(head, 0)) if len(head) == HEADER_BYTES else ()
        )

    def _next_frame(self, offset: int, seq: int) -> ScannedFrame | None:
        """Find the next frame of this segment at or after `offset`, with at least this seq."""
        id_bytes = U64.pack(self._name.topic_id)
        while self._entry.data_bytes - offset >= HEADER_BYTES:
            self._load(offset, HEADER_BYTES)
            if self._error:
                offset = (offset // BLOCK_BYTES + 1) * BLOCK_BYTES
                continue
            at = offset - self._window_offset
            if len(self._window) - at < HEADER_BYTES:
                return None
            hit = self._window.find(id_bytes, at + _TOPIC_ID_AT)
            if hit < 0:
                # The topic id may cross the end of this window.
                offset = self._window_offset + len(self._window) - HEADER_BYTES + 1
                continue
            offset = self._window_offset + hit - _TOPIC_ID_AT
            frame = self._candidate(offset, seq)
            if frame is not None:
                return frame
            offset += 1
        return None

    def _candidate(self, offset: int, seq: int) -> ScannedFrame | None:
        """Return the frame at `offset`, or None; check the header before reading the whole frame."""
        self._load(offset, HEADER_BYTES)
        head = self._bytes(offset, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[LEN_BYTES] != FrameType.APPEND:
            return None
        sizes = damaged_frame_sizes(head, 0)
        if sizes[0] != sizes[1]:
            return None
        (frame_seq,) = U64.unpack_from(head, _TOPIC_ID_AT + 8)
        if not seq <= frame_seq <= self._last_seq:
            return None
        try:
            return ScannedFrame(frame_seq, offset, self._frame_at(offset, frame_seq))
        except FrameDamage:
            return None

    def _bytes(self, offset: int, size: int) -> bytes:
        at = offset - self._window_offset
        return self._window[at : at + size]

    def _load(self, offset: int, size: int) -> None:
        """Load these bytes into the window, as far as they exist and can be read."""
        room = self._entry.data_bytes - offset
        size = min(size, room)
        at = offset - self._window_offset
        if not self._error and at >= 0 and at + size <= len(self._window):
            return
        self._window_offset = offset
        # If the large window has a bad sector, read only the frame: frames before the sector stay readable.
        for read_bytes in (min(max(size, SCAN_BYTES), room), size):
            try:
                self._window = self._read(offset, read_bytes)
                self._error = ""
                return
            except OSError as error:
                if not is_media_error(error):
                    raise
                self._window = b""
                self._error = str(error)
