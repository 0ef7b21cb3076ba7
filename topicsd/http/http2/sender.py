"""The sender of an HTTP/2 connection: it sends each of many streams as its window allows.

O1  Streams take turns, one frame each, so a large response does not hold up a small one.
O2  A stream whose window is used up waits by itself; the others continue.
O3  At most `WRITE_BYTES` of frames are made at a time: the data of later frames is held, not copied, and
    after these frames the connection may be paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from h2.connection import H2Connection

from shared.http.client_speed import BODY_BYTES_PER_SECOND, CLIENT_TIMEOUT_SECONDS
from topicsd.http.http2.frames import FRAME_BYTES_MAX

WRITE_BYTES: Final = 64 << 10


class Outgoing:
    """The unsent data of one stream, after its head. Data is not copied before it is sent."""

    __slots__ = ("_parts", "blocked_since", "id", "is_ending", "is_queued", "sent_bytes", "unsent")

    def __init__(self, stream_id: int) -> None:
        self.id = stream_id
        self._parts: deque[memoryview] = deque()
        self.unsent = 0
        self.is_ending = False
        """No data is added any more: the stream ends after the data it has."""
        self.is_queued = False
        self.blocked_since: float | None = None
        """Since when the client accepts no data or almost none, though there is some to send."""
        self.sent_bytes = 0

    def add(self, part: bytes | memoryview) -> None:
        if len(part):
            self._parts.append(memoryview(part))
            self.unsent += len(part)

    def take(self, size: int) -> bytes:
        """Take `size` bytes, which must be available."""
        taken = []
        self.unsent -= size
        while size:
            part = self._parts[0]
            if len(part) <= size:
                self._parts.popleft()
            else:
                self._parts[0] = part[size:]
                part = part[:size]
            taken.append(part)
            size -= len(part)
        return b"".join(taken)

    def is_stuck(self, now: float) -> bool:
        """Return whether a response that is ending is blocked for too long.

        While a stream is open, its writer decides how long it may be paused.
        """
        since = self.blocked_since
        return self.is_ending and since is not None and now - since > CLIENT_TIMEOUT_SECONDS

    def clear(self) -> None:
        self._parts.clear()
        self.unsent = 0


T = TypeVar("T", bound=Outgoing)


class Sender(Generic[T]):
    def __init__(self, wire: H2Connection) -> None:
        self._wire = wire
        self._ready: deque[T] = deque()
        self._blocked: dict[int, T] = {}

    def wake(self, one: T) -> None:
        """Schedule a stream that has data to send, or its end."""
        if not one.is_queued and one.id not in self._blocked:
            one.is_queued = True
            self._ready.append(one)

    def window_opened(self, stream_id: int) -> None:
        """Schedule a stream whose window opened; 0 is the connection's window, which may block all."""
        opened = [stream_id] if stream_id else list(self._blocked)
        for one_id in opened:
            one = self._blocked.pop(one_id, None)
            if one is not None:
                self.wake(one)

    def forget(self, one: T) -> None:
        self._blocked.pop(one.id, None)
        if one.is_queued:
            self._ready.remove(one)
            one.is_queued = False
        one.clear()

    def fill(self, now: float, on_sent: Callable[[T, int], None]) -> None:
        """Make frames of the data that may be sent; call `on_sent` for each with its size."""
        frame_bytes = 0
        while self._ready and frame_bytes < WRITE_BYTES:
            one = self._ready.popleft()
            one.is_queued = False
            size = one.unsent
            if size:
                size = min(size, FRAME_BYTES_MAX, self._wire.local_flow_control_window(one.id))
                if size <= 0:
                    self._block(one, now)
                    continue
            ends = one.is_ending and size == one.unsent
            if size or ends:
                self._wire.send_data(one.id, one.take(size), end_stream=ends)
                frame_bytes += size
                one.sent_bytes += size
                if one.sent_bytes >= BODY_BYTES_PER_SECOND or not one.unsent:
                    one.blocked_since = None
                if one.unsent:
                    self.wake(one)
                on_sent(one, size)

    def _block(self, one: T, now: float) -> None:
        self._blocked[one.id] = one
        if one.blocked_since is None:
            one.blocked_since, one.sent_bytes = now, 0
