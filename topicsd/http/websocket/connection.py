"""A WebSocket connection: bytes in and out, pings, and its end.

L1  A message is read when the session accepts one and the client reads what it is sent. Otherwise the
    client waits in its socket; so the memory that a connection can make the process hold is one message,
    the operations in progress, and the bytes written to it. A client that does not read lags and then
    times out like that of a stream (`stream/event_stream.py`).
L2  A silent client is sent a ping, and is disconnected if it does not answer. A client that sends frames
    without content faster than needed is disconnected too.
L3  If the server ends the connection, it sends a close frame with a code and a reason, and drops further
    input until the client has closed (`Lingering`). A close by the client is answered the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from wsproto.frame_protocol import CloseReason, Opcode

from shared.http.client_speed import is_too_slow
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.http.http1.stream import bound_buffers
from topicsd.http.http1.timeouts import Connections, Lingering
from topicsd.http.websocket import frames as ws_frames
from topicsd.http.websocket.reader import ControlMessage, Message, WsReader
from topicsd.http.websocket.session import MessageConnection
from topicsd.stream.event_stream import LAGGING_SECONDS, PAUSED_SECONDS_MAX

logger = logging.getLogger("topicsd.http")

PING_SECONDS: Final = 20.0
PONG_SECONDS: Final = 20.0
# Between two timeout checks, which run once a second.
EMPTY_FRAMES_MAX: Final = 100


class SocketSession(Protocol):
    """The interface of a session to its connection. A session interprets the messages."""

    @property
    def is_busy(self) -> bool: ...

    def receive(self, message: bytes) -> None: ...

    def ready(self) -> None: ...

    def check_key(self) -> None: ...

    def too_slow(self) -> None: ...

    def drain(self) -> None: ...

    def lost(self) -> None: ...


class WebSocketConnection(asyncio.Protocol):
    def __init__(
        self,
        head: bytes,
        message_bytes_max: int,
        connections: Connections,
        monotonic: Callable[[], float],
        make_session: Callable[[MessageConnection], SocketSession],
        on_end: Callable[[], None],
        on_lag: Callable[[int], None],
    ) -> None:
        """Create a connection. `head` is the response to the upgrade request, which is written first.

        `on_end` is called once, when the connection is over. `on_lag` is called with 1 when its client
        begins to lag, and with -1 when it stops lagging.
        """
        self._head = head
        self._connections = connections
        self._monotonic = monotonic
        self._reader = WsReader(message_bytes_max)
        self._session = make_session(self)
        self._transport: asyncio.Transport
        self._on_end = on_end
        self._on_lag = on_lag
        self.is_paused = False
        self._is_lagging = False
        self._paused_since = 0.0
        self._is_reading = False
        self._is_reading_paused = False
        self._is_closed = False
        self._empty_frames = 0
        self._last_data_at = self._message_since = monotonic()
        """When data was last received, and when the message in progress began."""
        self._pinged_at: float | None = None

    # -- calls of the session ------------------------------------------------------------------------------

    def write(self, frames: bytes) -> None:
        if not self._is_closed:
            self._transport.write(frames)

    def resume(self) -> None:
        if self._is_reading_paused:
            self._take()

    def close(self, code: int, reason: str) -> None:
        if self._is_closed:
            return
        self._transport.write(ws_frames.close_frame(code, reason))
        self._end()
        Lingering(self._transport, self._connections, self._monotonic)

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        bound_buffers(self._transport)
        self._transport.resume_reading()
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        self._last_data_at, self._pinged_at = self._monotonic(), None
        if not self._reader.pending_bytes:
            self._message_since = self._last_data_at
        self._reader.feed(data)
        self._take()

    def eof_received(self) -> bool:
        """Close the connection: an end without a close frame is abnormal, and no reader is left."""
        return False

    def pause_writing(self) -> None:
        self.is_paused = True
        self._paused_since = self._monotonic()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._set_lagging(False)
        if not self._is_closed:
            self._session.ready()
            self._take()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._end()

    # -- reading -------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Process the received frames while the session accepts them."""
        if self._is_reading or self._is_closed:
            return
        self._is_reading = True
        while self._may_read:
            received = self._reader.next()
            if received is None:
                break
            if isinstance(received, Message):
                self._receive(received.text)
            elif isinstance(received, ControlMessage):
                self._take_control(received)
            else:
                self.close(received.code, received.reason)
        self._is_reading = False
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        must_pause = not self._may_read
        if must_pause != self._is_reading_paused and not self._is_closed:
            self._is_reading_paused = must_pause
            if must_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    @property
    def _may_read(self) -> bool:
        return not (self._is_closed or self.is_paused or self._session.is_busy)

    def _receive(self, message: bytes) -> None:
        try:
            self._session.receive(message)
        except Exception as error:
            refusal = refuse_unexpected_error(logger, "a WebSocket message", error)
            self.close(ws_frames.INTERNAL_ERROR, refusal.message)

    def _take_control(self, control: ControlMessage) -> None:
        if control.opcode is Opcode.CLOSE:
            code = control.code
            self.close(ws_frames.NORMAL if code == CloseReason.NO_STATUS_RCVD else code, "")
            return
        self._empty_frames += 1
        if self._empty_frames > EMPTY_FRAMES_MAX:
            self.close(ws_frames.POLICY, "too many pings, pongs or empty fragments")
        elif control.opcode is Opcode.PING:
            self._transport.write(ws_frames.frame(ws_frames.PONG, control.payload))

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_timeouts(self, now: float) -> None:
        """Apply the timeouts, and check the key. Called once a second."""
        self._empty_frames = 0
        if self.is_paused:
            self._set_lagging(now - self._paused_since > LAGGING_SECONDS)
            if now - self._paused_since > PAUSED_SECONDS_MAX:
                self._session.too_slow()
        elif self._is_reading_paused:
            # The connection is not reading, so the client is not late.
            self._last_data_at = self._message_since = now
        elif self._reader.pending_bytes and is_too_slow(
            now - self._message_since, self._reader.pending_bytes, is_body=True
        ):
            self.close(ws_frames.POLICY, "a message was not complete in time")
        elif self._pinged_at is not None:
            if now - self._pinged_at > PONG_SECONDS:
                self.close(ws_frames.POLICY, "the client did not answer a ping")
        elif now - self._last_data_at > PING_SECONDS:
            self._pinged_at = now
            self._transport.write(ws_frames.frame(ws_frames.PING, b""))
        self._session.check_key()

    def drain(self) -> None:
        self._session.drain()

    def _set_lagging(self, is_lagging: bool) -> None:
        if is_lagging != self._is_lagging:
            self._is_lagging = is_lagging
            self._on_lag(1 if is_lagging else -1)

    def _end(self) -> None:
        self._is_closed = True
        self._set_lagging(False)
        self._connections.closed(self)
        self._session.lost()
        self._on_end()
