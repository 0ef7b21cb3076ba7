"""A page of a topic: 64 records as readers get them, rendered once for all who read them.

`text` is the JSON of the records one behind the other, each with a comma behind it, and `ends` says where
each ends; so any stretch of a page is one slice of it, and the slices of several pages stand behind each
other as they are. A page grows at its end as the topic does. A seq without a record, because it was dead or
lost when the page was made, has an empty place: it will never be asked for again.

What is damaged has an empty place too, and `damage` says so: what is good in front of it and behind it is
read.

Must not know: where the frames come from, which of the records are alive.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate

import msgspec

from topicsd.wal.frame import (
    CHECKSUM_BYTES,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    HEADER,
    HEADER_BYTES,
    LEN_BYTES,
    U64,
    FrameDamage,
    FrameType,
    Record,
    parse_frame,
    record_of,
    xxh3,
)

PAGE_RECORDS = 64

_APPEND = int(FrameType.APPEND)
_NODE_OR_META = FLAG_NODE | FLAG_META
_unpack = HEADER.unpack_from
_unpack_sum = U64.unpack_from
_encode = msgspec.json.Encoder().encode


class Variant(msgspec.Struct, frozen=True):
    """What of a record a reader wants to see besides its data."""

    with_tag: bool
    with_meta: bool
    number: int


VARIANTS = {
    (with_tag, with_meta): Variant(with_tag, with_meta, with_tag + 2 * with_meta)
    for with_tag in (False, True)
    for with_meta in (False, True)
}


class Page:
    __slots__ = ("damage", "ends", "first_seq", "nodes", "text")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.text = b""
        self.ends = array("I")
        self.nodes: dict[int, str] | None = None
        """By seq, of the records that have one."""
        self.damage: dict[int, str] | None = None
        """By seq, what is wrong with it."""

    @property
    def next_seq(self) -> int:
        """Those before it are in the page, or will never be."""
        return self.first_seq + len(self.ends)

    def skip(self, upto: int) -> None:
        """There is nothing to read up to this seq, from where the page ends."""
        end = self.ends[-1] if self.ends else 0
        self.ends.extend([end] * (upto + 1 - self.next_seq))

    def start_of(self, seq: int) -> int:
        at = seq - self.first_seq
        return self.ends[at - 1] if at else 0

    def slice(self, first: int, last: int) -> bytes | memoryview:
        """The records from `first` to `last`, each with a comma behind it."""
        start, end = self.start_of(first), self.ends[last - self.first_seq]
        if end - start == len(self.text):
            return self.text
        return memoryview(self.text)[start:end]

    def last_within(self, first: int, last: int, room: int) -> int:
        """The last seq of the stretch that still fits into `room` bytes; `first - 1` when none does."""
        start = self.start_of(first)
        low, high = first - self.first_seq, last - self.first_seq + 1
        return self.first_seq + bisect_right(self.ends, start + room, low, high) - 1

    def add_frames(
        self, topic_id: int, frames: bytes, places: list[tuple[int, int, int]], variant: Variant
    ) -> None:
        """Take in the records of these seqs: (seq, offset in `frames`, length), behind what is there.

        Each frame is checked whole, here and nowhere else on its way to a reader.
        """
        parts: list[bytes] = []
        expected = self.next_seq
        last_ts, middle = -1, b""
        for seq, at, length in places:
            if seq != expected:
                parts += [b""] * (seq - expected)
            expected = seq + 1
            checksum_at = at + length - CHECKSUM_BYTES
            if at + length > len(frames):
                parts.append(self._render_other(topic_id, frames, seq, at, length, variant))
                continue
            frame_len, frame_type, flags, frame_topic, frame_seq, ts, _, tag_len, data_len = _unpack(
                frames, at
            )
            if (
                flags & _NODE_OR_META
                or frame_len + LEN_BYTES != length
                or frame_type != _APPEND
                or frame_topic != topic_id
                or frame_seq != seq
                or bool(flags & FLAG_TAG) != bool(tag_len)
                or HEADER_BYTES + tag_len + data_len + CHECKSUM_BYTES != length
                or xxh3(frames[at + LEN_BYTES : checksum_at]) != _unpack_sum(frames, checksum_at)[0]
            ):
                parts.append(self._render_other(topic_id, frames, seq, at, length, variant))
                continue
            if ts != last_ts:
                # The records of one request have one.
                last_ts, middle = ts, b',"$ts":%d,"data":' % ts
            data_at = at + HEADER_BYTES + tag_len
            data = frames[data_at:checksum_at]
            if tag_len and variant.with_tag:
                tag = _encode(frames[at + HEADER_BYTES : data_at].decode())
                parts.append(b'{"$seq":%d,"$ts":%d,"$tag":%b,"data":%b},' % (seq, ts, tag, data))
            else:
                parts.append(b'{"$seq":%d%b%b},' % (seq, middle, data))
        ends = accumulate(map(len, parts), initial=len(self.text))
        next(ends)
        self.ends.extend(ends)
        self.text = b"".join([self.text, *parts]) if self.text else b"".join(parts)

    def _render_other(
        self, topic_id: int, frames: bytes, seq: int, at: int, length: int, variant: Variant
    ) -> bytes:
        """A record with more to it than data, or damage."""
        try:
            frame = parse_frame(frames, at, min(len(frames), at + length))
            if (frame.topic_id, frame.seq, frame.type) != (topic_id, seq, _APPEND):
                raise FrameDamage(at, f"holds seq {frame.seq} of topic id {frame.topic_id:016x}")
            record = record_of(frame)
        except FrameDamage as damage:
            self.add_damage(seq, damage.what)
            return b""
        if record.node:
            if self.nodes is None:
                self.nodes = {}
            self.nodes[seq] = record.node.decode()
        return render_record(record, variant) + b","

    def add_damage(self, seq: int, what: str) -> None:
        if self.damage is None:
            self.damage = {}
        self.damage[seq] = what


def render_record(record: Record, variant: Variant) -> bytes:
    parts = [b'{"$seq":%d,"$ts":%d' % (record.seq, record.ts)]
    if record.node:
        parts.append(b',"$node":' + _encode(record.node.decode()))
    if variant.with_tag and record.tag:
        parts.append(b',"$tag":' + _encode(record.tag.decode()))
    if variant.with_meta and record.meta is not None:
        parts.append(b',"meta":' + record.meta)
    parts.append(b',"data":' + record.data + b"}")
    return b"".join(parts)
