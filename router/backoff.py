"""How long to wait before a worker that ended is started again.

A worker that crashes on its way up must not take the machine with it, one that ran well for a while deserves
to be back at once.

Must not know: processes, clocks.
"""

from __future__ import annotations


class Backoff:
    """
    >>> backoff = Backoff(first_seconds=0.1, max_seconds=5.0, healthy_seconds=30.0)
    >>> [backoff.ended(healthy_for=0.0) for _ in range(7)]
    [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    >>> backoff.ended(healthy_for=31.0)
    0.1
    """

    def __init__(self, first_seconds: float, max_seconds: float, healthy_seconds: float) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._healthy = healthy_seconds
        self._next = first_seconds

    def ended(self, healthy_for: float) -> float:
        """Seconds to wait; `healthy_for` is how long the worker that ended had been serving."""
        if healthy_for >= self._healthy:
            self._next = self._first
        wait = self._next
        self._next = min(self._next * 2, self._max)
        return wait
