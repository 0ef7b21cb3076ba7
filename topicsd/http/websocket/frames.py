r"""Server messages as WebSocket frames. A chunk is rendered once for all connections that get it.

A frame of the server is complete and never masked::

    off  size   field
      0    1    0x80 and what it is: 1 text, 8 close, 9 ping, 10 pong
      1    1    the length up to 125; 126 or 127: it is in the next two or eight bytes
      2  0|2|8  the length, big-endian
           L    payload; of a close two bytes of code, big-endian, and a text

    >>> message(b"pong", request_id=b'"a"')
    b'\x81\x1e{"op":"pong","request_id":"a"}'
    >>> frame(TEXT, bytes(200))[:4].hex(), frame(TEXT, bytes(70_000))[:10].hex()
    ('817e00c8', '817f0000000000011170')
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shared.contract.errors import Refusal
from shared.http.answer import error_of
from topicsd.stream.chunks import Chunk
from topicsd.stream.sse_frames import tombstone_fields

TEXT: Final = 0x81
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
UNSUPPORTED_DATA: Final = 1003
POLICY: Final = 1008
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013

# A control frame has at most 125 bytes, and a close begins with a code of two.
_REASON_BYTES_MAX: Final = 123
_SHORT: Final = struct.Struct("!BB")
_MIDDLE: Final = struct.Struct("!BBH")
_LONG: Final = struct.Struct("!BBQ")
_encode = msgspec.json.Encoder().encode


def frame(first: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return _SHORT.pack(first, size) + payload
    if size < 1 << 16:
        return _MIDDLE.pack(first, 126, size) + payload
    return _LONG.pack(first, 127, size) + payload


def close_frame(code: int, reason: str) -> bytes:
    text = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    return frame(CLOSE, code.to_bytes(2, "big") + text.encode())


def message(kind: bytes, body: bytes = b"{}", request_id: bytes = b"") -> bytes:
    """Return a message frame: the JSON object `body` with `op` and `request_id` added in front."""
    head = b'{"op":"%b"' % kind
    if request_id:
        head += b',"request_id":%b' % request_id
    return frame(TEXT, head + (b"," if len(body) > 2 else b"") + body[1:])


def json_message(kind: bytes, fields: object, request_id: bytes = b"") -> bytes:
    return message(kind, _encode(fields), request_id)


def error_message(refusal: Refusal, request_id: bytes = b"", topics: list[str] | None = None) -> bytes:
    """Return an error message with the same fields as an HTTP error body."""
    error = error_of(refusal)
    if topics is not None:
        error["topics"] = topics
    return json_message(b"error", error, request_id)


# -- messages of a chunk -----------------------------------------------------------------------------------


def frames_of(chunk: Chunk) -> bytes:
    """Return the messages of a chunk, empty if it has nothing to report."""
    if chunk.ws is None:
        chunk.ws = _frames(chunk)
    return chunk.ws


def caught_up(chunk: Chunk) -> bytes:
    body = b'{"topic":"%b","epoch":%d,"head_seq":%d}' % (chunk.topic.encode(), chunk.epoch, chunk.head_seq)
    return message(b"caught_up", body)


def topic_deleted(topic: str, head_seq: int) -> bytes:
    return json_message(b"topic_deleted", {"topic": topic, "head_seq": head_seq, "reason": "deleted"})


def _frames(chunk: Chunk) -> bytes:
    frames = []
    tombstone = chunk.tombstone
    if tombstone is not None:
        range_fields = {"epoch": chunk.epoch, "to_seq": chunk.records_from}
        frames.append(json_message(b"tombstone", tombstone_fields(tombstone, chunk) | range_fields))
    if chunk.count:
        template = (
            b'{"op":"record","topic":"%b","epoch":%d,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}'
        )
        numbers = (chunk.epoch, chunk.records_from, chunk.to_seq, chunk.head_seq)
        frames.append(frame(TEXT, template % (chunk.topic.encode(), *numbers, chunk.records)))
    if chunk.is_at_head and not chunk.is_empty:
        frames.append(caught_up(chunk))
    return b"".join(frames)
