"""The base of server-sent event streams: heartbeats, slow clients, and the end of a stream.

E1  A client that received nothing for a heartbeat interval gets a heartbeat.
E2  A client that does not read is *lagging* after 5 s; after 30 s the stream ends with an error event.
E3  Every end that the server causes is announced by an event.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from shared.contract.errors import RETRY_AFTER_MS
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.stream import sse_frames
from topicsd.stream.stream import Stream

FIELDS: Final = b"content-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"
LAGGING_SECONDS: Final = 5.0
PAUSED_SECONDS_MAX: Final = 30.0
TAKEN_OVER: Final = "taken_over"
TOO_SLOW: Final = "slow_consumer"
SHUTTING_DOWN: Final = "shutting_down"
KEY_REVOKED: Final = "the key was revoked"


class EventStream:
    __slots__ = (
        "_clock",
        "_heartbeat_seconds",
        "_is_lagging",
        "_is_over",
        "_last_write_at",
        "_loop",
        "_slow_timer",
        "_stream",
        "_timer",
    )

    _advice: ClassVar[str] = ""
    """Advice for a client that was too slow, appended to the error message."""

    def __init__(self, stream: Stream, loop: Loop, clock: Clock, heartbeat_ms: int) -> None:
        self._stream = stream
        self._loop = loop
        self._clock = clock
        self._heartbeat_seconds = heartbeat_ms / 1000
        self._is_over = False
        self._is_lagging = False
        self._slow_timer: Any = None
        """The timer of a client that does not read."""
        self._last_write_at = clock.monotonic()
        stream.on_ready = self._on_ready
        stream.on_lost = self._end
        self._timer = loop.call_later(self._heartbeat_seconds, self._heartbeat)

    # -- implemented by each kind of stream ----------------------------------------------------------------

    def _resume(self) -> None:
        """Resume after the client has read and there is room for more."""
        raise NotImplementedError

    def _write_event(self, text: bytes) -> None:
        """Write an event."""
        self._write(text)

    def _write_heartbeat(self, now_ms: int) -> None:
        self._write(sse_frames.heartbeat(now_ms))

    def _write_error(self, code: str, message: str) -> None:
        """Write the event that ends a stream with an error."""
        self._write_event(sse_frames.error(code, message, None, RETRY_AFTER_MS))

    def _on_lagging(self, is_lagging: bool) -> None:
        """Count a stream that begins to lag, or that does not lag any more."""
        raise NotImplementedError

    def _clean_up(self) -> None:
        """Release the resources of a stream that ended for any reason."""
        raise NotImplementedError

    # -- writing -------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._last_write_at = self._clock.monotonic()
        self._stream.write(data)
        if self._stream.is_paused:
            self._start_slow_timer()

    def _on_ready(self) -> None:
        self._end_lag()
        self._resume()

    def _heartbeat(self) -> None:
        """Write a heartbeat if nothing was written for the heartbeat interval."""
        seconds = self._heartbeat_seconds
        silence = self._clock.monotonic() - self._last_write_at
        if self._stream.is_paused:
            self._start_slow_timer()
            silence = 0.0
        elif silence >= seconds:
            self._write_heartbeat(self._clock.now_ms())
            silence = 0.0
        # A timer may fire slightly early; it then waits for the rest, at least 1 ms.
        self._timer = self._loop.call_later(max(0.001, seconds - silence), self._heartbeat)

    # -- the end -------------------------------------------------------------------------------------------

    def _start_slow_timer(self) -> None:
        """Start the timer that ends the stream if the client keeps not reading (E2)."""
        if self._slow_timer is None:
            self._slow_timer = self._loop.call_later(LAGGING_SECONDS, self._begin_lag)

    def _begin_lag(self) -> None:
        """Mark the client as lagging, and start the timer for the rest of its time (E2)."""
        self._is_lagging = True
        self._on_lagging(True)
        self._slow_timer = self._loop.call_later(PAUSED_SECONDS_MAX - LAGGING_SECONDS, self._end_slow)

    def _end_lag(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        if self._is_lagging:
            self._is_lagging = False
            self._on_lagging(False)

    def _end_slow(self) -> None:
        self.end(TOO_SLOW, f"the client read nothing for {PAUSED_SECONDS_MAX:.0f} s{self._advice}")

    def end(self, code: str, message: str) -> None:
        """End the stream with an error event."""
        if not self._is_over:
            self._write_error(code, message)
            self._close()

    def _close(self) -> None:
        """Close the stream after what was written."""
        self._stream.close()
        self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._end_lag()
        self._timer.cancel()
        self._clean_up()
