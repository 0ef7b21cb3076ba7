"""Timers for the next expiry of a lease or end of a delay, for requests that wait for jobs.

Only a queue with waiting requests has a timer; code that leases or delays its jobs calls `refresh` to update
it. Other queues need none, as a claim collects expired leases itself. The system clock may be set while a
timer runs: a timer that fires early checks again, and none runs longer than `WAIT_MS_MAX`.
"""

from __future__ import annotations

from typing import Any

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.topic import NEVER, Topic
from topicsd.engine.wakeups.wake_queue import WakeQueue

# How late a timer can be after the system clock is set forward.
WAIT_MS_MAX = 60_000


class _Timer:
    __slots__ = ("due_ms", "handle", "waiting_count")

    def __init__(self) -> None:
        self.due_ms = NEVER
        self.handle: Any = None
        self.waiting_count = 0


class QueueTimers:
    """The timers of a shard's queues."""

    def __init__(self, loop: Loop, clock: Clock, wake_queue: WakeQueue) -> None:
        self._loop = loop
        self._clock = clock
        self._wake_queue = wake_queue
        self.timers: dict[Topic, _Timer] = {}

    def enter(self, topic: Topic) -> None:
        """Count one more request that waits for jobs of the topic."""
        self.timers.setdefault(topic, _Timer()).waiting_count += 1
        self.refresh(topic)

    def leave(self, topic: Topic) -> None:
        timer = self.timers[topic]
        timer.waiting_count -= 1
        if not timer.waiting_count:
            del self.timers[topic]
            if timer.handle is not None:
                timer.handle.cancel()

    def refresh(self, topic: Topic) -> None:
        """Set the timer to an earlier time if the next expiry is earlier now."""
        queue, timer = topic.queue, self.timers.get(topic)
        due_ms = queue.next_due() if timer is not None and queue is not None else None
        if timer is None or due_ms is None or due_ms >= timer.due_ms:
            return
        if timer.handle is not None:
            timer.handle.cancel()
        wait_ms = min(max(due_ms - self._clock.now_ms(), 0), WAIT_MS_MAX)
        timer.due_ms = due_ms
        timer.handle = self._loop.call_later(wait_ms / 1000, self._on_timer, topic, timer)

    def _on_timer(self, topic: Topic, timer: _Timer) -> None:
        timer.due_ms, timer.handle = NEVER, None
        queue = topic.queue
        assert queue is not None
        queue.collect(self._clock.now_ms())
        # Another request may have collected the job that this timer was set for, and called no waiter.
        if topic.waiters is not None and queue.counts().ready:
            self._wake_queue.wake(topic)
        self.refresh(topic)
