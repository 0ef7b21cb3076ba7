"""The second lane: what is legal HTTP/1.1 and not plain, on aiohttp, with the same handlers behind it.

A connection comes here with the bytes of a request that is chunked, compressed or expects a word first, and
stays.

A1  aiohttp never reads what a client sent: a request is read whole by `request_reader.py`, and aiohttp gets a
    head that we wrote. So the two lanes read alike, and no second opinion is heard of where a request ends.
A2  One request at a time: the next is looked at when the answer before it is written.
A3  Answers are rendered by the same code as in the fast lane and leave as they are, byte for byte.
A4  Patience and drain are the fast lane's (`patience.py`); aiohttp's own timers are off.

Must not know: what a handler does.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_protocol import RequestHandler

from shared.errors import REQUEST_TIMEOUT, SHUTTING_DOWN, Refusal
from shared.http_answer import closing_refusal
from shared.http_head import Fields, keeps_alive
from topicsd.http.call import HttpCall
from topicsd.http.connection_stream import ConnectionStream
from topicsd.http.dispatch import NO_FIELDS, Dispatch
from topicsd.http.known_heads import KnownHeads, KnownLine
from topicsd.http.patience import IDLE_SECONDS, Connections, Lingering, Outflow, is_too_slow
from topicsd.http.request_reader import RequestReader, WholeRequest
from topicsd.live.stream import Stream

# What may be held while an answer is due, before reading pauses.
HELD_BYTES_MAX = 64 << 10
_NEVER_SECONDS = 1e9


class Rendered(web.StreamResponse):
    """An answer that is bytes already, its head too."""

    def __init__(self, parts: list[bytes | memoryview], closes: bool) -> None:
        super().__init__()
        self._parts = parts
        self._keep_alive = not closes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        if request.transport is None:
            raise ConnectionResetError
        request.transport.writelines(self._parts)
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass


class AppLane(RequestHandler):
    """One connection within aiohttp, and its gate: bytes come in here, requests go on to aiohttp."""

    def __init__(self, app: App, transport: asyncio.Transport) -> None:
        super().__init__(
            app.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=_NEVER_SECONDS,
        )
        self._app = app
        self._dispatch = app.dispatch
        self._wire = transport
        self._reader = RequestReader(app.heads, app.dispatch.handlers.body_bytes_max)
        self._asked: WholeRequest | None = None
        self._call: HttpCall | None = None
        self._answer: asyncio.Future[list[bytes | memoryview]]
        self._has_said_continue = False
        self._is_at_eof = False
        self._is_clogged = False
        self._is_over = False
        self._monotonic = app.dispatch.handlers.monotonic
        self._since = self._monotonic()
        self._outflow = Outflow()

    # -- the transport's side ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._reader.is_empty:
            self._since = self._monotonic()
        self._reader.feed(data)
        if self._asked is None and not self._is_clogged:
            self._go_on()
        elif self._reader.held >= HELD_BYTES_MAX:
            self._wire.pause_reading()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client may close its side and still read its answers, but most that do so are gone."""
        self._is_at_eof = True
        self._hurry()
        return self._asked is not None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_clogged = True
        self._outflow.begin(self._wire, self._monotonic())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_clogged = False
        self._go_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._is_over = True
        self._app.connections.closed(self)
        self._hurry()
        super().connection_lost(exc)

    # -- reading -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Have the next request answered when it is there."""
        if self._asked is not None or self._is_over or self._is_clogged:
            return
        request = self._reader.next()
        if isinstance(request, Refusal):
            self._refuse(request)
        elif request is not None:
            self._ask(request)
        elif self._is_at_eof:
            self._end()
        else:
            self._wire.resume_reading()
            unfinished = self._reader.unfinished
            if unfinished is not None and unfinished[1].expect and not self._has_said_continue:
                self._say_continue(*unfinished)

    def _say_continue(self, known: KnownLine, fields: Fields) -> None:
        """The client waits to be told that it may send the body; one that may not is told why not."""
        self._has_said_continue = True
        match = known.match
        refusal = (
            match
            if isinstance(match, Refusal)
            else self._dispatch.refuse_key(match, fields, known.line.query)
        )
        if refusal is not None:
            self._refuse(refusal)
        elif known.line.minor_version and not self._reader.body_bytes:
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _ask(self, request: WholeRequest) -> None:
        self._asked = request
        self._has_said_continue = False
        line = request.known.line
        query = f"?{line.query}" if line.query else ""
        head = f"{line.method} {line.path}{query} HTTP/1.1\r\nhost: topicsd\r\ncontent-length: 0\r\n\r\n"
        super().data_received(head.encode("latin-1"))

    # -- answering -----------------------------------------------------------------------------------------

    async def answer(self) -> web.StreamResponse:
        request = self._asked
        assert request is not None
        known = request.known
        self._answer = asyncio.get_running_loop().create_future()
        call = HttpCall("", known.line.query, request.fields, request.body, self._monotonic(), lane=self)
        call.is_head = known.line.method == "HEAD"
        call.is_old = known.line.minor_version == 0
        call.closes = self._dispatch.drains or not keeps_alive(known.line, request.fields)
        self._call = call
        self._dispatch.start(known.match, known.owner, call)
        if self._is_at_eof or self._dispatch.drains:
            self._hurry()
        return Rendered(await self._answer, call.closes)

    def answered(self) -> None:
        call = self._call
        if call is not None and call.answer is not None and not self._answer.done():
            self._answer.set_result(call.answer)

    def open_stream(self, head: bytes) -> Stream:
        """aiohttp is done with the connection, and with the task that waits for an answer."""
        self._is_over = True
        self._app.connections.closed(self)
        # aiohttp has no transport any more that it could close with the task.
        self.transport = None
        # Later: the task that ends with it may be the caller.
        asyncio.get_running_loop().call_soon(super().connection_lost, None)
        return ConnectionStream(self._wire, self._app.connections, self._monotonic, head)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        outcome = await super().finish_response(request, resp, start_time)
        self._asked = self._call = None
        self._since = self._monotonic()
        if resp.keep_alive:
            self._go_on()
        else:
            self._give_up()
            task = self._task_handler
            if not self._is_at_eof and self.transport is not None and task is not None:
                # What the client sent behind the last request must not make a reset of the end.
                self._linger()
                task.add_done_callback(self._answered_all)
        return outcome

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's word for what went wrong between it and us; ours is said instead."""
        call = HttpCall("", "", NO_FIELDS, b"", self._since, lane=self)
        call.fail("the application", exc)
        assert call.answer is not None
        return Rendered(call.answer, closes=True)

    # -- ending --------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        """The framing is in doubt, or the body too large to be read: answer, then close."""
        self._give_up()
        self._wire.write(closing_refusal(refusal))
        if self._is_at_eof:
            self._end()
            return
        self._linger()
        super().connection_lost(None)

    def _answered_all(self, task: asyncio.Task[None]) -> None:
        super().connection_lost(None)

    def _linger(self) -> None:
        Lingering(self._wire, self._app.connections, self._monotonic)
        self._app.connections.closed(self)
        # aiohttp is done with it, and has no transport any more that it could close.
        self.transport = None

    def _end(self) -> None:
        self._give_up()
        self.force_close()

    def _give_up(self) -> None:
        """Nothing more is read; what was written may still have to be."""
        self._is_over = True
        self._outflow.begin(self._wire, self._monotonic())

    def check_patience(self, now: float) -> None:
        """Called now and then: close a connection whose client is too slow."""
        reader = self._reader
        if self._is_over or self._is_clogged:
            if self._outflow.is_stuck(self._wire, now):
                self._wire.abort()
        elif self._asked is not None:
            self._since = now
        elif not reader.is_empty:
            if is_too_slow(now - self._since, reader.body_bytes, reader.unfinished is not None):
                self._refuse(Refusal(REQUEST_TIMEOUT, "the request did not come through in time"))
        elif now - self._since > IDLE_SECONDS:
            self._end()

    def drain(self) -> None:
        """The process ends: an idle connection is closed now, another with its last answer."""
        if self._is_over:
            return
        if self._asked is None and not self._reader.is_empty:
            self._refuse(Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000))
        elif self._asked is None:
            self._end()
        elif self._call is not None:
            self._call.closes = True
            self._hurry()

    def _hurry(self) -> None:
        """Nothing is waited for any more but what is under way."""
        if self._call is not None and self._call.hurry is not None:
            self._call.hurry()


class App:
    def __init__(self, dispatch: Dispatch, heads: KnownHeads, connections: Connections) -> None:
        self.dispatch = dispatch
        self.heads = heads
        self.connections = connections
        self.server = web.Server(_answer, handler_cancellation=True)

    def upgrade(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take over a connection, with the bytes that were read of its next request."""
        lane = AppLane(self, transport)
        transport.set_protocol(lane)
        lane.connection_made(transport)
        self.connections.opened(lane)
        transport.resume_reading()
        if data:
            lane.data_received(data)

    async def close(self) -> None:
        await self.server.shutdown(1.0)


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    return await cast(AppLane, request.protocol).answer()
