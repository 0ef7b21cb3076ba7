"""Copies framed as records of their own topic, from the frames of their originals.

A copy that the log holds by reference is framed when its bytes are needed: with its own seq and time, and the
rest as in the original. Its checksum is derived from the original's, so that a damaged original gives a
damaged copy.

    >>> from topicsd.log.frame import FrameType, encode_frame, parse_frame
    >>> original = encode_frame(FrameType.APPEND, topic_id=7, seq=3, ts=1000, tag=b"a", payload=b"1")
    >>> copy = parse_frame(frame_copy(original, 9, 1, 1004, 0), 0, len(original))
    >>> copy.topic_id, copy.seq, copy.ts, copy.tag, copy.payload
    (9, 1, 1004, b'a', b'1')

`CopiedFrames` holds records of a source on their way to any number of destinations. The parts that all copies
share are made once: references to the records in the log of the destination's shard, if they are there
unchanged; otherwise frames. A frame is its length, the fields of the copy's own (the topic, its seq and time
there), the rest, and the checksum. So each further destination costs nothing per record, or two small packs
and the checksum.

The limits of records do not apply to copies: the source accepted each record, possibly under other limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from topicsd.engine.read.page import Frames
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import CopiedRecord
from topicsd.engine.routes.reference import References, refer
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.encode_records import Encoded
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_BYTES,
    FLAG_DURABLE,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN_MIN,
    HEADER_BYTES,
    LEN_BYTES,
    U64,
    FrameType,
    pack_u32,
    pack_u64,
    payload_with_meta,
    xxh3,
)

if TYPE_CHECKING:
    from topicsd.engine.routes.route import RouteState

# After the length: type, flags, and the fields of the copy's own: topic, seq and time.
OWN: Final = Struct("<BBQQQ")
_own = OWN.pack
_u64_at = U64.unpack_from


def frame_copy(original: bytes, topic_id: int, seq: int, ts: int, class_flag: int) -> bytes:
    body = original[LEN_BYTES:-CHECKSUM_BYTES]
    flags = body[1] & ~FLAG_DURABLE | class_flag
    copied = _own(body[0], flags, topic_id, seq, ts) + body[OWN.size :]
    (checksum,) = _u64_at(original, len(original) - CHECKSUM_BYTES)
    return original[:LEN_BYTES] + copied + pack_u64(checksum ^ xxh3(body) ^ xxh3(copied))


def own_frames(run: TailRun, frames: Frames, topic: Topic) -> Frames:
    """Return frames of a run as read, with originals replaced by the copies that refer to them."""
    at = frames.first_seq - run.first_seq
    end = at + len(frames.starts)
    marks = run.copies(at, end)
    if marks is None:
        return frames
    return frame_copies(frames, run.times_ms[at:end], marks, topic.topic_id, topic.is_durable)


def own_frames_of(run: TailRun, seqs: Sequence[int], frames: Frames, topic: Topic) -> Frames:
    """Return what `own_frames` does, for seqs that need not be consecutive."""
    if not run.has_copies:
        return frames
    places = [seq - run.first_seq for seq in seqs]
    marks = bytes(map(run.is_copy, places))
    if 1 not in marks:
        return frames
    times_ms = [run.times_ms[at] for at in places]
    return frame_copies(frames, times_ms, marks, topic.topic_id, topic.is_durable, seqs)


def frame_copies(
    frames: Frames,
    times_ms: Sequence[int],
    marks: bytes,
    topic_id: int,
    is_durable: bool,
    seqs: Sequence[int] | None = None,
) -> Frames:
    """Frame the records marked in `marks` as copies, each in the place of its original.

    Records that were not read whole stay as they are. Without `seqs` they are consecutive.
    """
    seqs = range(frames.first_seq, frames.first_seq + len(frames.starts)) if seqs is None else seqs
    class_flag = FLAG_DURABLE if is_durable else 0
    data, framed = frames.data, bytearray(frames.data)
    for seq, start, length, ts, is_copy in zip(
        seqs, frames.starts, frames.lengths, times_ms, marks, strict=True
    ):
        end = start + length
        if is_copy and end <= len(data):
            framed[start:end] = frame_copy(data[start:end], topic_id, seq, ts, class_flag)
    return frames._replace(data=bytes(framed))


# The header after its length has two parts: the fields of the copy's own, and the lengths of node, tag and
# payload.
_LENGTHS: Final = Struct("<HHI")
assert LEN_BYTES + OWN.size + _LENGTHS.size == HEADER_BYTES

_APPEND: Final = int(FrameType.APPEND)

REFERRED_FILES_MAX: Final = 8
"""How many files' worth of copies by reference may wait for a checkpoint. Beyond that copies are written out:
when checkpoints fail or the disk is slow, the bounds of the log have to apply to copies too."""


class CopiedFrames:
    """Records of a source on their way to any number of destinations."""

    __slots__ = ("_frames", "_is_changed", "_lengths", "_references", "_size", "records", "seqs", "tags")

    def __init__(self, records: Sequence[CopiedRecord], is_changed: bool = True) -> None:
        """Take the records; `is_changed` says that they differ from the bytes in the source."""
        self.records = records
        self._is_changed = is_changed
        self._references: References | None = None
        self._frames: list[tuple[bytes, int, bytes]] = []
        """The encoded length, the flags, and the bytes after `OWN` of each frame. Made when needed."""
        self._lengths: list[int] = []
        self._size = 0
        self.seqs = [record.seq for record in records]
        """The seqs in the source."""
        self.tags: list[bytes] | None = None
        if any(record.tag for record in records):
            self.tags = [record.tag.encode() if record.tag else b"" for record in records]

    def __len__(self) -> int:
        return len(self.seqs)

    def part(self, first: int, end: int) -> CopiedFrames:
        """Return the copies from index `first` to before `end`."""
        return CopiedFrames(self.records[first:end], self._is_changed)

    def after(self, count: int) -> CopiedFrames:
        """Return all but the first `count` copies."""
        return self.part(count, len(self.seqs)) if count < len(self.seqs) else NO_COPIES

    def refer(self, shard: ShardState, route: RouteState) -> References | None:
        """Return references to the records in the log of this shard, or None."""
        if self._is_changed or shard.referred_bytes >= REFERRED_FILES_MAX * shard.settings.wal_file_bytes:
            return None
        references = self._references
        if references is None or references.lowest < shard.referable_from:
            source = shard.topics.get(route.rule.source)
            if source is None or source.epoch != route.source_epoch:
                return None
            references = self._references = refer(shard, source, self.seqs)
        return references

    def encode(self, topic_id: int, first_seq: int, ts: int, is_durable: bool) -> Encoded:
        """Return the frames of the copies for one destination."""
        if len(self._frames) < len(self.records):
            for record in self.records:
                self._frame(record)
        class_flag = FLAG_DURABLE if is_durable else 0
        own, seq = OWN.pack, first_seq
        parts: list[bytes] = []
        for frame_len, flags, rest in self._frames:
            body = own(_APPEND, flags | class_flag, topic_id, seq, ts) + rest
            parts += (frame_len, body, pack_u64(xxh3(body)))
            seq += 1
        return parts, self._lengths, self._size, self.tags

    def _frame(self, record: CopiedRecord) -> None:
        payload, meta, node, tag, flags = bytes(record.data), bytes(record.meta), b"", b"", 0
        if not payload:
            payload, flags = record.data_base64, FLAG_BYTES
        if record.tag:
            tag, flags = record.tag.encode(), flags | FLAG_TAG
        if record.node:
            node, flags = record.node.encode(), flags | FLAG_NODE
        if meta:
            payload, flags = payload_with_meta(payload, meta), flags | FLAG_META
        rest = _LENGTHS.pack(len(node), len(tag), len(payload)) + node + tag + payload
        length = LEN_BYTES + FRAME_LEN_MIN - _LENGTHS.size + len(rest)
        self._frames.append((pack_u32(length - LEN_BYTES), flags, rest))
        self._lengths.append(length)
        self._size += length


NO_COPIES: Final = CopiedFrames(())
