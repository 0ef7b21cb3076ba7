"""One stream of an HTTP/2 connection: a request as received, and its response as sent.

A body is held as received until it is complete, and is decompressed when the request starts. A response to
a stream that was reset is discarded, but counts as answered.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from shared.contract.errors import INVALID_REQUEST, Refusal
from shared.http.body import BodySink, GzipSink, PlainSink, SharedSink
from shared.http.cors import PREFLIGHT, is_allowed
from shared.http.gzip_answer import COMPRESSED_BYTES_MIN, accepts_gzip, compress, gzip_fields
from shared.http.head import NO_FIELDS
from shared.runtime.body_memory import BodyBuffer, SharedBody
from topicsd.http.http2.head import Head, Header, answer_head
from topicsd.http.http2.sender import Outgoing
from topicsd.service.call import CONTENT_TYPE, JSON_FIELD, NEWLINE, Call
from topicsd.service.records.line_upload import LineUpload
from topicsd.stream.stream import Stream, noop

# A stream holds at most this much for a client that does not read, and resumes below the other bound.
PAUSED_BYTES: Final = 64 << 10
READY_BYTES: Final = 16 << 10


class ExchangeConnection(Protocol):
    """The interface of a connection to its exchanges."""

    @property
    def address(self) -> str: ...

    def send_head(self, exchange: Exchange, headers: list[Header], ends: bool) -> None: ...

    def has_more(self, exchange: Exchange) -> None:
        """Schedule an exchange that has data to send, or its end."""
        ...

    def on_response(self, exchange: Exchange, is_bodyless: bool) -> None:
        """Note that the head of the response is sent; `is_bodyless` says that there is no body."""
        ...


class SunkBody:
    """A body whose sink takes it as it arrives."""

    def __init__(self, sink: BodySink) -> None:
        self._sink = sink
        self._size = 0
        self.refusal: Refusal | None = None

    def tell(self) -> int:
        return self._size

    def write(self, data: bytes) -> None:
        self._size += len(data)
        self.refusal = self.refusal or self._sink.write(data)

    def finish(self) -> bytes | SharedBody | Refusal:
        return self.refusal or self._sink.finish()


class Exchange(Outgoing):
    """One request and its response; also the output of a response without an end (`Stream`)."""

    __slots__ = (
        "body",
        "call",
        "connection",
        "has_requested_room",
        "has_shared_body",
        "head",
        "is_lost",
        "is_paused",
        "is_stream",
        "is_waiting_for_room",
        "is_whole",
        "on_lost",
        "on_ready",
        "since",
        "unreturned",
        "upload",
        "working_bytes",
    )

    def __init__(
        self,
        connection: ExchangeConnection,
        stream_id: int,
        head: Head | None,
        now: float,
        has_shared_body: bool = False,
        sink: BodySink | None = None,
    ) -> None:
        """Create an exchange. `head` is None for a request that is refused.

        `has_shared_body` is for an append that another worker executes. A body with a `sink` is read as it
        arrives.
        """
        super().__init__(stream_id)
        self.connection = connection
        self.head = head
        self.has_shared_body = has_shared_body
        is_compressed = head is not None and head.fields.content_encoding == "gzip"
        self.upload = sink if isinstance(sink, LineUpload) else None
        self.unreturned = 0
        """Bytes of the body of an upload that its window does not allow again yet."""
        self.body: io.BytesIO | BodyBuffer | SunkBody
        if sink is not None:
            self.body = SunkBody(sink)
        elif has_shared_body and not is_compressed:
            self.body = BodyBuffer()
        else:
            self.body = io.BytesIO()
        self.since = now
        """When the wait for the body began."""
        self.is_waiting_for_room = self.has_requested_room = False
        self.working_bytes = 0
        """Bytes of the body that the handler has."""
        self.is_whole = False
        self.is_lost = False
        self.is_stream = False
        self.is_paused = False
        self.call: H2Call | None = None
        self.on_ready: Callable[[], None] = noop
        self.on_lost: Callable[[], None] = noop

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the body that are held until the request starts."""
        return 0 if self.upload is not None else self.body.tell()

    def receive(self, data: bytes) -> Refusal | None:
        self.body.write(data)
        return self.body.refusal if isinstance(self.body, SunkBody) else None

    def make_call(self, now: float, body_bytes_max: int) -> H2Call | Refusal:
        """Make the call, once the body is complete."""
        head = self.head
        assert head is not None
        assert self.call is None
        buffer, self.body = self.body, io.BytesIO()
        size = buffer.tell()
        body = buffer.getvalue() if isinstance(buffer, io.BytesIO) else buffer.finish()
        if isinstance(body, Refusal):
            return body
        if head.fields.content_length not in (None, size):
            # The library checks this only where there is a body that ends with a data frame.
            return Refusal(INVALID_REQUEST, "content-length: must be the length of the body")
        is_inflated = isinstance(buffer, SunkBody)
        if head.fields.content_encoding == "gzip" and not is_inflated and isinstance(body, bytes) and body:
            plain = SharedSink(body_bytes_max) if self.has_shared_body else PlainSink(body_bytes_max)
            sink = GzipSink(plain)
            inflated = sink.write(body) or sink.finish()
            if isinstance(inflated, Refusal):
                return inflated
            body = inflated
        line = head.known_line.line
        plain_body, shared_body = (body, None) if isinstance(body, bytes) else (b"", body)
        call = H2Call(
            "", line.query, head.fields, plain_body, now, is_head=line.method == "HEAD", exchange=self
        )
        call.shared_body = shared_body
        self.call = call
        self.working_bytes = len(body)
        return call

    def refuse(self, refusal: Refusal, now: float) -> None:
        """Refuse the request, whatever part of it was received."""
        assert self.call is None
        self.body = io.BytesIO()
        head = self.head
        fields = NO_FIELDS if head is None else head.fields
        is_head = head is not None and head.known_line.line.method == "HEAD"
        self.call = H2Call("", "", fields, b"", now, is_head=is_head, exchange=self)
        self.call.refuse(refusal)

    def discard(self) -> None:
        """Discard the exchange: the client reset the stream, or the connection is lost."""
        self.is_lost = True
        self.body = io.BytesIO()
        if self.upload is not None and self.call is None:
            self.upload.cancel()
        self.cancel_wait()
        on_lost, self.on_lost, self.on_ready = self.on_lost, noop, noop
        on_lost()

    def cancel_wait(self) -> None:
        """Cancel the wait of a long poll; work in progress is finished."""
        if self.call is not None:
            self.call.cancel()

    # -- a stream ------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        if not self.is_lost:
            self.add(data)
            self.is_paused = self.unsent >= PAUSED_BYTES
            self.connection.has_more(self)

    def close(self) -> None:
        self.on_lost = self.on_ready = noop
        if not self.is_lost:
            self.is_ending = True
            self.connection.has_more(self)

    def on_data_sent(self) -> None:
        if self.is_paused and self.unsent <= READY_BYTES:
            self.is_paused = False
            self.on_ready()


class H2Call(Call, kw_only=True, eq=False):
    """A call on an HTTP/2 stream. It waits for no other call, and `is_last` has no effect."""

    exchange: Exchange

    @property
    def address(self) -> str:
        return self.exchange.connection.address

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        exchange = self.exchange
        fields += self.fields.cors
        if CONTENT_TYPE not in fields:
            parts, length, fields = [*parts, NEWLINE], length + 1, JSON_FIELD + fields
        if length >= COMPRESSED_BYTES_MIN and accepts_gzip(self.fields.accept_encoding):
            parts, fields = [compress(parts)], gzip_fields(fields)
            length = len(parts[0])
        self._release()
        is_bodyless = self.is_head or not length
        if not exchange.is_lost:
            exchange.connection.send_head(exchange, answer_head(status, fields, length), ends=is_bodyless)
            for part in () if is_bodyless else parts:
                exchange.add(part)
            exchange.is_ending = True
        exchange.connection.on_response(exchange, is_bodyless)

    def refuse(self, refusal: Refusal) -> None:
        head = self.exchange.head
        is_options = head is not None and head.known_line.line.method == "OPTIONS"
        if is_options and is_allowed(self.fields.cors):
            self.send_parts([], 0, 200, PREFLIGHT)
        else:
            super().refuse(refusal)

    def open_stream(self, fields: bytes) -> Stream:
        exchange = self.exchange
        exchange.is_stream = True
        self._release()
        if not exchange.is_lost:
            head = answer_head(200, fields + self.fields.cors, None)
            exchange.connection.send_head(exchange, head, ends=False)
        exchange.connection.on_response(exchange, is_bodyless=False)
        return exchange

    def _release(self) -> None:
        self.body, self.shared_body = b"", None
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            on_answer()
