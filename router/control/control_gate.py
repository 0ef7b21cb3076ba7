"""A connection that this process answers itself while it carries only control requests.

The gate is between the transport and aiohttp. It parses each head and each body as strictly as a worker does,
and passes one request at a time to aiohttp, so no request is outstanding between two requests. A connection
that then asks for a topic is handed to its worker as if it were new, with the bytes already read.

G1  One request at a time: the next head is parsed when the previous response is written.
G2  A connection moves when no request is outstanding and everything written has been sent (an abort would
    discard the rest).
G3  aiohttp sees a head that the gate writes, and no body: no endpoint here takes one, so the body is read to
    its end and dropped, and a field of that head says that there was one. Framing, codings and versions mean
    what they mean in a worker.
G4  Bounded: the gate holds at most a head and one read; further input waits in the socket. A client that
    sends or reads too slowly is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from router.accept.placer import CONTROL, Placer, refusal_of
from router.control.control_app import HAS_BODY, ControlApp, ControlHandler
from shared.contract.errors import REQUEST_TIMEOUT, Refusal, shutting_down
from shared.http.answer import closing_refusal
from shared.http.body import CONTINUE, Body, DroppedSink, body_of, refuse_coding
from shared.http.client_address import client_address
from shared.http.client_speed import CLIENT_TIMEOUT_SECONDS, IDLE_SECONDS, Outflow, is_too_slow
from shared.http.cors import with_fields
from shared.http.head import (
    Fields,
    RequestLine,
    keeps_alive,
    parse_fields,
    parse_line,
    refuse_together,
    refuse_unfinished,
)
from shared.http.http2_preface import is_http2

HEAD_SECONDS: Final = CLIENT_TIMEOUT_SECONDS
LINGER_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 1.0
READ_BYTES: Final = 20 << 10
_RECHECK_SECONDS: Final = 0.005
# Shared by all connections: bytes read into it are copied in the same turn.
_BUFFER: Final = memoryview(bytearray(READ_BYTES))

PlaceConnection = Callable[[socket.socket, bytes, int], None]


class UnfinishedRequest(NamedTuple):
    """A request whose body is incomplete."""

    line: RequestLine
    fields: Fields
    body: Body


class ControlGate(asyncio.BufferedProtocol):
    """One control connection.

    `place` takes a connection whose next request is for a worker, as `ConnectionRouter.place` does.
    """

    def __init__(
        self,
        app: ControlApp,
        placer: Placer,
        place: PlaceConnection,
        data: bytes,
        body_bytes_max: int,
        on_closed: Callable[[ControlGate], None],
    ) -> None:
        self._app = app
        self._placer = placer
        self._place = place
        self._body_bytes_max = body_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._handler: ControlHandler | None = None
        self._input = data
        self._unfinished: UnfinishedRequest | None = None
        self._body_bytes = 0
        self._body_started = 0.0
        self._is_answering = False
        """A request is being answered by aiohttp."""
        self.is_last = False
        """The response to the request in aiohttp is the last of the connection."""
        self.is_http_1_0 = False
        """The request is HTTP/1.0, where `Connection: keep-alive` announces an open connection."""
        self.cors = b""
        """Header fields of the answer for the origin of the request."""
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._outflow = Outflow()
        self._outflow_timer: asyncio.TimerHandle | None = None
        self._on_closed = on_closed
        self.is_closing = False
        """The server shuts down: the next response is the last."""

    # -- calls from the transport --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are not subclasses of the transports of asyncio.
        self._transport = cast(asyncio.Transport, transport)
        self._handler = self._app.make_handler(self)
        self._handler.connection_made(transport)
        self._next()

    @property
    def address(self) -> str:
        """Return the address of the client."""
        return client_address(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        data = bytes(_BUFFER[:nbytes])
        if self._unfinished is not None:
            self._refuse_or_resume(self._take_body(self._unfinished, data))
            return
        self._input += data
        if not self._is_answering:
            self._next()
        elif len(self._input) >= READ_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Keep the connection open for the response when the client has half-closed it."""
        self.is_last = True
        return self._is_answering and not self._is_over

    def pause_writing(self) -> None:
        self._outflow.begin(self._transport, self._loop.time())
        self._outflow_timer = self._loop.call_later(CHECK_SECONDS, self._check_outflow)
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._outflow_timer is not None:
            self._outflow_timer.cancel()
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._set_timer(None)
        if self._outflow_timer is not None:
            self._outflow_timer.cancel()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(exc)
        self._on_closed(self)

    # -- calls from aiohttp --------------------------------------------------------------------------------

    def on_answered(self, closes: bool) -> None:
        """Continue after a written response; `closes` says that it carried `Connection: close`."""
        self._is_answering = False
        if closes:
            self._linger()
        else:
            # In a later turn, when the written bytes have been sent.
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """Close the connection on shutdown: after the response in progress, or at once."""
        self.is_closing = self.is_last = True
        if self._is_answering or self._is_over:
            return
        if self._input or self._unfinished is not None:
            self._refuse(shutting_down())
        else:
            self._end()

    # -- parsing requests ----------------------------------------------------------------------------------

    def _next(self) -> None:
        """Pass on the next request, or hand over the connection, once enough input has arrived."""
        if self._is_answering or self._is_over:
            return
        if self.is_last:
            self._end()
            return
        placement = self._placer.place(self._input)
        if placement is not None and placement != CONTROL:
            if is_http2(self._input):
                # HTTP/2 may only start a connection; after a hand-over the worker would take this one for a
                # new connection.
                self._refuse(refusal_of(self._input))
            else:
                self._move(placement)
            return
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            self._set_timer(HEAD_SECONDS if self._input else IDLE_SECONDS)
        self._refuse_or_resume(refuse_unfinished(self._input) if end < 0 else self._begin(end))

    def _refuse_or_resume(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._refuse(refusal)
        elif len(self._input) < READ_BYTES or not self._is_answering:
            self._transport.resume_reading()

    def _begin(self, end: int) -> Refusal | None:
        """Begin the request at the start of the input, whose head ends at `end`."""
        line_text, _, block = self._input[:end].partition(b"\r\n")
        line, fields = parse_line(line_text), parse_fields(block)
        if isinstance(line, Refusal):
            return line
        if isinstance(fields, Refusal):
            return fields
        self.cors = self._app.origins.fields_for(fields.origin)
        refusal = refuse_together(line, fields) or refuse_coding(fields, self._body_bytes_max)
        if fields.origin and not self._app.keys.are_required:
            refusal = refusal or self._app.origins.refuse_page(line.method, fields)
        if refusal is not None:
            return refusal
        rest, self._input = self._input[end + 4 :], b""
        if not (fields.is_chunked or fields.content_length):
            self._input = rest
            self._pass_to_aiohttp(line, fields)
            return None
        unfinished = UnfinishedRequest(line, fields, body_of(fields, DroppedSink(self._body_bytes_max)))
        if fields.expect and not rest:
            refusal = self._app.refusal(line, fields.authorization)
            if refusal is not None:
                return refusal
            self._transport.write(CONTINUE)
        self._body_bytes, self._body_started = 0, self._loop.time()
        self._set_timer(CHECK_SECONDS)
        return self._take_body(unfinished, rest)

    def _take_body(self, request: UnfinishedRequest, data: bytes) -> Refusal | None:
        self._body_bytes += len(data)
        consumed = request.body.feed(data, 0)
        if isinstance(consumed, Refusal):
            return consumed
        if not request.body.is_whole:
            self._unfinished = request
            return None
        self._unfinished = None
        body = request.body.finish()
        if isinstance(body, Refusal):
            return body
        assert isinstance(body, bytes)
        self._input = data[consumed:]
        self._pass_to_aiohttp(request.line, request.fields, body)
        return None

    def _pass_to_aiohttp(self, line: RequestLine, fields: Fields, body: bytes = b"") -> None:
        self._set_timer(None)
        self._is_answering = True
        self.is_last = self.is_closing or not keeps_alive(line, fields)
        self.is_http_1_0 = line.minor_version == 0
        assert self._handler is not None
        self._handler.data_received(_plain_head(line, fields, body))

    def _move(self, placement: int) -> None:
        if self._transport.get_write_buffer_size():
            self._loop.call_later(_RECHECK_SECONDS, self._next)
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
        self._place(connection, self._input, placement)

    # -- ending --------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        self._transport.write(with_fields(closing_refusal(refusal), self.cors))
        self._linger()

    def _linger(self) -> None:
        """Close after the last response, reading for a moment.

        A close with unread input would reset the connection.
        """
        self._is_over = True
        self._input = b""
        self._unfinished = None
        self._outflow.begin(self._transport, self._loop.time())
        with contextlib.suppress(OSError):
            self._transport.write_eof()
        self._transport.resume_reading()
        self._set_timer(LINGER_SECONDS)

    def _end(self) -> None:
        self._is_over = True
        self._transport.close()

    # -- waiting -------------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        if self._is_over:
            if not self._transport.get_write_buffer_size():
                self._transport.close()
            elif not self._abort_if_stuck():
                self._set_timer(CHECK_SECONDS)
        elif self._unfinished is not None:
            if is_too_slow(self._loop.time() - self._body_started, self._body_bytes, is_body=True):
                self._refuse(Refusal(REQUEST_TIMEOUT, "the request was not complete in time"))
            else:
                self._set_timer(CHECK_SECONDS)
        elif self._input:
            self._refuse(Refusal(REQUEST_TIMEOUT, "the request was not complete in time"))
        elif self._transport.get_write_buffer_size():
            # Idle for long, and the previous response is not even read.
            self._transport.abort()
        else:
            self._end()

    def _check_outflow(self) -> None:
        if not self._abort_if_stuck():
            self._outflow_timer = self._loop.call_later(CHECK_SECONDS, self._check_outflow)

    def _abort_if_stuck(self) -> bool:
        """Abort the connection if the client does not read; return whether it was aborted."""
        is_stuck = self._outflow.is_stuck(self._transport, self._loop.time())
        if is_stuck:
            self._transport.abort()
        return is_stuck


def _plain_head(line: RequestLine, fields: Fields, body: bytes) -> bytes:
    """Return a minimal, unambiguous head of the same request."""
    target = f"{line.path}?{line.query}" if line.query else line.path
    head = f"{line.method} {target} HTTP/1.1\r\nhost: topicsd\r\naccept: {fields.accept}\r\n"
    head += f"accept-encoding: {fields.accept_encoding}\r\n"
    if body.strip() not in (b"", b"{}"):
        head += f"{HAS_BODY}: 1\r\n"
    sent = b"" if fields.authorization is None else b"authorization: %b\r\n" % fields.authorization
    return head.encode("latin-1") + sent + b"\r\n"
