"""The clock: the only module that reads the time, so that tests can control it.

Wall time stamps records and may step. Monotonic time measures durations and never steps. No other module
calls `time`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall time in ms since 1970; it may step, also backwards."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment; never steps."""
        ...


class SystemClock:
    # The function itself, without a wrapper: it is called twice per request.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
