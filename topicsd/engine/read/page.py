"""A page: up to 64 records of a topic, rendered to JSON once for all readers.

`text` is the JSON of the records, each followed by a comma, and `ends` has the end offset of each. So any
range of a page is one slice, and slices of several pages can be concatenated. A page grows at its end as the
topic does. A seq without a record, because the record was dead or lost when the page was made, has an empty
slice: no reader will ever need it.

A damaged record has an empty slice too, and an entry in `damage`; the good records before and after it stay
readable.
"""

from __future__ import annotations

import struct
from array import array
from binascii import b2a_base64
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
    pack_kind,
    parse_frame,
    record_of,
    xxh3,
)

PAGE_RECORDS = 64

# The header after its length, with type, flags and topic as one field, and the lengths of node and tag as one
# number: at a million records per second each unpacked field costs. The length of the data is skipped: a body
# that matches its checksum is as it was written.
_HEAD = struct.Struct("<10sQQI4x")
_TAG_AT = _HEAD.size
_unpack_head = _HEAD.unpack_from
_LAYOUTS_MAX = 4096


class _Layouts(dict[int, Callable[[bytes, int], tuple[Any, ...]]]):
    """Unpack functions by frame size, which split a frame into length, body and checksum."""

    def __missing__(self, length: int) -> Callable[[bytes, int], tuple[Any, ...]]:
        if len(self) >= _LAYOUTS_MAX:
            self.clear()
        unpack = self[length] = struct.Struct(f"<I{length - LEN_BYTES - CHECKSUM_BYTES}sQ").unpack_from
        return unpack


_UNPACK = _Layouts()
_APPEND = int(FrameType.APPEND)
_PLAIN_FLAGS = (0, FLAG_TAG, FLAG_DURABLE, FLAG_TAG | FLAG_DURABLE)
_encode = msgspec.json.Encoder().encode
# The bytes that JSON must escape within a string.
_ESCAPED = bytes([*range(0x20), *b'"\\'])


class _TaggedRecord(msgspec.Struct, gc=False):
    """The tag of a rendered record."""

    seq: int = msgspec.field(name="$seq")
    tag: str = msgspec.field(name="$tag", default="")


_decode_tags = msgspec.json.Decoder(list[_TaggedRecord]).decode


class Variant(msgspec.Struct, frozen=True):
    """The optional fields of a record that a reader wants besides its data."""

    with_tag: bool
    with_meta: bool
    number: int


VARIANTS = {
    (with_tag, with_meta): Variant(with_tag, with_meta, with_tag + 2 * with_meta)
    for with_tag in (False, True)
    for with_meta in (False, True)
}


class Frames(NamedTuple):
    """Frames of consecutive seqs, as they were read."""

    first_seq: int
    data: bytes
    starts: Sequence[int]
    """The offset of each frame in `data`."""
    lengths: Sequence[int]
    """The length of each frame; 0 for a record that no longer exists."""

    def part(self, first: int, last: int) -> Frames:
        low, high = first - self.first_seq, last + 1 - self.first_seq
        return Frames(first, self.data, self.starts[low:high], self.lengths[low:high])


class Page:
    """The rendered records of up to 64 consecutive seqs, in one variant."""

    __slots__ = ("damage", "ends", "first_seq", "nodes", "text")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.text = b""
        self.ends = array("I")
        self.nodes: dict[int, str] | None = None
        """The nodes by seq, of records that have one."""
        self.damage: dict[int, str] | None = None
        """A description of the damage by seq, of damaged records."""

    @property
    def next_seq(self) -> int:
        """Return the seq at which the page grows; earlier seqs are in the page or have no record."""
        return self.first_seq + len(self.ends)

    def tags(self) -> dict[int, str]:
        """Return the tags by seq, of the records of a page with tags."""
        return {record.seq: record.tag for record in _decode_tags(b"[%b]" % self.text[:-1])}

    def skip(self, last: int) -> None:
        """Extend the page with empty slices up to and including this seq."""
        end = self.ends[-1] if self.ends else 0
        self.ends.extend([end] * (last + 1 - self.next_seq))

    def start_of(self, seq: int) -> int:
        at = seq - self.first_seq
        return self.ends[at - 1] if at else 0

    def slice(self, first: int, last: int) -> bytes | memoryview:
        """Return the records from `first` to `last`, each followed by a comma."""
        start, end = self.start_of(first), self.ends[last - self.first_seq]
        if end - start == len(self.text):
            return self.text
        return memoryview(self.text)[start:end]

    def last_within(self, first: int, last: int, room: int) -> int:
        """Return the last seq of the range that fits into `room` bytes; `first - 1` if none fits."""
        start = self.start_of(first)
        low, high = first - self.first_seq, last - self.first_seq + 1
        return self.first_seq + bisect_right(self.ends, start + room, low, high) - 1

    def add_frames(self, topic_id: int, frames: Frames, variant: Variant, number_of_0: int = 0) -> None:
        """Add records at the end of the page; the frame of seq s has the number `s + number_of_0`."""
        assert frames.first_seq >= self.next_seq
        if frames.first_seq > self.next_seq:
            self.skip(frames.first_seq - 1)
        seqs = range(frames.first_seq, frames.first_seq + len(frames.lengths))
        parts = self.render(topic_id, seqs, frames, variant, number_of_0)
        ends = accumulate(map(len, parts), initial=len(self.text))
        next(ends)
        self.ends.extend(ends)
        self.text = b"".join([self.text, *parts]) if self.text else b"".join(parts)

    def render(
        self, topic_id: int, seqs: Sequence[int], frames: Frames, variant: Variant, number_of_0: int = 0
    ) -> list[bytes]:
        """Return the records of frames, each with a comma, and note their nodes and damage.

        Each frame is checked completely here, and nowhere else between the disk and a reader.
        """
        parts: list[bytes] = []
        tags: list[bytes] = []
        with_tag = variant.with_tag
        data = frames.data
        plain_kinds = [pack_kind(_APPEND, flags, topic_id) for flags in _PLAIN_FLAGS]
        last_kind, last_ts, stamp = b"", -1, b""
        for seq, at, length in zip(seqs, frames.starts, frames.lengths, strict=True):
            try:
                frame_len, body, checksum = _UNPACK[length](data, at)
                kind, frame_seq, ts, sizes = _unpack_head(body)
            except struct.error:  # The length is 0 (no record), or the data is too short.
                parts.append(self._render_other(topic_id, data, seq, seq + number_of_0, at, length, variant))
                continue
            if (
                checksum != xxh3(body)
                or frame_seq != seq + number_of_0
                or (kind != last_kind and kind not in plain_kinds)
                or frame_len != length - LEN_BYTES
            ):
                parts.append(self._render_other(topic_id, data, seq, seq + number_of_0, at, length, variant))
                continue
            last_kind = kind
            if ts != last_ts:
                # All records of one request have the same time.
                last_ts, stamp = ts, b',"$ts":%d' % ts
            if not sizes:
                parts.append(b'{"$seq":%d%b,"data":%b},' % (seq, stamp, body[_TAG_AT:]))
                continue
            # A plain kind has no node, so the lower half, its length, is 0.
            data_at = _TAG_AT + (sizes >> 16)
            if with_tag:
                tag = body[_TAG_AT:data_at]
                tags.append(tag)
                parts.append(b'{"$seq":%d%b,"$tag":"%b","data":%b},' % (seq, stamp, tag, body[data_at:]))
            else:
                parts.append(b'{"$seq":%d%b,"data":%b},' % (seq, stamp, body[data_at:]))
        if tags and (joined := b"".join(tags)) != joined.translate(None, _ESCAPED):
            parts = [
                self._render_other(topic_id, data, seq, seq + number_of_0, at, length, variant)
                for seq, at, length in zip(seqs, frames.starts, frames.lengths, strict=True)
            ]
        return parts

    def _render_other(
        self, topic_id: int, data: bytes, seq: int, number: int, at: int, length: int, variant: Variant
    ) -> bytes:
        """Render a record that has more fields than data and a plain tag; note damage.

        Return no bytes for a missing or damaged record.
        """
        if not length:
            return b""
        try:
            frame = parse_frame(data, at, min(len(data), at + length))
            if (frame.topic_id, frame.seq, frame.type) != (topic_id, number, FrameType.APPEND):
                raise FrameDamage(at, f"holds seq {frame.seq} of topic id {frame.topic_id:016x}")
            record = record_of(frame if number == seq else frame._replace(seq=seq))
        except FrameDamage as damage:
            self.add_damage(seq, damage.what)
            return b""
        if record.node:
            self.add_node(seq, record.node.decode())
        return render_record(record, variant) + b","

    def add_node(self, seq: int, node: str) -> None:
        if self.nodes is None:
            self.nodes = {}
        self.nodes[seq] = node

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
    if record.is_bytes:
        parts.append(b',"data_base64":"' + b2a_base64(record.data, newline=False) + b'"}')
    else:
        parts.append(b',"data":' + record.data + b"}")
    return b"".join(parts)
