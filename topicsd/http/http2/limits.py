"""Limits of one HTTP/2 connection: its streams, work and memory.

Streams are cheap for a client to open, so a limit of their number alone bounds little. Three things are
bounded: wasted work (streams that are reset), frames that request nothing, and the bytes held.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Clients assume this limit until they receive the settings, so no client exceeds it by mistake.
STREAMS_MAX: Final = 100
# More than the fields of a request may have, with the overhead that the protocol counts; a larger list ends
# the connection.
HEADER_LIST_BYTES_MAX: Final = 48 << 10
# Bytes in transit to the server, for all streams, and for a stream without an enlarged window.
CONNECTION_WINDOW: Final = 1 << 20
STREAM_WINDOW: Final = (1 << 16) - 1
# Added to the window of a body, for padding, and so that a body that is too long is detected.
SPARE_WINDOW: Final = 4 << 10
# Unsent response bytes. Above it no further request starts, even of a client that reads and shares the
# proxy's connection.
UNSENT_BYTES_MAX: Final = 16 << 20

# A client that leaves cancels all its requests at once.
RESETS_MAX: Final = 2 * STREAMS_MAX
RESETS_PER_SECOND: Final = 20
# The number of resets that a head refused for its size counts as.
HEAVY_HEAD: Final = 10
FRAMES_MAX: Final = 4000
FRAMES_PER_SECOND: Final = 500
# Clients send window updates, for the stream and for the connection, every few KiB that they read.
EARNED_BYTES: Final = 2048


class Allowance:
    """A rate limit: `burst` at once, and `rate` per second sustained."""

    def __init__(self, burst: int, rate: int, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._since = now

    def take(self, now: float) -> bool:
        """Use one. Return whether one was left."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        self._left -= 1
        return self._left >= 0

    def give(self, count: int) -> None:
        self._left += count


class BodyRoom:
    """Admission of bodies larger than a stream's first window.

    Bodies that do not fit together are admitted one after the other. Each waiting stream gets its turn,
    also one with the largest body allowed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque()

    def request(self, stream_id: int, size: int) -> None:
        assert size <= self._bytes_max
        self._waiting.append((stream_id, size))

    def release(self, stream_id: int) -> None:
        """Remove a stream whose body is not held any more, or will never arrive."""
        if self._taken.pop(stream_id, None) is None:
            self._waiting = deque(one for one in self._waiting if one[0] != stream_id)

    def admit(self) -> list[tuple[int, int]]:
        """Return the streams that may send now with their sizes, each stream once."""
        admitted = []
        taken = sum(self._taken.values())
        while self._waiting and taken + self._waiting[0][1] <= self._bytes_max:
            stream_id, size = self._waiting.popleft()
            self._taken[stream_id] = size
            taken += size
            admitted.append((stream_id, size))
        return admitted
