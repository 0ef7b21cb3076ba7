"""What one connection of HTTP/2 may have, do and cost.

Streams are cheap for who opens them, so their number bounds little by itself. What is bounded is the work
that is in vain (streams that are reset), the frames that ask for nothing, and the bytes that are held.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# Clients take it for the bound until they are told, so that none is ever over it by mistake.
STREAMS_MAX: Final = 100
# More than the fields of a request may have, with what the protocol counts on top; beyond, nobody answers.
HEADER_LIST_BYTES_MAX: Final = 48 << 10
# What may be on its way to us, for all streams, and for one that was not given more.
CONNECTION_WINDOW: Final = 1 << 20
STREAM_WINDOW: Final = (1 << 16) - 1
# More than a body needs, for padding on the way, and so that one that is too long can be told.
SPARE_WINDOW: Final = 4 << 10
# Answers that are not written yet. Beyond it no further request is started, be it that of a client that reads
# behind the same proxy.
UNSENT_BYTES_MAX: Final = 16 << 20

# A client that goes cancels all it waits for, at once.
RESETS_MAX: Final = 2 * STREAMS_MAX
RESETS_A_SECOND: Final = 20
# What a head that is refused for its size counts for.
HEAVY_HEAD: Final = 10
FRAMES_MAX: Final = 4000
FRAMES_A_SECOND: Final = 500
# Clients say that they have read, for the stream and for the connection, every few KiB of it.
EARNED_BYTES: Final = 2048


class Allowance:
    """So many at once, and so many a second for ever."""

    def __init__(self, at_once: int, a_second: int, now: float) -> None:
        self._at_once = at_once
        self._a_second = a_second
        self._left = float(at_once)
        self._since = now

    def take(self, now: float) -> bool:
        """Whether there was one left."""
        self._left = min(self._at_once, self._left + (now - self._since) * self._a_second)
        self._since = now
        self._left -= 1
        return self._left >= 0

    def give(self, count: int) -> None:
        self._left += count


class BodyRoom:
    """Who may send a body that is more than a stream's first window, one after the other where they do not
    fit together. Each that waits gets its turn, also the largest there may be.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[int, int] = {}
        self._waiting: deque[tuple[int, int]] = deque()

    def ask(self, stream_id: int, size: int) -> None:
        assert size <= self._bytes_max
        self._waiting.append((stream_id, size))

    def leave(self, stream_id: int) -> None:
        """Its body is not held any more, or will never come."""
        if self._taken.pop(stream_id, None) is None:
            self._waiting = deque(one for one in self._waiting if one[0] != stream_id)

    def admitted(self) -> list[tuple[int, int]]:
        """Those that may send now, each told once."""
        admitted = []
        taken = sum(self._taken.values())
        while self._waiting and taken + self._waiting[0][1] <= self._bytes_max:
            stream_id, size = self._waiting.popleft()
            self._taken[stream_id] = size
            taken += size
            admitted.append((stream_id, size))
        return admitted
