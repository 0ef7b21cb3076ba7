"""When a webhook sends again after a failure.

Each failed request doubles the pause before the next one. After `FAILURES_MAX` failures in a row the circuit
breaker opens: nothing is sent until its time is over. The next request is then a probe, which closes the
breaker, or opens it again for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 60_000
FAILURES_MAX: Final = 5
OPEN_MS: Final = 30_000
OPEN_MS_MAX: Final = 300_000
RETRY_AFTER_MS_MAX: Final = 3_600_000


class CircuitBreaker:
    """The failures of one receiver.

    >>> breaker = CircuitBreaker(random=lambda: 1.0)
    >>> [breaker.wait_ms_after_failure(0, 0) for _ in range(6)], breaker.open_until
    ([1000, 2000, 4000, 8000, 30000, 60000], 60000)
    >>> breaker.on_success()
    >>> breaker.wait_ms_after_failure(0, retry_after_ms=90_000), breaker.open_until
    (90000, 0)
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self.open_until = 0
        """The time in ms until which nothing is sent; 0 when the breaker is closed."""
        self._failures = 0
        self._random = random

    def on_success(self) -> None:
        self._failures = self.open_until = 0

    def wait_ms_after_failure(self, now_ms: int, retry_after_ms: int) -> int:
        """Count a failure; return the pause before the next request."""
        self._failures = failures = self._failures + 1
        if failures < FAILURES_MAX:
            pause = min(PAUSE_MS << (failures - 1), PAUSE_MS_MAX)
            # At least half of it; the rest is random, so that many routes do not return together.
            wait_ms = round(pause * (0.5 + self._random() / 2))
        else:
            # The shift is bounded: a receiver may fail for years.
            wait_ms = min(OPEN_MS << min(failures - FAILURES_MAX, 10), OPEN_MS_MAX)
        wait_ms = max(wait_ms, min(retry_after_ms, RETRY_AFTER_MS_MAX))
        if failures >= FAILURES_MAX:
            self.open_until = now_ms + wait_ms
        return wait_ms
