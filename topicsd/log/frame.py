"""The frame format: the bytes of one entry of the log, the same in a WAL file and in a segment.

All integers little-endian::

    off  size  field
      0    4   frame_len   bytes after this field
      4    1   type        one of `FrameType`
      5    1   flags       1 has_tag  2 has_node  4 durable  8 has_meta  16 bytes
      6    8   topic_id
     14    8   seq         0 for control frames
     22    8   ts          ms; non-decreasing within a topic
     30    2   node_len
     32    2   tag_len
     34    4   data_len    the payload: data, and with has_meta the meta and its length as u32
     38    N   node, then tag, then payload
      .    8   xxh3_64 over bytes [4 .. here)

The payload of an Append is the JSON of `data` exactly as it was received; with the flag `bytes`, `data` is
any bytes, as they are. A program that does not know a flag reports the frame as damaged, so it never takes
bytes for JSON. A worked example, an append of
``{"n":1}`` with the tag ``a`` as seq 3 of topic 7:

    >>> frame = encode_frame(FrameType.APPEND, topic_id=7, seq=3, ts=1000, tag=b"a", payload=b'{"n":1}')
    >>> frame.hex(" ", 2)
    '3200 0000 0101 0700 0000 0000 0000 0300 0000 0000 0000 e803 0000 0000 0000 0000 0100 0700 0000 \
617b 226e 223a 317d ed6b 6f38 93ee 932b'
    >>> parse_frame(frame, 0, len(frame)).payload
    b'{"n":1}'

Every length is checked against the bytes available before any byte after it is read: a frame is either
whole and intact, or parsing raises a `FrameDamage` with the offset. How to change the format: a new frame
type needs no new version (an old reader refuses unknown types, and the FileHeader's version says since when
a type may occur); a change of this layout is a new file format version, see `file_header.py`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import msgspec
import xxhash


class FrameType(IntEnum):
    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    FORWARD_CREATE = 4
    FORWARD_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    IDEMPOTENCY = 12
    FORWARD_CURSOR = 13
    BATCH_END = 14
    FILE_HEADER = 15
    WATCH_SESSION = 16
    CURSOR = 17
    LOST_RANGE = 18
    PRODUCER = 19
    ADOPT = 20
    OWNERSHIP = 21
    DEPARTED = 22
    SCHEDULE = 23


FLAG_TAG = 1
FLAG_NODE = 2
FLAG_DURABLE = 4
FLAG_META = 8
FLAG_BYTES = 16
FLAGS_KNOWN = FLAG_TAG | FLAG_NODE | FLAG_DURABLE | FLAG_META | FLAG_BYTES

HEADER = struct.Struct("<IBBQQQHHI")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

LEN_BYTES = 4
HEADER_BYTES = HEADER.size
CHECKSUM_BYTES = 8
# The part of frame_len that is not node, tag or payload.
FRAME_LEN_MIN = HEADER_BYTES - LEN_BYTES + CHECKSUM_BYTES
# No setting allows a larger payload; this is the format's own bound on any length that it reads.
PAYLOAD_BYTES_MAX = (64 << 20) + (1 << 20) + U32.size
FRAME_LEN_MAX = FRAME_LEN_MIN + 2 * 0xFFFF + PAYLOAD_BYTES_MAX

KNOWN_TYPES = frozenset(int(frame_type) for frame_type in FrameType)

# The header without its length field: the checksum begins here.
pack_body_head = struct.Struct("<BBQQQHHI").pack
# The same of a frame without node and tag, with type, flags and topic as one field: packs faster.
pack_kind = struct.Struct("<BBQ").pack
pack_plain_head = struct.Struct("<10sQQ4xI").pack
pack_u32 = U32.pack
pack_u64 = U64.pack
xxh3 = xxhash.xxh3_64_intdigest

assert HEADER_BYTES == 38
assert FRAME_LEN_MAX < 1 << 32


class FrameDamage(Exception):
    """Bytes at `offset` that are not a frame; `what` gives the reason."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"at {offset}: {what}")
        self.offset = offset
        self.what = what


class LogFrame(NamedTuple):
    """One parsed frame; `size` counts all its bytes, the length field included."""

    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    payload: bytes
    size: int


class Record(msgspec.Struct, gc=False, frozen=True):
    """The content of one Append frame, byte for byte as received; `data` is JSON unless `is_bytes`."""

    seq: int
    ts: int
    data: bytes
    tag: bytes = b""
    node: bytes = b""
    meta: bytes | None = None
    is_bytes: bool = False


def encode_frame(
    frame_type: int,
    *,
    topic_id: int = 0,
    seq: int = 0,
    ts: int = 0,
    node: bytes = b"",
    tag: bytes = b"",
    payload: bytes = b"",
    durable: bool = False,
    has_meta: bool = False,
    is_bytes: bool = False,
) -> bytes:
    """Encode one frame; `payload` already has the form of the flags (see `payload_with_meta`)."""
    flags = (FLAG_TAG if tag else 0) | (FLAG_NODE if node else 0)
    flags |= (FLAG_DURABLE if durable else 0) | (FLAG_META if has_meta else 0)
    flags |= FLAG_BYTES if is_bytes else 0
    body = pack_body_head(frame_type, flags, topic_id, seq, ts, len(node), len(tag), len(payload))
    body += node + tag + payload
    return b"%b%b%b" % (pack_u32(len(body) + CHECKSUM_BYTES), body, pack_u64(xxh3(body)))


def payload_with_meta(data: bytes, meta: bytes) -> bytes:
    return b"%b%b%b" % (data, meta, pack_u32(len(meta)))


def parse_frame(buffer: bytes | memoryview, at: int, end: int) -> LogFrame:
    """Parse and check the frame that begins at `at` and must not extend past `end`."""
    if end - at < LEN_BYTES:
        raise FrameDamage(at, f"{end - at} bytes are left, too few for a frame length")
    (frame_len,) = U32.unpack_from(buffer, at)
    if frame_len < FRAME_LEN_MIN:
        raise FrameDamage(at, f"frame length {frame_len} is below the minimum of {FRAME_LEN_MIN}")
    if frame_len > FRAME_LEN_MAX:
        raise FrameDamage(at, f"frame length {frame_len} is above the maximum of {FRAME_LEN_MAX}")
    if frame_len > end - at - LEN_BYTES:
        raise FrameDamage(at, f"frame length {frame_len} exceeds the remaining {end - at - LEN_BYTES} bytes")
    stop = at + LEN_BYTES + frame_len
    checksum_at = stop - CHECKSUM_BYTES
    (stored,) = U64.unpack_from(buffer, checksum_at)
    if stored != xxh3(memoryview(buffer)[at + LEN_BYTES : checksum_at]):
        raise FrameDamage(at, "the checksum does not match the bytes")
    _, frame_type, flags, topic_id, seq, ts, node_len, tag_len, data_len = HEADER.unpack_from(buffer, at)
    if FRAME_LEN_MIN + node_len + tag_len + data_len != frame_len:
        raise FrameDamage(at, f"the parts do not add up to the frame length {frame_len}")
    if frame_type not in KNOWN_TYPES:
        raise FrameDamage(at, f"frame type {frame_type} is unknown to this version")
    if flags & ~FLAGS_KNOWN:
        raise FrameDamage(at, f"frame flags {flags:#x} are unknown to this version")
    tag_at = at + HEADER_BYTES + node_len
    data_at = tag_at + tag_len
    return LogFrame(
        frame_type,
        flags,
        topic_id,
        seq,
        ts,
        bytes(buffer[at + HEADER_BYTES : tag_at]),
        bytes(buffer[tag_at:data_at]),
        bytes(buffer[data_at:checksum_at]),
        LEN_BYTES + frame_len,
    )


def damaged_frame_sizes(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the size of a damaged frame by its length, and by the lengths of its parts.

    Whole frames may be inside a record of bytes. So a search after a damaged frame first looks where it ends.
    """
    frame_len, _, _, _, _, _, node_len, tag_len, data_len = HEADER.unpack_from(buffer, at)
    return LEN_BYTES + frame_len, LEN_BYTES + FRAME_LEN_MIN + node_len + tag_len + data_len


def record_of(frame: LogFrame) -> Record:
    """Return the record that an Append frame holds."""
    assert frame.type == FrameType.APPEND
    data, meta = split_payload(frame.payload, frame.flags)
    return Record(frame.seq, frame.ts, data, frame.tag, frame.node, meta, frame.flags & FLAG_BYTES != 0)


def split_payload(payload: bytes, flags: int) -> tuple[bytes, bytes | None]:
    """Return the `data` and the `meta` of an Append frame's payload."""
    if not flags & FLAG_META:
        return payload, None
    if len(payload) < U32.size:
        raise FrameDamage(0, f"a payload of {len(payload)} bytes is too short for a meta length")
    (meta_len,) = U32.unpack_from(payload, len(payload) - U32.size)
    data_len = len(payload) - U32.size - meta_len
    if data_len < 0:
        raise FrameDamage(0, f"meta length {meta_len} is longer than its payload")
    return payload[:data_len], payload[data_len : data_len + meta_len]
