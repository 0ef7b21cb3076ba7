"""The wake queue: it calls each waiter of a changed topic once, in the order of priorities.

W1  A waiter is called once and removed. It must register before it reads, so that it misses no change.
W2  The waiters of a changed topic are called once in a turn of the loop, however often the topic changed.
W3  Topics that changed in a turn are served at its end, the highest priority first; under pressure changes
    are coalesced a little longer. Topics for which time runs out enter the ready set, which orders them.
W4  Calls hold the loop for at most `SLICE_SECONDS` at a time: the rest waits for the next turn, even in the
    middle of the waiters of one topic. The waiters of a topic are called in the order of registration.

Anything with the interface `Wakeable` can change; it need not be a topic of this shard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from shared.runtime.histogram import Histogram
from topicsd.engine.wakeups.priority import effective_priority
from topicsd.engine.wakeups.ready_set import ReadySet

logger = logging.getLogger("topicsd.engine")

SLICE_SECONDS: Final = 0.001
# Timers of the loop are off by this much, in both directions.
TIMER_SECONDS: Final = 0.001

Waiter = Callable[[], None]
Waiters = dict[Waiter, bool]
"""Waiters in the order of registration. A dict, because one of 10,000 may be removed at any time."""


class Wakeable(Protocol):
    """An object with waiters, such as a topic."""

    waiters: Waiters | None
    """The waiters; None without any."""

    def base_priority(self, now_ms: int) -> float:
        """Return the priority of serving its waiters (`topicsd/engine/wakeups/priority.py`)."""
        ...


class WakeQueue:
    """The wake queue of one shard."""

    def __init__(self, loop: Loop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._changed: dict[Wakeable, None] = {}
        self._changed_at = 0.0
        """The time of the first of these changes."""
        self._due: dict[Wakeable, list[Waiter]] = {}
        """The remaining waiters of topics for which a slice was too short, in reverse order."""
        self._is_running_soon = False
        self._coalesce_seconds = 0.0
        self.ready: ReadySet[Wakeable] = ReadySet()
        self.latency_us = Histogram()
        """The latency from a change to the first call of a waiter."""

    def add(self, target: Wakeable, waiter: Waiter) -> None:
        if target.waiters is None:
            target.waiters = {waiter: True}
        else:
            target.waiters[waiter] = True

    def remove(self, target: Wakeable, waiter: Waiter) -> bool:
        """Remove a waiter; return False if it was not registered."""
        waiters = target.waiters
        if waiters is None:
            return False
        was_registered = waiters.pop(waiter, False)
        if not waiters:
            target.waiters = None
        return was_registered

    def wake(self, target: Wakeable) -> None:
        """Schedule calls of all waiters of a changed topic, at the end of this turn or by W3."""
        if not self._changed:
            self._changed_at = self._clock.monotonic()
            self._run_soon(self._coalesce_seconds)
        self._changed[target] = None

    def effective_priority(self, target: Wakeable) -> int:
        """Return the priority of a topic now, including the addition for waiting."""
        waited = self.ready.waited_seconds(target, self._clock.monotonic())
        return round(effective_priority(target.base_priority(self._clock.now_ms()), waited))

    def apply_pressure(self, coalesce_seconds: float, is_paused: bool) -> None:
        """Set how long changes coalesce, and whether the lowest band pauses, by the pressure.

        It must be called periodically, since items that a pause holds have no other timer.
        """
        now = self._clock.monotonic()
        self._coalesce_seconds = coalesce_seconds
        self.ready.pause(is_paused, now)
        self.ready.age(now)
        if self.ready:
            self._run_soon(0.0)

    def _run_soon(self, seconds: float) -> None:
        if self._is_running_soon:
            return
        self._is_running_soon = True
        if seconds > 0.0:
            self._loop.call_later(seconds, self._run)
        else:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        now = self._clock.monotonic()
        changed: dict[Wakeable, None] = {}
        since = self._changed_at
        if self._changed and now + TIMER_SECONDS >= since + self._coalesce_seconds:
            changed, self._changed = self._changed, changed
        ready = self.ready
        try:
            if ready or ready.is_paused:
                self._mark(changed, since)
                self._serve()
            elif len(changed) == 1:
                (target,) = changed
                self._call(target, since, now, now + SLICE_SECONDS)
            else:
                self._serve_at_once(changed, since)
        finally:
            self._is_running_soon = False
            if ready:
                self._run_soon(0.0)
            elif self._changed:
                self._run_soon(self._changed_at + self._coalesce_seconds - now)

    def _serve_at_once(self, changed: Iterable[Wakeable], since: float) -> None:
        """Serve changed topics when nothing else is ready; mark the rest ready when time runs out."""
        now_ms = self._clock.now_ms()
        order = sorted(changed, key=lambda one: -one.base_priority(now_ms))
        now = self._clock.monotonic()
        until = now + SLICE_SECONDS
        for index, target in enumerate(order, 1):
            self._call(target, since, now, until)
            now = self._clock.monotonic()
            if now >= until:
                self._mark(order[index:], since)
                return

    def _mark(self, changed: Iterable[Wakeable], since: float) -> None:
        now_ms = self._clock.now_ms()
        for target in changed:
            # Restart the topic: waiters registered since the interrupted slice are called too, after the
            # older ones.
            self._due.pop(target, None)
            self.ready.mark(target, target.base_priority(now_ms), since)

    def _serve(self) -> None:
        now = self._clock.monotonic()
        until = now + SLICE_SECONDS
        while now < until and (taken := self.ready.take(now)) is not None:
            self._call(*taken, now, until)
            now = self._clock.monotonic()

    def _call(self, target: Wakeable, since: float, now: float, until: float) -> None:
        """Call the waiters of a topic; if time runs out, mark it ready again with the rest of them."""
        due = self._due.pop(target, None) if self._due else None
        if due is None:
            latency_us = int((now - since) * 1e6)
            self.latency_us.counts[latency_us.bit_length()] += 1
            self.latency_us.total += latency_us
            due = [*target.waiters] if target.waiters else []
            due.reverse()
        while due:
            waiter = due.pop()
            if not self.remove(target, waiter):
                continue
            try:
                waiter()
            except Exception:
                # A bug in one waiter must not starve the others.
                logger.exception("wake queue: a waiter raised an exception")
            if due and (now := self._clock.monotonic()) >= until:
                self._due[target] = due
                self.ready.mark(target, target.base_priority(self._clock.now_ms()), now)
                return
