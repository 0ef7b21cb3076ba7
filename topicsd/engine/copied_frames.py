"""Records of a source on their way into any number of destinations: what is the same in all copies of them is
made once.

A frame is its length, what each copy has of its own (the topic, its seq and time there), the rest, and the
checksum. So for one destination more a record costs two small packs and the checksum.

Nothing is checked: the source took each of them once, by limits that may have been others.

Must not know: where the records come from, which of them are wanted where.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from topicsd.engine.encode_records import Encoded
from topicsd.engine.requests import CopiedRecord
from topicsd.wal.frame import (
    FLAG_DURABLE,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    FRAME_LEN_MIN,
    HEADER_BYTES,
    LEN_BYTES,
    FrameType,
    pack_u32,
    pack_u64,
    payload_with_meta,
    xxh3,
)

# The header behind its length, in two: type, flags, topic, seq, time; the lengths of node, tag and payload.
_OWN: Final = Struct("<BBQQQ")
_SAME: Final = Struct("<HHI")
assert LEN_BYTES + _OWN.size + _SAME.size == HEADER_BYTES

_APPEND: Final = int(FrameType.APPEND)


class CopiedFrames:
    __slots__ = ("_frames", "_lengths", "_size", "_tags", "seqs")

    def __init__(self, records: Sequence[CopiedRecord]) -> None:
        self.seqs: list[int] = []
        """Those in the source."""
        self._frames: list[tuple[bytes, int, bytes]] = []
        """Of each its length as it stands in the frame, its flags, and what is behind the first half of its
        header."""
        self._lengths: list[int] = []
        self._size = 0
        self._tags: list[bytes] | None = None
        for record in records:
            self._add(record)

    def _add(self, record: CopiedRecord) -> None:
        payload, meta, node, tag, flags = bytes(record.data), bytes(record.meta), b"", b"", 0
        if record.tag:
            tag, flags = record.tag.encode(), FLAG_TAG
            if self._tags is None:
                self._tags = [b""] * len(self.seqs)
        if record.node:
            node, flags = record.node.encode(), flags | FLAG_NODE
        if meta:
            payload, flags = payload_with_meta(payload, meta), flags | FLAG_META
        rest = _SAME.pack(len(node), len(tag), len(payload)) + node + tag + payload
        length = LEN_BYTES + FRAME_LEN_MIN - _SAME.size + len(rest)
        self.seqs.append(record.seq)
        self._frames.append((pack_u32(length - LEN_BYTES), flags, rest))
        self._lengths.append(length)
        self._size += length
        if self._tags is not None:
            self._tags.append(tag)

    def __len__(self) -> int:
        return len(self.seqs)

    def part(self, first: int, upto: int) -> CopiedFrames:
        """Some of them, by their places here."""
        if first == 0 and upto >= len(self):
            return self
        if first >= upto:
            return NO_COPIES
        part = CopiedFrames(())
        place = slice(first, upto)
        part.seqs, part._frames, part._lengths = self.seqs[place], self._frames[place], self._lengths[place]
        part._size = sum(part._lengths)
        part._tags = None if self._tags is None else self._tags[place]
        return part

    def encode(self, topic_id: int, first_seq: int, ts: int, is_durable: bool) -> Encoded:
        """The copies that a destination gets."""
        class_flag = FLAG_DURABLE if is_durable else 0
        own, seq = _OWN.pack, first_seq
        parts: list[bytes] = []
        for frame_len, flags, rest in self._frames:
            body = own(_APPEND, flags | class_flag, topic_id, seq, ts) + rest
            parts += (frame_len, body, pack_u64(xxh3(body)))
            seq += 1
        return parts, self._lengths, self._size, self._tags


NO_COPIES: Final = CopiedFrames(())
