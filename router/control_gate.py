"""A connection whose first request this process answers itself, for as long as it asks for nothing else.

The gate stands between the transport and aiohttp. It cuts the bytes into requests, reads each head strictly,
and lets one request through at a time; so between two requests nothing is outstanding, and a connection that
then asks for a topic is handed to its worker as if it were new, with what was read of it.

G1  One request at a time: the next head is looked at when the answer before it is written.
G2  A connection moves when nothing is outstanding and all that was written has left (an abort would throw the
    rest away).
G3  A request whose end cannot be told from its head (chunked), or that asks for another protocol, is the last
    on its connection: from there on all bytes belong to aiohttp, and the answer closes.
G4  Bounded: at most a head and one reading are held, a body goes through as it comes; a client that has more
    to send waits in its socket.

Must not know: what is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final, cast

from router.control_app import ControlApp, ControlHandler
from router.first_line import CONTROL, Placer, refusal_of
from shared.errors import HEADERS_TOO_LARGE, PAYLOAD_TOO_LARGE, REQUEST_TIMEOUT, SHUTTING_DOWN, Refusal
from shared.http2_preface import is_http2
from shared.http_answer import closing_refusal
from shared.http_head import BLOCK_BYTES_MAX, LINE_BYTES_MAX, parse_fields, parse_line, refuse_together

HEAD_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 75.0
LINGER_SECONDS: Final = 1.0
BODY_BYTES_MAX: Final = 1 << 20
READ_BYTES: Final = 20 << 10
HEAD_BYTES_MAX: Final = LINE_BYTES_MAX + BLOCK_BYTES_MAX + 4
_LOOK_AGAIN_SECONDS: Final = 0.005

Place = Callable[[socket.socket, bytes, int], None]


class ControlGate(asyncio.BufferedProtocol):
    """`place` takes a connection that asked for something of a worker, as `Front.place`."""

    def __init__(
        self,
        app: ControlApp,
        placer: Placer,
        place: Place,
        data: bytes,
        on_closed: Callable[[ControlGate], None],
    ) -> None:
        self._app = app
        self._placer = placer
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport
        self._handler: ControlHandler | None = None
        self._held = data
        self._body_left = 0
        self._is_asked = False
        """A request is with aiohttp."""
        self._is_answered = False
        """It is answered, and the rest of its body is still to come."""
        self.is_last = False
        """The answer to the request that is with aiohttp ends the connection."""
        self._is_passing = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._on_closed = on_closed
        self.is_closing = False
        """The server ends: the next answer is the last."""

    # -- the transport's side ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._handler = self._app.make_handler(self)
        self._handler.connection_made(transport)
        self._next()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if self._is_over:
            return
        if self._body_left or self._is_passing:
            data = self._pass_on(data)
        self._held += data
        if self._is_answered and not self._body_left:
            self._is_asked = self._is_answered = False
        if not self._is_asked:
            self._next()
        elif len(self._held) >= READ_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """A client that sent all it had to say still hears the answer."""
        self.is_last = True
        return self._is_asked and not self._is_over

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._wait(None)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(exc)
        self._on_closed(self)

    # -- aiohttp's side ------------------------------------------------------------------------------------

    def answered(self, closes: bool) -> None:
        """The answer is written; `closes` says that aiohttp ends the connection now."""
        if closes:
            self._is_asked = False
            self._is_over = True
        elif self._body_left:
            # It stands between this answer and the next head, though nobody wants it any more.
            self._is_answered = True
            self._wait(HEAD_SECONDS)
        else:
            self._is_asked = False
            # In a later turn, when what was written has left.
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """The server ends: with the answer that is due, or at once."""
        self.is_closing = self.is_last = True
        if self._is_asked or self._is_over:
            return
        if self._held:
            self._refuse(Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000))
        else:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._transport.close()

    # -- cutting -------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Let the next request through, or the whole connection go, when there is enough of it to tell."""
        if self._is_asked or self._is_over:
            return
        if self.is_last:
            self._end()
            return
        placement = self._placer.place(self._held)
        if placement is not None and placement != CONTROL:
            if is_http2(self._held):
                # It may be at the start of a connection only, where this one would be for who takes it over.
                self._refuse(refusal_of(self._held))
            else:
                self._move(placement)
            return
        end = self._held.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._held) >= HEAD_BYTES_MAX:
                self._refuse(Refusal(HEADERS_TOO_LARGE, f"the head is longer than {HEAD_BYTES_MAX} bytes"))
                return
            self._wait(HEAD_SECONDS if self._held else IDLE_SECONDS)
            self._transport.resume_reading()
            return
        refusal = self._let_through(end)
        if refusal is not None:
            self._refuse(refusal)

    def _let_through(self, end: int) -> Refusal | None:
        line_text, _, block = self._held[:end].partition(b"\r\n")
        line, fields = parse_line(line_text), parse_fields(block)
        if isinstance(line, Refusal):
            return line
        if isinstance(fields, Refusal):
            return fields
        refusal = refuse_together(line, fields)
        if refusal is not None:
            return refusal
        length = fields.content_length or 0
        if length > BODY_BYTES_MAX:
            return Refusal(
                PAYLOAD_TOO_LARGE, f"the body has {length} bytes, {BODY_BYTES_MAX} are allowed here"
            )
        self._wait(None)
        self._is_asked = True
        self._is_passing = fields.is_chunked or bool(fields.upgrade) or bool(fields.expect)
        keeps = (
            "keep-alive" in fields.connection if line.minor_version == 0 else "close" not in fields.connection
        )
        self.is_last = self._is_passing or not keeps or self.is_closing
        self._body_left = 0 if self._is_passing else length
        head, rest = self._held[: end + 4], self._held[end + 4 :]
        assert self._handler is not None
        self._held = b""
        self._handler.data_received(head)
        self._held = self._pass_on(rest) if rest else b""
        self._transport.resume_reading()
        return None

    def _pass_on(self, data: bytes) -> bytes:
        """Give aiohttp what belongs to the request that it has, and return what does not."""
        mine = data if self._is_passing else data[: self._body_left]
        if not mine:
            return data
        if not self._is_passing:
            self._body_left -= len(mine)
        assert self._handler is not None
        self._handler.data_received(mine)
        return data[len(mine) :]

    def _move(self, placement: int) -> None:
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_LOOK_AGAIN_SECONDS, self._next)
            self._transport.pause_reading()
            return
        self._is_over = True
        try:
            fd = os.dup(self._transport.get_extra_info("socket").fileno())
        except OSError:
            self._transport.abort()
            return
        self._transport.abort()
        connection = socket.socket(fileno=fd)
        connection.setblocking(False)
        self._place(connection, self._held, placement)

    # -- ending --------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, and read on for a moment: a close with something unread would reset the answer."""
        self._is_over = True
        self._held = b""
        self._transport.write(closing_refusal(refusal))
        with contextlib.suppress(OSError):
            self._transport.write_eof()
        self._transport.resume_reading()
        self._wait(LINGER_SECONDS)

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._waited)

    def _waited(self) -> None:
        if self._held and not self._is_over:
            self._refuse(Refusal(REQUEST_TIMEOUT, "the head did not come in time"))
        else:
            self._is_over = True
            self._transport.close()
