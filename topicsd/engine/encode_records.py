"""The records of one request as frames, ready to join a batch.

Nothing is changed here: seqs are those that the request will get if it is taken. Sizes are checked against
the limits on the way, so that a record is looked at once.

Must not know: topics, the log.
"""

from __future__ import annotations

import struct

import xxhash

from shared.config import Settings
from shared.errors import INVALID_REQUEST, RECORD_TOO_LARGE, Refusal
from topicsd.engine.requests import NewRecord
from topicsd.wal.frame import (
    CHECKSUM_BYTES,
    FLAG_DURABLE,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    LEN_BYTES,
    FrameType,
    encode_parts,
    payload_with_meta,
)

PARTS_A_FRAME = 3

_FRAMING_BYTES = LEN_BYTES + CHECKSUM_BYTES


class EncodedRecords:
    __slots__ = ("lengths", "parts", "size_bytes", "tags")

    def __init__(
        self, parts: list[bytes], lengths: list[int], size_bytes: int, tags: list[bytes] | None
    ) -> None:
        self.parts = parts
        """Three a frame."""
        self.lengths = lengths
        self.size_bytes = size_bytes
        self.tags = tags
        """One a record, or None when no record has one."""

    def whole_frames(self) -> list[bytes]:
        parts = self.parts
        return [b"".join(parts[at : at + PARTS_A_FRAME]) for at in range(0, len(parts), PARTS_A_FRAME)]


def encode_records(
    records: list[NewRecord],
    node: str | None,
    topic_id: int,
    first_seq: int,
    ts: int,
    is_durable: bool,
    limits: Settings,
) -> EncodedRecords | Refusal:
    default_node = node.encode() if node else b""
    base_flags = FLAG_DURABLE if is_durable else 0
    record_bytes_max, tag_bytes_max = limits.max_record_bytes, limits.max_tag_bytes
    parts: list[bytes] = []
    lengths: list[int] = []
    tags: list[bytes] = []
    has_tags = False
    size_bytes = 0
    seq = first_seq
    for record in records:
        flags = base_flags
        payload = bytes(record.data)
        payload_bytes = len(payload)
        if record.meta is not None:
            meta = bytes(record.meta)
            payload_bytes += len(meta)
            if len(meta) > limits.max_meta_bytes:
                return _too_long("meta", seq - first_seq, len(meta), limits.max_meta_bytes)
            payload = payload_with_meta(payload, meta)
            flags |= FLAG_META
        tag = b""
        if record.tag:
            tag = record.tag.encode()
            flags |= FLAG_TAG
            has_tags = True
        tag_node = record.node.encode() if record.node else default_node
        if tag_node:
            flags |= FLAG_NODE
        if payload_bytes > record_bytes_max:
            return _record_too_large(seq - first_seq, payload_bytes, record_bytes_max)
        if len(tag) > tag_bytes_max:
            return _too_long("tag", seq - first_seq, len(tag), tag_bytes_max)
        if len(tag_node) > limits.max_node_bytes:
            return _too_long("node", seq - first_seq, len(tag_node), limits.max_node_bytes)
        frame = encode_parts(FrameType.APPEND, flags, topic_id, seq, ts, tag_node, tag, payload)
        parts += frame
        length = len(frame[1]) + _FRAMING_BYTES
        lengths.append(length)
        tags.append(tag)
        size_bytes += length
        seq += 1
    return EncodedRecords(parts, lengths, size_bytes, tags if has_tags else None)


def records_digest(records: list[NewRecord], node: str | None) -> bytes:
    """What makes two writes with one key the same write: their records, as received, without the envelope."""
    digest = xxhash.xxh3_128()
    for record in records:
        for field in (
            bytes(record.data),
            _bytes_of(record.meta),
            _bytes_of(record.tag),
            _bytes_of(record.node or node),
        ):
            # Each with its length, and a field that is not there unlike an empty one.
            digest.update(struct.pack("<q", -1 if field is None else len(field)))
            digest.update(field or b"")
    return digest.digest()


def _bytes_of(field: object) -> bytes | None:
    if field is None:
        return None
    return field.encode() if isinstance(field, str) else bytes(field)  # type: ignore[call-overload]


def _record_too_large(index: int, size: int, bound: int) -> Refusal:
    message = f"records[{index}]: data and meta have {size} bytes, at most {bound} are allowed"
    return Refusal(RECORD_TOO_LARGE, message, {"field": f"records[{index}]", "max": bound})


def _too_long(field: str, index: int, size: int, bound: int) -> Refusal:
    message = f"records[{index}].{field}: has {size} bytes, at most {bound} are allowed"
    return Refusal(INVALID_REQUEST, message, {"field": f"records[{index}].{field}", "max": bound})
