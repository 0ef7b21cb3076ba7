"""Syncs for readers that follow what is synced: at once, all of them by one sync, some milliseconds apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.clock import Clock
from topicsd.wal.sync_thread import Loop

# How far apart syncs begin that only readers wait for: each costs writers a little of the processor.
APART_SECONDS: Final = 0.004


class AskedSyncs:
    def __init__(self, clock: Clock, loop: Loop, start: Callable[[], object]) -> None:
        """`start` begins a sync, unless one is under way or there is nothing to sync."""
        self._clock = clock
        self._loop = loop
        self._start = start
        self._waiting: list[Callable[[], object]] = []
        self._is_timer_set = False

    def add(self, synced: Callable[[], object], last_started: float, window_seconds: float) -> None:
        """Call `synced` after the next sync; when none is under way one begins, in its turn."""
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
        """A sync is over. Who needs another one asks again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for synced in waiting:
                synced()

    def _due(self) -> None:
        self._is_timer_set = False
        if self._waiting:
            self._start()
