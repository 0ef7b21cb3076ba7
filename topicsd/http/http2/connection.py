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

from shared.contract.errors import REQUEST_TIMEOUT, Refusal, shutting_down
from shared.http.answer import closing_refusal
from shared.http.client_speed import CLIENT_TIMEOUT_SECONDS, IDLE_SECONDS, Outflow, is_too_slow
from shared.http.head import parse_line
from shared.http.http2_preface import GO_AWAY_TYPE, PREFACE, PREFACE_LINE
from topicsd.http.http1.head_cache import HeadCache
from topicsd.http.http1.timeouts import ClientConnection, Connections, Lingering
from topicsd.http.http2.exchange import Exchange
from topicsd.http.http2.frames import FrameCutter, Http2Frame
from topicsd.http.http2.limits import (
    EARNED_BYTES,
    FRAMES_MAX,
    FRAMES_PER_SECOND,
    RESETS_MAX,
    RESETS_PER_SECOND,
    Allowance,
)
from topicsd.http.http2.requests import Requests
from topicsd.http.http2.wire import Wire
from topicsd.service.dispatch import Dispatch
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX

# A connection that is not read is kept until its streams have timed out.
STREAMS_TIMEOUT_SECONDS: Final = PAUSED_SECONDS_MAX + CLIENT_TIMEOUT_SECONDS
# A request is two frames and takes a good part of a millisecond, in which other connections wait.
FRAMES_PER_TURN: Final = 32

logger = logging.getLogger("topicsd.http")


class Http2Connection(ClientConnection, asyncio.Protocol):
    def __init__(
        self, dispatch: Dispatch, heads: HeadCache, connections: Connections, first: bytes = b""
    ) -> None:
        """Create a connection. `first` is what another process read before it handed the connection over."""
        self._connections = connections
        self._monotonic = dispatch.handlers.monotonic
        self._loop = dispatch.handlers.loop
        self._transport: asyncio.Transport
        self._handed_data = first
        self._cutter = FrameCutter()
        self._has_preface = False
        """Whether the preface was received."""
        self._wire = Wire()
        self._requests = Requests(dispatch, heads, self._wire, self._schedule_turn, self)
        self._idle_since = self._partial_since = now = self._monotonic()
        """`_idle_since`: when the last stream ended. `_partial_since`: when the wait for the rest of a frame,
        or of a header block, began."""
        self._frames = Allowance(FRAMES_MAX, FRAMES_PER_SECOND, now)
        self._resets = Allowance(RESETS_MAX, RESETS_PER_SECOND, now)
        self._outflow = Outflow()
        self._is_in_turn = self._is_turn_due = False
        self._is_reading = True
        self._is_paused = False
        self._has_more_frames = False
        """Whether more frames were received than one turn processes."""
        self._is_at_eof = False
        self._is_closing = False
        """Whether the connection ends with its existing streams."""
        self._is_closed = False

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._handed_data:
            self._loop.call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Let the requests in progress finish; their responses are discarded."""
        self._is_closed = True
        self._connections.closed(self)
        self._requests.discard_all()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._outflow.begin(self._transport, self._monotonic())

    def resume_writing(self) -> None:
        self._is_paused = False
        self._turn()

    def eof_received(self) -> bool:
        """End the connection, after the responses in progress.

        A client may half-close and still read its responses, but most that half-close are gone, so waiting
        calls are answered at once.
        """
        self._is_at_eof = self._is_closing = True
        self._requests.cancel_wait()
        self._turn()
        return not self._is_closed

    def data_received(self, data: bytes) -> None:
        if self._handed_data:
            # The first bytes from the socket follow the bytes that were handed over.
            data, self._handed_data = self._handed_data + data, b""
        if not data or self._is_closed:
            return
        if not self._cutter.has_partial:
            self._partial_since = self._monotonic()
        self._cutter.feed(data)
        if self._has_preface or self._begin():
            self._turn()

    def _begin(self) -> bool:
        """Take the preface. Return whether it is complete.

        Bytes that only begin like it are a request of an unknown HTTP version, and are refused as one.
        """
        is_preface = self._cutter.take_preface()
        if is_preface:
            self._has_preface = True
            self._wire.receive_data(PREFACE)
        elif is_preface is not None:
            refusal = parse_line(PREFACE_LINE.strip())
            assert isinstance(refusal, Refusal)
            self._refuse(refusal)
        return self._has_preface

    # -- turns ---------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._is_turn_due and not self._is_in_turn:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Process received frames, start requests, and send what the windows allow."""
        self._is_turn_due = False
        if self._is_closed or self._is_in_turn:
            return
        self._is_in_turn = True
        now = self._monotonic()
        try:
            self._process_frames(now)
        except Exception:
            logger.exception("http2: connection closed: unexpected error")
            self._go_away(ErrorCodes.INTERNAL_ERROR)
        self._is_in_turn = False
        self._finish_turn(now)

    def _finish_turn(self, now: float) -> None:
        """End the connection, or pause or resume reading, after a turn."""
        if self._is_closed:
            return
        if not self._requests.is_empty or self._has_more_frames:
            self._idle_since = now
        elif self._is_closing and self._has_preface:
            self._go_away()
            return
        elif self._is_closing:
            self._end()
            return
        if self._has_more_frames:
            self._schedule_turn()
        if self._is_reading == (self._is_paused or self._has_more_frames):
            self._is_reading = not self._is_reading
            if self._is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _process_frames(self, now: float) -> None:
        if not self._has_preface:
            return
        self._has_more_frames = True
        for _ in range(FRAMES_PER_TURN):
            frame = None if self._is_closed or self._is_paused else self._cutter.next()
            if frame is None:
                self._has_more_frames = False
                break
            if isinstance(frame, ErrorCodes):
                self._go_away(frame)
            else:
                self._take(frame, now)
        if self._is_at_eof and not self._has_more_frames:
            self._requests.discard_unfinished()
        self._send(now)
        while not self._is_closed and not self._is_paused and self._requests.start_some(now):
            self._send(now)

    def _take(self, frame: Http2Frame, now: float) -> None:
        if not self._cutter.is_in_block:
            self._partial_since = now
        if frame.cost and not self._frames.take(now):
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM)
            return
        if frame.type == GO_AWAY_TYPE:
            # The library would end the streams in progress too.
            self._is_closing = True
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
                self._go_away(ErrorCodes.ENHANCE_YOUR_CALM)
                return

    def _send(self, now: float) -> None:
        """Send as much as the client accepts."""
        while not self._is_closed:
            if not self._is_paused:
                self._requests.sender.fill(now, self._on_sent)
            if not self._flush():
                return

    def _on_sent(self, exchange: Exchange, size: int) -> None:
        # For the request, and for the window updates of a client that has read the response.
        self._frames.give(2 + size // EARNED_BYTES)
        self._requests.on_sent(exchange, size)

    def _flush(self) -> bool:
        data = self._wire.data_to_send()
        if data:
            self._transport.write(data)
        return bool(data)

    # -- ending --------------------------------------------------------------------------------------------

    def _go_away(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Close with GOAWAY, which says why and which streams were processed."""
        self._wire.close_connection(code)
        self._flush()
        self._end(linger=code != ErrorCodes.NO_ERROR or self._cutter.has_partial)

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse a connection that has not sent its preface."""
        self._transport.write(closing_refusal(refusal))
        self._end()

    def _end(self, linger: bool = True) -> None:
        """Start no more requests.

        What was written may still have to be read, by a client that keeps sending.
        """
        self._is_closed = True
        self._outflow.begin(self._transport, self._monotonic())
        self._requests.discard_all()
        if self._is_at_eof or not linger:
            self._transport.close()
        else:
            Lingering(self._transport, self._connections, self._monotonic)
            self._connections.closed(self)

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_timeouts(self, now: float) -> None:
        """End streams that are too slow, or the connection. Called once a second."""
        if self._is_closed or self._is_paused:
            # A stream that is not read has its own timeout, after which it ends with an error event.
            timeout_seconds = (
                STREAMS_TIMEOUT_SECONDS if self._requests.has_streams else CLIENT_TIMEOUT_SECONDS
            )
            if self._outflow.is_stuck(self._transport, now, timeout_seconds):
                self._transport.abort()
            return
        if not self._has_preface:
            if now - self._partial_since > CLIENT_TIMEOUT_SECONDS:
                self._refuse(Refusal(REQUEST_TIMEOUT, "the HTTP/2 preface was not complete in time"))
        elif self._is_late(now) or (self._requests.is_empty and now - self._idle_since > IDLE_SECONDS):
            self._go_away()
        else:
            self._requests.check_timeouts(now)
            self._turn()

    def _is_late(self, now: float) -> bool:
        """Return whether the rest of a frame or of a header block is late."""
        cutter, waiting_seconds = self._cutter, now - self._partial_since
        if not cutter.has_partial:
            return False
        return is_too_slow(waiting_seconds, cutter.pending_bytes, is_body=not cutter.awaits_head)

    def drain(self) -> None:
        """Close an idle connection now, another one after its last response."""
        # Bytes that the acceptor handed over were sent before the shutdown.
        self.data_received(b"")
        if self._is_closed:
            return
        if not self._has_preface:
            self._refuse(shutting_down())
            return
        self._is_closing = self._requests.is_refusing = True
        self._requests.refuse_unfinished(self._monotonic())
        self._requests.cancel_wait()
        self._turn()
