"""A clock that advances only when a test advances it.

A `shared.runtime.clock.Clock`: `advance` moves wall time and monotonic time together, and `step_wall` moves
wall time alone, also backwards. Time is counted in whole nanoseconds, so that a thousand small steps add up
exactly.
"""

from __future__ import annotations

_NS_PER_MS = 1_000_000


class ManualClock:
    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic: float = 1000.0) -> None:
        self._wall_ns = now_ms * _NS_PER_MS
        self._monotonic_ns = round(monotonic * 1e9)

    def now_ms(self) -> int:
        return self._wall_ns // _NS_PER_MS

    def monotonic(self) -> float:
        return self._monotonic_ns / 1e9

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: float) -> None:
        self.advance_ns(round(ms * _NS_PER_MS))

    def advance_ns(self, ns: int) -> None:
        assert ns >= 0, "monotonic time cannot go back"
        self._wall_ns += ns
        self._monotonic_ns += ns

    def step_wall(self, ms: int) -> None:
        """Step the wall clock, as ntpd or an operator would."""
        self._wall_ns += ms * _NS_PER_MS
