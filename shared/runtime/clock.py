"""The one place that reads the time, so that tests can hold it in their hands.

Wall time and monotonic time are two things: the first is what a record is stamped with and may step, the
second measures how long something took and never does. Nobody else calls `time`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, ms since 1970. May step, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never steps."""
        ...


class SystemClock:
    # The function itself: it is asked twice a request.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
