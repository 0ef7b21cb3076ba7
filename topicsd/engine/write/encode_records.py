"""The framing of the records of one request, ready to join a batch.

Framing changes no state: it uses the seqs that the request gets if it is accepted. It also checks sizes
against the limits, so that each record is visited once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import xxhash

from shared.contract.errors import RECORD_TOO_LARGE, Refusal, invalid
from shared.settings.settings import Settings
from shared.text.message import size_text
from topicsd.engine.requests import NO_META, NewRecord
from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_BYTES,
    FLAG_DURABLE,
    FLAG_META,
    FLAG_NODE,
    FLAG_TAG,
    LEN_BYTES,
    FrameType,
    pack_body_head,
    pack_kind,
    pack_plain_head,
    pack_u32,
    pack_u64,
    payload_with_meta,
    xxh3,
)

PARTS_A_FRAME = 3
# Data of at least this size is not copied: a copy would double the memory of a large write.
UNCOPIED_BYTES = 2048

# A plain integer: packing an enum member costs as much as the rest of the header.
_APPEND = int(FrameType.APPEND)


Encoded = tuple[list[bytes], list[int], int, list[bytes] | None]
"""The parts of the frames (three each), the length of each, the total length, and the tags if there are any.

A plain tuple: creating an object would cost as much as framing a record.
"""


def whole_frames(parts: list[bytes]) -> list[bytes]:
    return [b"".join(parts[at : at + PARTS_A_FRAME]) for at in range(0, len(parts), PARTS_A_FRAME)]


def encode_records(
    records: Sequence[NewRecord],
    default_node: str | None,
    topic_id: int,
    first_seq: int,
    ts: int,
    is_durable: bool,
    limits: Settings,
) -> Encoded | Refusal:
    parts: list[bytes] = []
    lengths: list[int] = []
    tags: list[bytes] | None = None
    total = 0
    seq = first_seq
    class_flag = FLAG_DURABLE if is_durable else 0
    kind = pack_kind(_APPEND, class_flag, topic_id)
    max_bytes = limits.max_record_bytes
    for record in records:
        payload: bytes = record.data  # A `Raw` is joined without a copy.
        size = len(payload)
        tag = tail = b""
        if not (record.tag or record.node or default_node or record.meta is not NO_META or record.is_bytes):
            # The common case: a record with JSON data only.
            if size > max_bytes:
                return _refuse_size(seq - first_seq, size, max_bytes)
            body = pack_plain_head(kind, seq, ts, size)
        else:
            if record.tag:
                tag = record.tag.encode()
                if tags is None:
                    tags = [b""] * len(lengths)
            node_text = record.node or default_node
            node = node_text.encode() if node_text else b""
            meta = bytes(record.meta)
            if node or meta or len(tag) > limits.max_tag_bytes or size > max_bytes:
                refusal = refuse_lengths(seq - first_seq, size, len(meta), tag, node, limits)
                if refusal is not None:
                    return refusal
            flags = class_flag | (FLAG_TAG if tag else 0) | (FLAG_NODE if node else 0)
            if record.is_bytes:
                flags |= FLAG_BYTES
            if meta:
                tail = payload_with_meta(b"", meta)
                flags |= FLAG_META
            whole = size + len(tail)
            body = pack_body_head(_APPEND, flags, topic_id, seq, ts, len(node), len(tag), whole) + node + tag
        if tags is not None:
            tags.append(tag)
        if size < UNCOPIED_BYTES:
            body += payload
            if tail:
                body += tail
            # Three parts: the checksum is computed over one byte string, and the batch is joined only once.
            length = len(body) + CHECKSUM_BYTES
            parts += (pack_u32(length), body, pack_u64(xxh3(body)))
        else:
            length = len(body) + size + len(tail) + CHECKSUM_BYTES
            digest = xxhash.xxh3_64(body)
            digest.update(payload)
            digest.update(tail)
            parts += (pack_u32(length) + body, payload, tail + pack_u64(digest.intdigest()))
        length += LEN_BYTES
        lengths.append(length)
        total += length
        seq += 1
    return parts, lengths, total, tags


def refuse_lengths(
    index: int, data_bytes: int, meta_bytes: int, tag: bytes, node: bytes, limits: Settings
) -> Refusal | None:
    if meta_bytes > limits.max_meta_bytes:
        return _refuse_field(index, "meta", meta_bytes, limits.max_meta_bytes)
    if len(tag) > limits.max_tag_bytes:
        return _refuse_field(index, "tag", len(tag), limits.max_tag_bytes)
    if len(node) > limits.max_node_bytes:
        return _refuse_field(index, "node", len(node), limits.max_node_bytes)
    if data_bytes + meta_bytes > limits.max_record_bytes:
        return _refuse_size(index, data_bytes + meta_bytes, limits.max_record_bytes)
    return None


def _refuse_field(index: int, field: str, size: int, bound: int) -> Refusal:
    rule = f"must be at most {size_text(bound)}, got {size_text(size)}"
    return invalid(f"records[{index}].{field}", rule, bound)


def _refuse_size(index: int, size: int, bound: int) -> Refusal:
    message = f"records[{index}]: data and meta must be at most {size_text(bound)} together, got {size} bytes"
    return Refusal(RECORD_TOO_LARGE, message, {"field": f"records[{index}]", "max": bound})


def records_digest(records: list[NewRecord], node: str | None) -> bytes:
    """Return the digest that identifies a repeated write.

    It covers the records as received, without the envelope.
    """
    fields: list[bytes | None] = []
    bytes_at: list[int] = []
    for record in records:
        if record.is_bytes:
            bytes_at.append(len(fields))
        fields += (
            record.data,
            None if record.meta is NO_META else record.meta,
            _bytes_of(record.tag),
            _bytes_of(record.node or node),
        )
    # The lengths are part of the digest, so that no byte can move to the next field, and None differs from
    # empty.
    sizes = array("q", [-1 if field is None else len(field) for field in fields])
    for at in bytes_at:
        # Bytes differ from the same bytes as JSON.
        sizes[at] = -2 - sizes[at]
    digest = xxhash.xxh3_128(sizes.tobytes())
    for field in fields:
        if field:
            digest.update(field)
    return digest.digest()


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
