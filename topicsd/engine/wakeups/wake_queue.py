"""Who waits for something to change, and when each is called: once, in the order of priorities.

W1  A waiter is called once and is gone. It registers before it looks, so that nothing can come in between.
W2  One round of calls for each that changed and turn of the loop, however often it changed.
W3  What changed in a turn is served when the turn ends, the highest priority first; under pressure it is
    gathered a little longer. What there is no time for goes to the ready set, which says whose turn it is.
W4  The loop is held for at most `SLICE_SECONDS` at a time: then the rest waits for the next turn, also in the
    middle of the waiters of one topic. Who came first is called first.

What changes need not be a topic of this shard: `Awaited` is all there is to know of it.
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
# Timers of the loop are this much out, also too early.
TIMER_SECONDS: Final = 0.001

Waiter = Callable[[], None]
Waiters = dict[Waiter, bool]
"""In the order of coming; a dict, because one of ten thousand may leave at any time."""


class Awaited(Protocol):
    waiters: Waiters | None
    """None when nobody waits."""

    def base_priority(self, now_ms: int) -> float:
        """How much serving its waiters is worth (`topicsd/engine/wakeups/priority.py`)."""
        ...


class Watch:
    def __init__(self, loop: Loop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._changed: dict[Awaited, None] = {}
        self._changed_at = 0.0
        """When the first of them did."""
        self._due: dict[Awaited, list[Waiter]] = {}
        """Of those that a slice was not enough for: who is still to be called, the last one first."""
        self._is_running_soon = False
        self._coalesce_seconds = 0.0
        self.ready: ReadySet[Awaited] = ReadySet()
        self.latency_us = Histogram()
        """From a change to the first call that it led to."""

    def add(self, awaited: Awaited, waiter: Waiter) -> None:
        if awaited.waiters is None:
            awaited.waiters = {waiter: True}
        else:
            awaited.waiters[waiter] = True

    def remove(self, awaited: Awaited, waiter: Waiter) -> bool:
        """It is not called any more; False when it did not wait."""
        waiters = awaited.waiters
        if waiters is None:
            return False
        is_there = waiters.pop(waiter, False)
        if not waiters:
            awaited.waiters = None
        return is_there

    def wake(self, awaited: Awaited) -> None:
        """It has changed; its waiters are called at the end of this turn, or as soon as it is their turn."""
        if not self._changed:
            self._changed_at = self._clock.monotonic()
            self._run_soon(self._coalesce_seconds)
        self._changed[awaited] = None

    def effective_priority(self, awaited: Awaited) -> int:
        """What it is worth now, with what it waits."""
        waited = self.ready.waited_seconds(awaited, self._clock.monotonic())
        return round(effective_priority(awaited.base_priority(self._clock.now_ms()), waited))

    def obey(self, coalesce_seconds: float, pauses: bool) -> None:
        """What pressure asks for: so long what changed is gathered, and whether the lowest band pauses.

        Called again and again, as what is held in a pause has no other timer.
        """
        now = self._clock.monotonic()
        self._coalesce_seconds = coalesce_seconds
        self.ready.pause(pauses, now)
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
        changed: dict[Awaited, None] = {}
        since = self._changed_at
        if self._changed and now + TIMER_SECONDS >= since + self._coalesce_seconds:
            changed, self._changed = self._changed, changed
        ready = self.ready
        try:
            if ready or ready.pauses:
                self._mark(changed, since)
                self._serve()
            elif len(changed) == 1:
                (alone,) = changed
                self._call(alone, since, now, now + SLICE_SECONDS)
            else:
                self._serve_at_once(changed, since)
        finally:
            self._is_running_soon = False
            if ready:
                self._run_soon(0.0)
            elif self._changed:
                self._run_soon(self._changed_at + self._coalesce_seconds - now)

    def _serve_at_once(self, changed: Iterable[Awaited], since: float) -> None:
        """With nothing else ready, the highest first; what there is no time for is ready from here on."""
        now_ms = self._clock.now_ms()
        order = sorted(changed, key=lambda one: -one.base_priority(now_ms))
        now = self._clock.monotonic()
        until = now + SLICE_SECONDS
        for index, awaited in enumerate(order, 1):
            self._call(awaited, since, now, until)
            now = self._clock.monotonic()
            if now >= until:
                self._mark(order[index:], since)
                return

    def _mark(self, changed: Iterable[Awaited], since: float) -> None:
        now_ms = self._clock.now_ms()
        for awaited in changed:
            # Those who came since it was begun with are called too; they stand behind the rest of the others.
            self._due.pop(awaited, None)
            self.ready.mark(awaited, awaited.base_priority(now_ms), since)

    def _serve(self) -> None:
        now = self._clock.monotonic()
        until = now + SLICE_SECONDS
        while now < until and (taken := self.ready.take(now)) is not None:
            self._call(*taken, now, until)
            now = self._clock.monotonic()

    def _call(self, awaited: Awaited, since: float, now: float, until: float) -> None:
        """Call who waits for it. Where time is up it is ready again, with the rest of them."""
        due = self._due.pop(awaited, None) if self._due else None
        if due is None:
            latency_us = int((now - since) * 1e6)
            self.latency_us.counts[latency_us.bit_length()] += 1
            self.latency_us.total += latency_us
            due = [*awaited.waiters] if awaited.waiters else []
            due.reverse()
        while due:
            waiter = due.pop()
            if not self.remove(awaited, waiter):
                continue
            try:
                waiter()
            except Exception:
                # A mistake of ours in one of them must not leave the others waiting.
                logger.exception("a waiter failed")
            if due and (now := self._clock.monotonic()) >= until:
                self._due[awaited] = due
                self.ready.mark(awaited, awaited.base_priority(self._clock.now_ms()), now)
                return
