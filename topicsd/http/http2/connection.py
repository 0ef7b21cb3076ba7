"""The lane of HTTP/2 in the clear, for clients that know beforehand: the library behind bounds of our own.

E1  A request is read by the code of the other lanes and answered by the same handlers. It starts when it is
    there whole; those of a connection start in the order in which they came whole.
E2  Streams are independent: one that is not read, or not sent to its end, holds back only itself. What is
    wrong with a request ends its stream; what leaves the frames in doubt, or serves nobody, the connection.
E3  What a connection can make the process hold is bounded: by the windows that are opened, by answers that
    are not sent yet, and by not reading while the client does not. So is what it may cost (`h2_limits.py`).
E4  Patience and drain are those of HTTP/1.1, stream by stream. When the process ends, streams that are there
    are answered and new ones refused, each as not looked at; GOAWAY stands behind the last answer, because
    there are clients that take it for the end of all (those on this library do).
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

# With a stream on it a connection that is not read is kept until the stream has given it up.
STREAMS_PATIENCE_SECONDS: Final = CLOGGED_SECONDS_MAX + PATIENCE_SECONDS
# A request is two of them and takes a good part of a millisecond, in which other connections wait.
FRAMES_A_TURN: Final = 32

logger = logging.getLogger("topicsd.http")


class H2Lane(asyncio.Protocol):
    def __init__(
        self, dispatch: Dispatch, heads: KnownHeads, connections: Connections, first: bytes = b""
    ) -> None:
        """`first` is what was read of the connection before it came here."""
        self._connections = connections
        self._monotonic = dispatch.handlers.monotonic
        self._loop = dispatch.handlers.loop
        self._transport: asyncio.Transport
        self._first = first
        self._cutter = FrameCutter()
        self._has_begun = False
        """The preface is there."""
        self._wire = Wire()
        self._requests = Requests(dispatch, heads, self._wire, self._turn_soon)
        self._since = self._held_since = now = self._monotonic()
        """When the last stream ended; when it began to wait for the rest of a frame or of a header block."""
        self._frames = Allowance(FRAMES_MAX, FRAMES_A_SECOND, now)
        self._resets = Allowance(RESETS_MAX, RESETS_A_SECOND, now)
        self._outflow = Outflow()
        self._is_in_turn = self._is_turn_due = False
        self._is_reading = True
        self._is_clogged = False
        self._is_behind = False
        """More frames are there than one turn takes."""
        self._is_at_eof = False
        self._is_leaving = False
        """It ends with the streams that there are."""
        self._is_over = False

    # -- asyncio's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._first:
            self._loop.call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """What is on its way is still done; nobody hears of it."""
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
        """A client may close its side and still read its answers, but most that do so are gone."""
        self._is_at_eof = self._is_leaving = True
        self._requests.hurry()
        self._turn()
        return not self._is_over

    def data_received(self, data: bytes) -> None:
        if self._first:
            # Whatever comes first from the socket stands behind what was read before.
            data, self._first = self._first + data, b""
        if not data or self._is_over:
            return
        if not self._cutter.is_inside:
            self._held_since = self._monotonic()
        self._cutter.feed(data)
        if self._has_begun or self._begin():
            self._turn()

    def _begin(self) -> bool:
        """Whether the preface is there; what only begins like it is a request of an unknown version."""
        found = self._cutter.take_preface()
        if found:
            self._has_begun = True
            self._wire.receive_data(PREFACE)
        elif found is not None:
            refusal = parse_line(PREFACE_LINE.strip())
            assert isinstance(refusal, Refusal)
            self._refuse(refusal)
        return self._has_begun

    # -- in turns ------------------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        if not self._is_turn_due and not self._is_in_turn:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take what came, start what may start, send what may leave."""
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
        """End, or read on, as the turn left it."""
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
            # To the library that is the end also of what is on its way.
            self._is_leaving = True
            return
        try:
            events = self._wire.receive_data(frame.data)
        except ProtocolError:
            # The frame that says why is made.
            self._flush()
            self._end()
            return
        for _ in range(self._requests.take(events, now)):
            if not self._resets.take(now):
                self._break_off(ErrorCodes.ENHANCE_YOUR_CALM)
                return

    def _send(self, now: float) -> None:
        """As much as the client takes."""
        while not self._is_over:
            if not self._is_clogged:
                self._requests.sender.fill(now, self._left)
            if not self._flush():
                return

    def _left(self, exchange: Exchange, size: int) -> None:
        # For the request, and for the words that the client has read it.
        self._frames.give(2 + size // EARNED_BYTES)
        self._requests.left(exchange, size)

    def _flush(self) -> bool:
        data = self._wire.data_to_send()
        if data:
            self._transport.write(data)
        return bool(data)

    # -- ending --------------------------------------------------------------------------------------------

    def _break_off(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """With a word why, and which streams were looked at."""
        self._wire.close_connection(code)
        self._flush()
        self._end(lingers=code != ErrorCodes.NO_ERROR or self._cutter.is_inside)

    def _refuse(self, refusal: Refusal) -> None:
        """Of a connection that has not begun."""
        self._transport.write(closing_refusal(refusal))
        self._end()

    def _end(self, lingers: bool = True) -> None:
        """Nothing more is started; what was written may still have to be read, by a client that goes on."""
        self._is_over = True
        self._outflow.begin(self._transport, self._monotonic())
        self._requests.lose_all()
        if self._is_at_eof or not lingers:
            self._transport.close()
        else:
            Lingering(self._transport, self._connections, self._monotonic)
            self._connections.closed(self)

    # -- the process's side --------------------------------------------------------------------------------

    def check_patience(self, now: float) -> None:
        """Called now and then: end what is too slow, be it a stream or the connection."""
        if self._is_over or self._is_clogged:
            # A stream that is not read has its own time, behind which it ends with a word.
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
        """Of the rest of a frame, or of a header block."""
        cutter, waited = self._cutter, now - self._held_since
        if not cutter.is_inside:
            return False
        return is_too_slow(waited, cutter.held, is_body=not cutter.awaits_head)

    def drain(self) -> None:
        """The process ends: an idle connection is closed now, another with its last answer."""
        # What came along from the front process was sent before the end.
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
