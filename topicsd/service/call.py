"""One request on its way to its answer, wherever it came from and wherever its topic is.

A handler gets a call, looks at what was sent, and answers it once: with `send`, `send_parts` or `refuse`, or
with `fail` what nobody foresaw.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from shared.contract.errors import INTERNAL, Refusal
from shared.http.answer import CLOSE, REASONS
from shared.http.gzip_answer import COMPRESSED_BYTES_MIN, accepts_gzip, compress
from shared.http.head import Fields
from shared.runtime.body_memory import SharedBody
from shared.runtime.unexpected_error import unforeseen
from topicsd.service.render import render_refusal
from topicsd.stream.stream import Stream

logger = logging.getLogger("topicsd.http")

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
# By the length of the body without its newline: a look into a table costs a third of the format.
_SMALL_OK: Final = tuple(_OK % (length + 1) for length in range(512))
CONTENT_TYPE = b"content-type: "
"""Fields without it are those of a JSON answer."""
JSON_FIELD = CONTENT_TYPE + b"application/json\r\n"
NEWLINE = b"\n"
"""The end of a JSON answer on a connection; between processes and in WebSocket messages there is none."""
KEEP_ALIVE = b"connection: keep-alive\r\n"
GZIP = b"content-encoding: gzip\r\nvary: accept-encoding\r\n"
# Up to here a copy costs less than to write an answer in pieces.
JOINED_BYTES_MAX = 32 << 10


class Lane(Protocol):
    def answered(self) -> None:
        """A call has its answer; send what stands first in the line."""
        ...

    def open_stream(self, head: bytes) -> Stream:
        """The connection is for this stream from now on, which begins with the head of its answer."""
        ...

    def give_to(self, protocol: asyncio.Protocol) -> None:
        """The connection is for another protocol from now on, with what came behind the request. One that
        was lost is lost to that too."""
        ...


class Call(msgspec.Struct, eq=False):
    """What a handler sees. `name` is the topic, `started` the monotonic time when it was read.

    A struct, and so are its kinds, because one is made for every request.
    """

    name: str
    query: str
    fields: Fields
    body: bytes
    started: float
    hurry: Callable[[], None] | None = None
    """Set while a handler waits for a better answer than it has: called when there is no time for it, or
    nobody to hear it."""
    on_answer: Callable[[], None] | None = None
    """Called when it is answered."""
    closes: bool = False
    """Whether the connection ends with the answer."""
    is_head: bool = False
    """Only the head of the answer is wanted."""
    item: str = ""
    """What of the topic is meant, where the path has a second name."""
    prefixes: tuple[str, ...] = ()
    """Of the names that the key of the request is for; none are all."""
    is_admin: bool = True
    """Whether the key of the request has the scope `admin`."""
    shared_body: SharedBody | None = None
    """A large body for another worker; `body` is empty then."""

    def send(self, body: bytes, status: int = 200) -> None:
        self.send_parts([body], len(body), status)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        raise NotImplementedError

    def open_stream(self, fields: bytes) -> Stream:
        """Answer with what comes; `fields` are lines of the head."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal) -> None:
        if refusal.code == INTERNAL:
            self.closes = True
        status, body, fields = render_refusal(refusal)
        self.send_parts([body], len(body), status, fields)

    def fail(self, what: str, error: BaseException | None) -> None:
        """An exception that nobody foresaw: the client is told where in the log it is, and nothing else."""
        self.refuse(unforeseen(logger, what, error))


class HttpCall(Call, kw_only=True, eq=False):
    """A call on a connection. Answers leave in the order of the requests: it waits for those before it."""

    lane: Lane
    is_old: bool = False
    """Of HTTP/1.0, whose clients expect to be told that the connection goes on."""
    answer: list[bytes | memoryview] | None = None

    def send(self, body: bytes, status: int = 200) -> None:
        """A small answer, in one piece."""
        if status != 200 or self.closes or self.is_head or self.is_old or self.on_answer is not None:
            self._send_special([body, NEWLINE], len(body) + 1, status, b"")
            return
        length = len(body)
        head = _SMALL_OK[length] if length < len(_SMALL_OK) else _OK % (length + 1)
        self.answer = [b"".join((head, body, NEWLINE))]
        self.lane.answered()

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if length < COMPRESSED_BYTES_MIN and not fields:
            self.send(b"".join(parts), status)
            return
        is_plain = status == 200 and not fields and not self.fields.accept_encoding
        if is_plain and not (self.closes or self.is_head or self.is_old or self.on_answer is not None):
            whole = [_OK % (length + 1), *parts, NEWLINE]
            self.answer = [b"".join(whole)] if length < JOINED_BYTES_MAX else whole
            self.lane.answered()
            return
        if not fields or CONTENT_TYPE not in fields:
            parts, length = [*parts, NEWLINE], length + 1
        if (
            length >= COMPRESSED_BYTES_MIN
            and self.fields.accept_encoding
            and accepts_gzip(self.fields.accept_encoding)
        ):
            parts, fields = [compress(parts)], fields + GZIP
            length = len(parts[0])
        self._send_special(parts, length, status, fields)

    def _send_special(
        self, parts: Sequence[bytes | memoryview], length: int, status: int, fields: bytes
    ) -> None:
        if self.closes:
            fields += CLOSE
        elif self.is_old:
            fields += KEEP_ALIVE
        if CONTENT_TYPE not in fields:
            fields = JSON_FIELD + fields
        head = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n\r\n" % (status, REASONS[status], fields, length)
        self.answer = [head] if self.is_head else [head, *parts]
        if self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        self.lane.answered()

    def open_stream(self, fields: bytes) -> Stream:
        """It ends with the connection, so that nothing has to be said about how long it is."""
        # The connection is done with its calls, and hurries what they wait for.
        self.hurry = None
        on_answer, self.on_answer = self.on_answer, None
        stream = self.lane.open_stream(b"HTTP/1.1 200 OK\r\n%b%b\r\n" % (fields, CLOSE))
        if on_answer is not None:
            on_answer()
        return stream

    def give_to(self, protocol: asyncio.Protocol) -> None:
        """Answer with another protocol, which begins with the head of its answer."""
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            on_answer()
        self.lane.give_to(protocol)


def reply_of(call: Call, told: Callable[[Any], None]) -> Callable[[Any], None]:
    """For the engine: a refusal is the answer, anything else is what `told` makes of it."""

    def reply(answer: Any) -> None:
        try:
            if isinstance(answer, Refusal):
                call.refuse(answer)
            else:
                told(answer)
        except Exception as error:
            call.fail("an answer", error)

    return reply
