"""The time between syncs under pressure, in which writers gather to share the next one."""

from __future__ import annotations

from collections.abc import Callable

from shared.clock import Clock
from topicsd.wal.sync_thread import Loop


class SyncWindow:
    """W1  A window in which only one writer waited ends the delays until pressure is measured again."""

    def __init__(
        self, clock: Clock, loop: Loop, waiting_count: Callable[[], int], on_over: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting_count = waiting_count
        self._on_over = on_over
        self._is_open = False
        self.seconds = 0.0
        """How far apart syncs begin at least; 0 without pressure."""
        self.pays = False
        """The last window was shared by writers, or there was none yet (W1)."""

    def set(self, seconds: float) -> None:
        self.seconds = seconds
        self.pays = seconds > 0.0

    def delays(self, last_started: float) -> bool:
        """Return whether a sync has to wait for the end of the window; `on_over` is called then."""
        wait = last_started + self.seconds - self._clock.monotonic()
        if wait <= 0.0:
            return False
        if not self._is_open:
            self._is_open = True
            self._loop.call_later(wait, self._over)
        return True

    def _over(self) -> None:
        self._is_open = False
        self.pays = self.pays and self._waiting_count() > 1
        self._on_over()
