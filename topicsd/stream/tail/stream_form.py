r"""The forms of a topic stream: server-sent events, or one JSON object in each line.

In the second form a record is a line as a read renders it; with several topics it begins with `$topic`. Line
ends within a record, which JSON allows between two tokens, become blanks. Everything else is an object that
begins with `$event`, which no record has: an event with the fields of the same server-sent event and the
stream's id.

    >>> LINES.event(b"caught-up", b'{"topic":"a","head_seq":3}')
    b'{"$event":"caught-up","topic":"a","head_seq":3}\n'
    >>> LINES.with_id(_, b"eyJhIjozfQ")
    b'{"$event":"caught-up","topic":"a","head_seq":3,"id":"eyJhIjozfQ"}\n'
    >>> LINES.with_id(b'{"$seq":3,"$ts":5,"data":1}\n', b"eyJhIjozfQ")
    b'{"$seq":3,"$ts":5,"data":1}\n'
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from topicsd.stream import event_stream, sse_frames
from topicsd.stream.chunks import Chunk, split_records

_EVENT: Final = b'{"$event":'


class CursorText(NamedTuple):
    """Bytes without an id, and the seq up to which the topic is delivered after them."""

    seq: int
    text: bytes


class StreamForm(Protocol):
    @property
    def fields(self) -> bytes:
        """Return the fields of the response head."""
        ...

    @property
    def opening(self) -> bytes: ...

    def event(self, name: bytes, data: bytes) -> bytes:
        """Return an event without its id; `data` is a JSON object."""
        ...

    def heartbeat(self, now_ms: int, stream_id: bytes) -> bytes: ...

    def with_id(self, text: bytes, stream_id: bytes) -> bytes: ...

    def render(self, chunk: Chunk, is_first_at_head: bool) -> list[CursorText]:
        """Return a chunk; `is_first_at_head` when it reports for the first time that the head is reached."""
        ...


class EventForm:
    """Server-sent events, as a watch session has them."""

    fields: Final = event_stream.FIELDS
    opening: Final = sse_frames.OPENING

    def event(self, name: bytes, data: bytes) -> bytes:
        return sse_frames.event(name, data)

    def heartbeat(self, now_ms: int, stream_id: bytes) -> bytes:
        # A comment; a client keeps the id of a block without data.
        return b"%bid: %b\n\n" % (sse_frames.heartbeat(now_ms)[:-1], stream_id)

    def with_id(self, text: bytes, stream_id: bytes) -> bytes:
        return b"id: %b\n%b" % (stream_id, text)

    def render(self, chunk: Chunk, is_first_at_head: bool) -> list[CursorText]:
        events = [CursorText(*one) for one in sse_frames.events_of(chunk)]
        if is_first_at_head and not events:
            return [CursorText(chunk.to_seq, sse_frames.caught_up(chunk))]
        return events


class LineForm:
    """Lines of JSON. With `has_topics` each record has the name of its topic."""

    fields: Final = event_stream.FIELDS.replace(b"text/event-stream", b"application/x-ndjson")
    opening: Final = b""

    def __init__(self, *, has_topics: bool) -> None:
        self._has_topics = has_topics

    def event(self, name: bytes, data: bytes) -> bytes:
        return b'%b"%b",%b\n' % (_EVENT, name, data[1:])

    def heartbeat(self, now_ms: int, stream_id: bytes) -> bytes:
        return self.with_id(self.event(b"heartbeat", b'{"time":%d}' % now_ms), stream_id)

    def with_id(self, text: bytes, stream_id: bytes) -> bytes:
        return b'%b,"id":"%b"}\n' % (text[:-2], stream_id) if text.startswith(_EVENT) else text

    def render(self, chunk: Chunk, is_first_at_head: bool) -> list[CursorText]:
        texts = []
        if chunk.tombstone is not None:
            data = sse_frames.encode_fields(sse_frames.tombstone_fields(chunk.tombstone, chunk))
            texts.append(CursorText(chunk.records_from, self.event(b"tombstone", data)))
        if chunk.count:
            texts.append(CursorText(chunk.to_seq, self._records(chunk)))
        if is_first_at_head:
            data = b'{"topic":"%b","head_seq":%d}' % (chunk.topic.encode(), chunk.head_seq)
            texts.append(CursorText(chunk.to_seq, self.event(b"caught-up", data)))
        return texts

    def _records(self, chunk: Chunk) -> bytes:
        if chunk.lines is None:
            chunk.lines = [
                one.replace(b"\r", b" ").replace(b"\n", b" ") for one in split_records(chunk.records)
            ]
        lines = chunk.lines
        if self._has_topics:
            beginning = b'{"$topic":"%b",' % chunk.topic.encode()
            lines = [beginning + line[1:] for line in lines]
        return b"\n".join(lines) + b"\n"


EVENTS: Final = EventForm()
LINES: Final = LineForm(has_topics=False)
LINES_WITH_TOPICS: Final = LineForm(has_topics=True)
