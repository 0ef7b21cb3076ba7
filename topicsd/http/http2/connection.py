"""An HTTP/2 connection in the clear, with prior knowledge: the `h2` library with our bounds.

E1  A request is parsed by the same code and answered by the same handlers as in the other protocols. It
    starts when it is complete; the requests of a connection start in the order in which they completed.
E2  Streams are independent: a stream that is not read, or not sent to its end, holds up only itself. An
    error in a request ends its stream; an error that leaves the framing in doubt, or a flood, ends the
    connection.
E3  The memory that a connection can make the process hold is bounded: by the windows that are opened, by
    the limit of unsent responses, and by not reading while the client does not. So is the work that it may
    cause (`limits.py`).
E4  Timeouts and drain are those of HTTP/1.1, stream by stream. When the process ends, existing streams are
    answered and new ones refused with REFUSED_STREAM, which means not processed. GOAWAY is sent after the
    last response, because some clients take it for the end of all streams (those based on this library
    do).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from shared.contract.errors import REQUEST_TIMEOUT, SHUTTING_DOWN, Refusal
from shared.http.answer import closing_refusal
from shared.http.head import parse_line
from shared.http.http2_preface import GO_AWAY_TYPE, PREFACE, PREFACE_LINE
from shared.http.pace import IDLE_SECONDS, PATIENCE_SECONDS, Outflow, is_too_slow
from topicsd.http.http1.head_cache import KnownHeads
from topicsd.http.http1.timeouts import Connections, Lingering
from topicsd.http.http2.exchange import Exchange
from topicsd.http.http2.frames import Frame, FrameCutter
from topicsd.http.http2.limits import (
    EARNED_BYTES,
    FRAMES_A_SECOND,
    FRAMES_MAX,
    RESETS_A_SECOND,
    RESETS_MAX,
    Allowance,
)
from topicsd.http.http2.requests import Requests
from topicsd.http.http2.wire import Wire
from topicsd.service.dispatch import Dispatch
from topicsd.stream.event_stream import CLOGGED_SECONDS_MAX

# A connection that is not read is kept until its streams have timed out.
STREAMS_PATIENCE_SECONDS: Final = CLOGGED_SECONDS_MAX + PATIENCE_SECONDS
# A request is two frames and takes a good part of a millisecond, in which other connections wait.
FRAMES_A_TURN: Final = 32

logger = logging.getLogger("topicsd.http")


class H2Lane(asyncio.Protocol):
    def __init__(
        self, dispatch: Dispatch, heads: KnownHeads, connections: Connections, first: bytes = b""
    ) -> None:
        """Create a connection. `first` is what another process read before it handed the connection over."""
        self._connections = connections
        self._monotonic = dispatch.handlers.monotonic
        self._loop = dispatch.handlers.loop
        self._transport: asyncio.Transport
        self._first = first
        self._cutter = FrameCutter()
        self._has_begun = False
        """Whether the preface was received."""
        self._wire = Wire()
        self._requests = Requests(dispatch, heads, self._wire, self._turn_soon)
        self._since = self._held_since = now = self._monotonic()
        """`_since`: when the last stream ended. `_held_since`: the start of the wait for the rest of a
        frame or of a header block."""
        self._frames = Allowance(FRAMES_MAX, FRAMES_A_SECOND, now)
        self._resets = Allowance(RESETS_MAX, RESETS_A_SECOND, now)
        self._outflow = Outflow()
        self._is_in_turn = self._is_turn_due = False
        self._is_reading = True
        self._is_clogged = False
        self._is_behind = False
        """More frames were received than one turn processes."""
        self._is_at_eof = False
        self._is_leaving = False
        """It ends with its existing streams."""
        self._is_over = False

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._first:
            self._loop.call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Finish the requests in progress; their responses are discarded."""
        self._is_over = True
        self._connections.closed(self)
        self._requests.lose_all()

    def pause_writing(self) -> None:
        self._is_clogged = True
        self._outflow.begin(self._transport, self._monotonic())

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._turn()

    def eof_received(self) -> bool:
        """End the connection, after the responses in progress.

        A client may half-close and still read its responses, but most that half-close are gone, so waiting
        calls are answered at once.
        """
        self._is_at_eof = self._is_leaving = True
        self._requests.hurry()
        self._turn()
        return not self._is_over

    def data_received(self, data: bytes) -> None:
        if self._first:
            # The first bytes from the socket follow the bytes that were handed over.
            data, self._first = self._first + data, b""
        if not data or self._is_over:
            return
        if not self._cutter.is_inside:
            self._held_since = self._monotonic()
        self._cutter.feed(data)
        if self._has_begun or self._begin():
            self._turn()

    def _begin(self) -> bool:
        """Take the preface. Return whether it is complete.

        Bytes that only begin like it are a request of an unknown HTTP version, and are refused as one.
        """
        found = self._cutter.take_preface()
        if found:
            self._has_begun = True
            self._wire.receive_data(PREFACE)
        elif found is not None:
            refusal = parse_line(PREFACE_LINE.strip())
            assert isinstance(refusal, Refusal)
            self._refuse(refusal)
        return self._has_begun

    # -- turns ---------------------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        if not self._is_turn_due and not self._is_in_turn:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Process received frames, start requests, and send what the windows allow."""
        self._is_turn_due = False
        if self._is_over or self._is_in_turn:
            return
        self._is_in_turn = True
        now = self._monotonic()
        try:
            self._go_on(now)
        except Exception:
            logger.exception("an error that was not foreseen in a connection of HTTP/2")
            self._break_off(ErrorCodes.INTERNAL_ERROR)
        self._is_in_turn = False
        self._settle(now)

    def _settle(self, now: float) -> None:
        """End the connection, or pause or resume reading, after a turn."""
        if self._is_over:
            return
        if not self._requests.is_empty or self._is_behind:
            self._since = now
        elif self._is_leaving and self._has_begun:
            self._break_off()
            return
        elif self._is_leaving:
            self._end()
            return
        if self._is_behind:
            self._turn_soon()
        if self._is_reading == (self._is_clogged or self._is_behind):
            self._is_reading = not self._is_reading
            if self._is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _go_on(self, now: float) -> None:
        if not self._has_begun:
            return
        self._is_behind = True
        for _ in range(FRAMES_A_TURN):
            frame = None if self._is_over or self._is_clogged else self._cutter.next()
            if frame is None:
                self._is_behind = False
                break
            if isinstance(frame, ErrorCodes):
                self._break_off(frame)
            else:
                self._take(frame, now)
        if self._is_at_eof and not self._is_behind:
            self._requests.give_up_unfinished()
        self._send(now)
        while not self._is_over and not self._is_clogged and self._requests.start_some(now):
            self._send(now)

    def _take(self, frame: Frame, now: float) -> None:
        if not self._cutter.is_in_block:
            self._held_since = now
        if frame.cost and not self._frames.take(now):
            self._break_off(ErrorCodes.ENHANCE_YOUR_CALM)
            return
        if frame.type == GO_AWAY_TYPE:
            # The library would end the streams in progress too.
            self._is_leaving = True
            return
        try:
            events = self._wire.receive_data(frame.data)
        except ProtocolError:
            # The library has already made the GOAWAY frame with the reason.
            self._flush()
            self._end()
            return
        for _ in range(self._requests.take(events, now)):
            if not self._resets.take(now):
                self._break_off(ErrorCodes.ENHANCE_YOUR_CALM)
                return

    def _send(self, now: float) -> None:
        """Send as much as the client accepts."""
        while not self._is_over:
            if not self._is_clogged:
                self._requests.sender.fill(now, self._left)
            if not self._flush():
                return

    def _left(self, exchange: Exchange, size: int) -> None:
        # For the request, and for the window updates of a client that has read the response.
        self._frames.give(2 + size // EARNED_BYTES)
        self._requests.left(exchange, size)

    def _flush(self) -> bool:
        data = self._wire.data_to_send()
        if data:
            self._transport.write(data)
        return bool(data)

    # -- ending --------------------------------------------------------------------------------------------

    def _break_off(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Close with GOAWAY, which says why and which streams were processed."""
        self._wire.close_connection(code)
        self._flush()
        self._end(lingers=code != ErrorCodes.NO_ERROR or self._cutter.is_inside)

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse a connection that has not sent its preface."""
        self._transport.write(closing_refusal(refusal))
        self._end()

    def _end(self, lingers: bool = True) -> None:
        """Start no more requests.

        What was written may still have to be read, by a client that keeps sending.
        """
        self._is_over = True
        self._outflow.begin(self._transport, self._monotonic())
        self._requests.lose_all()
        if self._is_at_eof or not lingers:
            self._transport.close()
        else:
            Lingering(self._transport, self._connections, self._monotonic)
            self._connections.closed(self)

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_patience(self, now: float) -> None:
        """End streams that are too slow, or the connection. Called once a second."""
        if self._is_over or self._is_clogged:
            # A stream that is not read has its own timeout, after which it ends with an error event.
            patience = STREAMS_PATIENCE_SECONDS if self._requests.has_streams else PATIENCE_SECONDS
            if self._outflow.is_stuck(self._transport, now, patience):
                self._transport.abort()
            return
        if not self._has_begun:
            if now - self._held_since > PATIENCE_SECONDS:
                self._refuse(Refusal(REQUEST_TIMEOUT, "the preface was not complete in time"))
        elif self._is_late(now) or (self._requests.is_empty and now - self._since > IDLE_SECONDS):
            self._break_off()
        else:
            self._requests.check_patience(now)
            self._turn()

    def _is_late(self, now: float) -> bool:
        """Return whether the rest of a frame or of a header block is late."""
        cutter, waited = self._cutter, now - self._held_since
        if not cutter.is_inside:
            return False
        return is_too_slow(waited, cutter.held, is_body=not cutter.awaits_head)

    def drain(self) -> None:
        """Close an idle connection now, another one after its last response."""
        # Bytes that the acceptor handed over were sent before the shutdown.
        self.data_received(b"")
        if self._is_over:
            return
        if not self._has_begun:
            self._refuse(Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000))
            return
        self._is_leaving = self._requests.refuses_new = True
        self._requests.refuse_unfinished(self._monotonic())
        self._requests.hurry()
        self._turn()
