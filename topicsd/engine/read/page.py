"""A page of a topic: 64 records as readers get them, rendered once for all who read them.

`text` is the JSON of the records one behind the other, each with a comma behind it, and `ends` says where
each ends; so any stretch of a page is one slice of it, and the slices of several pages stand behind each
other as they are. A page grows at its end as the topic does. A seq without a record, because it was dead or
lost when the page was made, has an empty place: it will never be asked for again.

What is damaged has an empty place too, and `damage` says so: what is good in front of it and behind it is
read.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_DURABLE,
    FLAG_TAG,
    LEN_BYTES,
    FrameDamage,
    FrameType,
    Record,
    parse_frame,
    record_of,
    xxh3,
)

PAGE_RECORDS = 64

# The header behind its length, with type, flags and topic as one field, and the lengths of node and tag as
# one number: each field that is taken apart costs, for a million records a second. The length of the data is
# left out: a body that its checksum fits is as it was written.
_HEAD = struct.Struct("<10sQQI4x")
_TAG_AT = _HEAD.size
_unpack_head = _HEAD.unpack_from
_pack_kind = struct.Struct("<BBQ").pack
_LAYOUTS_MAX = 4096


class _Layouts(dict[int, Callable[[bytes, int], tuple[Any, ...]]]):
    """Cuts a frame of so many bytes into its length, what the checksum is about, and the checksum, in one
    call."""

    def __missing__(self, length: int) -> Callable[[bytes, int], tuple[Any, ...]]:
        if len(self) >= _LAYOUTS_MAX:
            self.clear()
        unpack = self[length] = struct.Struct(f"<I{length - LEN_BYTES - CHECKSUM_BYTES}sQ").unpack_from
        return unpack


_UNPACK = _Layouts()
_APPEND = int(FrameType.APPEND)
_PLAIN_FLAGS = (0, FLAG_TAG, FLAG_DURABLE, FLAG_TAG | FLAG_DURABLE)
_encode = msgspec.json.Encoder().encode
# What JSON has otherwise within a text.
_ESCAPED = bytes([*range(0x20), *b'"\\'])


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


class Frames(NamedTuple):
    """Frames of seqs that follow each other, as they were read."""

    first_seq: int
    data: bytes
    starts: Sequence[int]
    """Where each begins in `data`."""
    lengths: Sequence[int]
    """0 of a record that is not there any more."""

    def part(self, first: int, last: int) -> Frames:
        low, high = first - self.first_seq, last + 1 - self.first_seq
        return Frames(first, self.data, self.starts[low:high], self.lengths[low:high])


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

    def add_frames(self, topic_id: int, stretch: Frames, variant: Variant) -> None:
        """Take in these records, behind what is there.

        Each frame is checked whole, here and nowhere else on its way to a reader.
        """
        assert stretch.first_seq >= self.next_seq
        if stretch.first_seq > self.next_seq:
            self.skip(stretch.first_seq - 1)
        parts: list[bytes] = []
        tags: list[bytes] = []
        with_tag = variant.with_tag
        frames, seq = stretch.data, stretch.first_seq - 1
        plain_kinds = [_pack_kind(_APPEND, flags, topic_id) for flags in _PLAIN_FLAGS]
        last_kind, last_ts, stamp = b"", -1, b""
        for at, length in zip(stretch.starts, stretch.lengths, strict=True):
            seq += 1
            try:
                frame_len, body, checksum = _UNPACK[length](frames, at)
                kind, frame_seq, ts, sizes = _unpack_head(body)
            except struct.error:  # It is not there any more, or the bytes are over.
                parts.append(self._render_other(topic_id, frames, seq, at, length, variant))
                continue
            if (
                checksum != xxh3(body)
                or frame_seq != seq
                or (kind != last_kind and kind not in plain_kinds)
                or frame_len != length - LEN_BYTES
            ):
                parts.append(self._render_other(topic_id, frames, seq, at, length, variant))
                continue
            last_kind = kind
            if ts != last_ts:
                # The records of one request have one.
                last_ts, stamp = ts, b',"$ts":%d' % ts
            if not sizes:
                parts.append(b'{"$seq":%d%b,"data":%b},' % (seq, stamp, body[_TAG_AT:]))
                continue
            # It has no node, whose length is in the lower half.
            data_at = _TAG_AT + (sizes >> 16)
            if with_tag:
                tag = body[_TAG_AT:data_at]
                tags.append(tag)
                parts.append(b'{"$seq":%d%b,"$tag":"%b","data":%b},' % (seq, stamp, tag, body[data_at:]))
            else:
                parts.append(b'{"$seq":%d%b,"data":%b},' % (seq, stamp, body[data_at:]))
        if tags and (joined := b"".join(tags)) != joined.translate(None, _ESCAPED):
            parts = [
                self._render_other(topic_id, frames, seq, at, length, variant)
                for seq, (at, length) in enumerate(
                    zip(stretch.starts, stretch.lengths, strict=True), stretch.first_seq
                )
            ]
        ends = accumulate(map(len, parts), initial=len(self.text))
        next(ends)
        self.ends.extend(ends)
        self.text = b"".join([self.text, *parts]) if self.text else b"".join(parts)

    def _render_other(
        self, topic_id: int, frames: bytes, seq: int, at: int, length: int, variant: Variant
    ) -> bytes:
        """A record with more to it than data, one that is not there, or damage."""
        if not length:
            return b""
        try:
            frame = parse_frame(frames, at, min(len(frames), at + length))
            if (frame.topic_id, frame.seq, frame.type) != (topic_id, seq, FrameType.APPEND):
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
