"""The timing of syncs: a window apart under pressure, and without delay for readers of synced records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop


class SyncWindow:
    """The minimum distance between syncs under pressure.

    W1  A window in which only one writer waited ends the delays until pressure is measured again.
    """

    def __init__(
        self, clock: Clock, loop: Loop, waiting_count: Callable[[], int], on_over: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting_count = waiting_count
        self._on_over = on_over
        self._is_open = False
        self.seconds = 0.0
        """Minimum seconds between the starts of two syncs; 0 without pressure."""
        self.is_shared = False
        """Whether writers shared the last window, or no window has ended yet (W1)."""

    def set(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_shared = seconds > 0.0

    def must_wait(self, last_started: float) -> bool:
        """Return whether a sync must wait for the end of the window, when `on_over` is called."""
        wait = last_started + self.seconds - self._clock.monotonic()
        if wait <= 0.0:
            return False
        if not self._is_open:
            self._is_open = True
            self._loop.call_later(wait, self._over)
        return True

    def _over(self) -> None:
        self._is_open = False
        self.is_shared = self.is_shared and self._waiting_count() > 1
        self._on_over()


# Minimum distance of syncs that only readers wait for: each takes CPU time from writers.
APART_SECONDS: Final = 0.004


class ReaderSyncs:
    """The callbacks that wait for a sync which no writer needs."""

    def __init__(self, clock: Clock, loop: Loop, start: Callable[[], object]) -> None:
        """Take `start`, which begins a sync unless one is running or nothing needs one."""
        self._clock = clock
        self._loop = loop
        self._start = start
        self._waiting: list[Callable[[], object]] = []
        self._is_timer_set = False

    def add(self, synced: Callable[[], object], last_started: float, window_seconds: float) -> None:
        """Call `synced` after the next sync; begin one, at once or on a timer, if none is running."""
        self._waiting.append(synced)
        if self._is_timer_set:
            return
        wait = last_started + max(APART_SECONDS, window_seconds) - self._clock.monotonic()
        if wait > 0.0:
            self._is_timer_set = True
            self._loop.call_later(wait, self._due)
        else:
            self._start()

    def synced(self) -> None:
        """Run the callbacks after a sync; a callback that needs another sync calls `add` again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for synced in waiting:
                synced()

    def _due(self) -> None:
        self._is_timer_set = False
        if self._waiting:
            self._start()
