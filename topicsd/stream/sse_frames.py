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
from topicsd.stream.chunks import Chunk
from topicsd.stream.cursor_token import cursor_token

OPENING: Final = b"retry: 2000\n\n"

encode_fields = msgspec.json.Encoder().encode


def event(name: bytes, data: bytes) -> bytes:
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"event: %b\ndata: %b\n\n" % (name, data)


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


def events_of(chunk: Chunk) -> list[tuple[int, bytes]]:
    """Return the events of a chunk, each with the cursor after it."""
    if chunk.sse is None:
        chunk.sse = _events(chunk)
    return chunk.sse


def events_with_ids(chunk: Chunk) -> bytes:
    """Return all events of a chunk with their ids, for streams that follow this topic only."""
    if chunk.sse_with_ids is None:
        names = [chunk.topic]
        chunk.sse_with_ids = b"".join(
            b"id: %b\n%b" % (cursor_token(names, [seq]), text) for seq, text in events_of(chunk)
        )
    return chunk.sse_with_ids


def _events(chunk: Chunk) -> list[tuple[int, bytes]]:
    events = []
    tombstone = chunk.tombstone
    if tombstone is not None:
        text = event(b"tombstone", encode_fields(tombstone_fields(tombstone, chunk)))
        events.append((chunk.records_from, text))
    if chunk.count:
        data = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
            chunk.topic.encode(),
            chunk.records,
            chunk.records_from,
            chunk.to_seq,
            chunk.head_seq,
        )
        events.append((chunk.to_seq, event(b"record", data)))
    if chunk.is_at_head and not chunk.is_empty:
        events.append((chunk.to_seq, caught_up(chunk)))
    return events


def tombstone_fields(tombstone: Tombstone, chunk: Chunk) -> dict[str, object]:
    """Return the fields that describe lost records, the same in every protocol."""
    return {
        "topic": chunk.topic,
        "reason": tombstone.reason,
        "gap_from": tombstone.gap_from,
        "gap_to": tombstone.gap_to,
        "earliest_seq": tombstone.earliest_seq,
        "head_seq": tombstone.head_seq,
    }


def caught_up(chunk: Chunk) -> bytes:
    return event(b"caught-up", b'{"topic":"%b","head_seq":%d}' % (chunk.topic.encode(), chunk.head_seq))


def topic_deleted(topic: str, head_seq: int) -> bytes:
    return event(b"topic-deleted", encode_fields({"topic": topic, "head_seq": head_seq, "reason": "deleted"}))


def error(
    code: str,
    message: str,
    topics: list[str] | None = None,
    retry_after_ms: int | None = None,
    detail: dict[str, object] | None = None,
) -> bytes:
    return event(b"error", encode_fields(error_fields(code, message, topics, retry_after_ms, detail)))


def error_fields(
    code: str,
    message: str,
    topics: list[str] | None = None,
    retry_after_ms: int | None = None,
    detail: dict[str, object] | None = None,
) -> dict[str, object]:
    fields: dict[str, object] = {"code": code, "error": message}
    if retry_after_ms is not None:
        fields["retry_after_ms"] = retry_after_ms
    if topics is not None:
        fields["topics"] = topics
    if detail is not None:
        fields["detail"] = detail
    return fields
