r"""Server-sent events as bytes. The events of a chunk are rendered once for all streams.

An event is ``id:``, which is the whole cursor of the stream after it, ``event:`` and ``data:``. Data that
contains line ends, as JSON may between two tokens, becomes several ``data:`` lines, which a client joins
again.

    >>> event(b"caught-up", b'{"topic":"a","head_seq":3}')
    b'event: caught-up\ndata: {"topic":"a","head_seq":3}\n\n'
"""

from __future__ import annotations

from typing import Final

import msgspec

from topicsd.engine.requests import Tombstone
from topicsd.stream.chunks import Piece
from topicsd.stream.cursor_token import cursor_token

OPENING: Final = b"retry: 2000\n\n"

_encode = msgspec.json.Encoder().encode


def event(name: bytes, data: bytes) -> bytes:
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"event: %b\ndata: %b\n\n" % (name, data)


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


def events_of(piece: Piece) -> list[tuple[int, bytes]]:
    """Return the events of a chunk, each with the cursor after it."""
    if piece.sse is None:
        piece.sse = _events(piece)
    return piece.sse


def alone(piece: Piece) -> bytes:
    """Return all events of a chunk with their ids, for streams that follow this topic only."""
    if piece.sse_alone is None:
        names = [piece.topic]
        piece.sse_alone = b"".join(
            b"id: %b\n%b" % (cursor_token(names, [seq]), text) for seq, text in events_of(piece)
        )
    return piece.sse_alone


def _events(piece: Piece) -> list[tuple[int, bytes]]:
    events = []
    tombstone = piece.tombstone
    if tombstone is not None:
        lost = event(b"tombstone", _encode(told_of(tombstone, piece)))
        events.append((piece.records_from, lost))
    if piece.count:
        data = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
            piece.topic.encode(),
            piece.records,
            piece.records_from,
            piece.to_seq,
            piece.head_seq,
        )
        events.append((piece.to_seq, event(b"record", data)))
    if piece.is_at_head and not piece.is_empty:
        events.append((piece.to_seq, caught_up(piece)))
    return events


def told_of(tombstone: Tombstone, piece: Piece) -> dict[str, object]:
    """Return the fields that describe lost records, the same in every protocol."""
    return {
        "topic": piece.topic,
        "reason": tombstone.reason,
        "gap_from": tombstone.gap_from,
        "gap_to": tombstone.gap_to,
        "earliest_seq": tombstone.earliest_seq,
        "head_seq": tombstone.head_seq,
    }


def caught_up(piece: Piece) -> bytes:
    return event(b"caught-up", b'{"topic":"%b","head_seq":%d}' % (piece.topic.encode(), piece.head_seq))


def topic_deleted(topic: str, head_seq: int) -> bytes:
    return event(b"topic-deleted", _encode({"topic": topic, "head_seq": head_seq, "reason": "deleted"}))


def error(
    code: str,
    message: str,
    topics: list[str] | None = None,
    retry_after_ms: int | None = None,
    detail: dict[str, object] | None = None,
) -> bytes:
    told: dict[str, object] = {"code": code, "error": message}
    if retry_after_ms is not None:
        told["retry_after_ms"] = retry_after_ms
    if topics is not None:
        told["topics"] = topics
    if detail is not None:
        told["detail"] = detail
    return event(b"error", _encode(told))
