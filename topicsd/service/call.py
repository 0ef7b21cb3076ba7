"""A call: one request on its way to its response, from any connection or link.

A handler receives a call, checks it, and answers it once: with `send`, `send_parts` or `refuse`, or with
`fail` after an unexpected error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from shared.contract.errors import INTERNAL, RELOCATED, Refusal
from shared.http.answer import CLOSE, REASONS
from shared.http.cors import PREFLIGHT, is_allowed
from shared.http.gzip_answer import COMPRESSED_BYTES_MIN, accepts_gzip, compress, gzip_fields
from shared.http.head import Fields
from shared.runtime.body_memory import SharedBody
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import Background, BackgroundJob
from topicsd.engine.requests import Reply
from topicsd.service.render import render_refusal
from topicsd.stream.stream import Stream

logger = logging.getLogger("topicsd.http")

T = TypeVar("T")

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
# Indexed by the length of the body without its newline: a lookup costs a third of formatting.
_SMALL_OK: Final = tuple(_OK % (length + 1) for length in range(512))
CONTENT_TYPE = b"content-type: "
"""Header fields without it belong to a JSON response."""
JSON_FIELD = CONTENT_TYPE + b"application/json\r\n"
NEWLINE = b"\n"
"""End of a JSON response on a connection; link answers and WebSocket messages have none."""
KEEP_ALIVE = b"connection: keep-alive\r\n"
# Up to this size a copy costs less than writing a response in several parts.
JOINED_BYTES_MAX = 32 << 10


class CallConnection(Protocol):
    def flush_responses(self) -> None:
        """Send the finished responses at the front of the line; called after each answer."""
        ...

    def open_stream(self, head: bytes) -> Stream:
        """Turn the connection over to a stream that begins with this response head."""
        ...

    def switch_protocol(self, protocol: asyncio.Protocol) -> None:
        """Turn the connection over to another protocol, with the bytes after the request.

        If the connection is lost already, the new protocol is notified of that too.
        """
        ...


class StartedOperation(Protocol):
    """An operation that a handler of this shard performs."""

    def redirect(self, call: Call) -> None:
        """Have the present owner of the call's topic answer it."""
        ...


class Call(msgspec.Struct, eq=False):
    """A request as a handler sees it; `started` is the monotonic time when it was read.

    `name` is the topic. A struct, as its subclasses are, because one is created for every request.
    """

    name: str
    query: str
    fields: Fields
    body: bytes
    started: float
    cancel_wait: Callable[[], None] | None = None
    """Cancels a handler's wait for a better answer, at shutdown or when the client is gone."""
    on_answer: Callable[[], None] | None = None
    """Called when the call is answered."""
    is_last: bool = False
    """Whether the connection closes after the response."""
    is_head: bool = False
    """Whether only the head of the response is sent."""
    item: str = ""
    """Second name in the path: an item of the topic."""
    prefixes: tuple[str, ...] = ()
    """Name prefixes of the request's key; none means all names."""
    is_admin: bool = True
    """Whether the request's key has the scope `admin`."""
    shared_body: SharedBody | None = None
    """A large body that another worker can map; `body` is empty unless this worker maps it too."""
    retried_after_ms: int = 0
    """Time since the first attempt of the request, if that may have been applied."""
    is_unshared: bool = False
    """Whether a broker has said that no shared topic has the name."""
    operation: StartedOperation | None = None
    """The operation on a topic of this shard, once it has begun."""

    def send(self, body: bytes, status: int = 200) -> None:
        self.send_parts([body], len(body), status)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        raise NotImplementedError

    def open_stream(self, fields: bytes) -> Stream:
        """Begin a streamed response; `fields` are lines of its head."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        if refusal.code == RELOCATED and self.operation is not None:
            # Nothing was done here: the present owner of the topic answers.
            self.operation.redirect(self)
            return
        if refusal.code == INTERNAL:
            self.is_last = True
        status, body, fields = render_refusal(refusal)
        self.send_parts([body], len(body), status, fields)

    def cancel(self) -> None:
        """Cancel the wait of the handler, if it waits; work in progress is finished."""
        if self.cancel_wait is not None:
            self.cancel_wait()

    def fail(self, what: str, error: BaseException | None) -> None:
        """Log an unexpected error, and refuse with nothing but its id in the log."""
        self.refuse(refuse_unexpected_error(logger, what, error))


class HttpCall(Call, kw_only=True, eq=False):
    """A call on an HTTP/1.1 connection. Responses leave in the order of the requests."""

    connection: CallConnection
    is_old: bool = False
    """Whether the request is HTTP/1.0, whose clients need an explicit `keep-alive`."""
    is_options: bool = False
    """Whether the method is OPTIONS, which a browser sends before a request of a page of another origin."""
    response: list[bytes | memoryview] | None = None

    def send(self, body: bytes, status: int = 200) -> None:
        """Send a small response in one write."""
        if status != 200 or self.is_last or self.is_head or self.is_old or self.on_answer is not None:
            self._send_special([body, NEWLINE], len(body) + 1, status, b"")
            return
        length = len(body)
        head = _SMALL_OK[length] if length < len(_SMALL_OK) else _OK % (length + 1)
        self.response = [b"".join((head, body, NEWLINE))]
        self.connection.flush_responses()

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if length < COMPRESSED_BYTES_MIN and not fields:
            self.send(b"".join(parts), status)
            return
        is_plain = status == 200 and not fields and not self.fields.accept_encoding
        if is_plain and not (self.is_last or self.is_head or self.is_old or self.on_answer is not None):
            whole = [_OK % (length + 1), *parts, NEWLINE]
            self.response = [b"".join(whole)] if length < JOINED_BYTES_MAX else whole
            self.connection.flush_responses()
            return
        if not fields or CONTENT_TYPE not in fields:
            parts, length = [*parts, NEWLINE], length + 1
        if (
            length >= COMPRESSED_BYTES_MIN
            and self.fields.accept_encoding
            and accepts_gzip(self.fields.accept_encoding)
        ):
            parts, fields = [compress(parts)], gzip_fields(fields)
            length = len(parts[0])
        self._send_special(parts, length, status, fields)

    def _send_special(
        self, parts: Sequence[bytes | memoryview], length: int, status: int, fields: bytes
    ) -> None:
        if self.is_last:
            fields += CLOSE
        elif self.is_old:
            fields += KEEP_ALIVE
        if CONTENT_TYPE not in fields:
            fields = JSON_FIELD + fields
        head = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n\r\n" % (status, REASONS[status], fields, length)
        self.response = [head] if self.is_head else [head, *parts]
        if self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        self.connection.flush_responses()

    def open_stream(self, fields: bytes) -> Stream:
        """Begin a response that ends with the connection, so that it needs no length."""
        # The connection ends its calls now, which would cancel the wait of this one.
        self.cancel_wait = None
        on_answer, self.on_answer = self.on_answer, None
        stream = self.connection.open_stream(b"HTTP/1.1 200 OK\r\n%b%b\r\n" % (fields, CLOSE))
        if on_answer is not None:
            on_answer()
        return stream

    def switch_protocol(self, protocol: asyncio.Protocol) -> None:
        """Switch to another protocol, which sends the head of the response itself."""
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            on_answer()
        self.connection.switch_protocol(protocol)


class BrowserCall(HttpCall, kw_only=True, eq=False):
    """A call of a web page whose origin adds fields to every answer (`shared/http/cors.py`)."""

    def send(self, body: bytes, status: int = 200) -> None:
        self._send_special([body, NEWLINE], len(body) + 1, status, self.fields.cors)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        super().send_parts(parts, length, status, fields + self.fields.cors)

    def open_stream(self, fields: bytes) -> Stream:
        return super().open_stream(fields + self.fields.cors)

    def refuse(self, refusal: Refusal) -> None:
        if self.is_options and is_allowed(self.fields.cors):
            self.send_parts([], 0, 200, PREFLIGHT)
        else:
            super().refuse(refusal)


Performance = Callable[[Call], dict[str, float]]
"""Returns the `performance` member of a call's response."""


def reply_of(call: Call, on_result: Callable[[T], object]) -> Reply[T]:
    """Return a reply for the engine that sends a refusal, and passes an answer to `on_result`."""

    def reply(answer: T | Refusal) -> None:
        try:
            if isinstance(answer, Refusal):
                call.refuse(answer)
            else:
                on_result(answer)
        except Exception as error:
            call.fail("a reply", error)

    return reply


def start_job(jobs: Background, what: str, call: Call, job: BackgroundJob[Refusal | None]) -> None:
    """Start the job that answers a call. A refusal that it returns, or an error, is the answer."""

    def on_end(outcome: Refusal | Exception | None) -> None:
        if isinstance(outcome, Refusal):
            call.refuse(outcome)
        elif outcome is not None:
            call.fail(what, outcome)

    jobs.start_now(job, on_end)
