"""When the next lease of a queue runs out or the next delay is over, for those who wait for a job of it.

A queue that somebody waits for has one timer, which whoever leases or delays its jobs has looked at again;
the others have none, as a claim sees by itself what is due. The clock may be set while a timer runs: one that
is early looks again, and none is set for long.
"""

from __future__ import annotations

from typing import Any

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.topic import NEVER, Topic
from topicsd.engine.wakeups.wake_queue import Watch

# How late a clock that was set forward can make it.
WAIT_MS_MAX = 60_000


class _Timer:
    __slots__ = ("due_ms", "handle", "waiting_count")

    def __init__(self) -> None:
        self.due_ms = NEVER
        self.handle: Any = None
        self.waiting_count = 0


class QueueDue:
    def __init__(self, loop: Loop, clock: Clock, watch: Watch) -> None:
        self._loop = loop
        self._clock = clock
        self._watch = watch
        self.timers: dict[Topic, _Timer] = {}

    def enter(self, topic: Topic) -> None:
        """One more waits for its jobs."""
        self.timers.setdefault(topic, _Timer()).waiting_count += 1
        self.look(topic)

    def leave(self, topic: Topic) -> None:
        timer = self.timers[topic]
        timer.waiting_count -= 1
        if not timer.waiting_count:
            del self.timers[topic]
            if timer.handle is not None:
                timer.handle.cancel()

    def look(self, topic: Topic) -> None:
        """What is due next may be due earlier than it was."""
        timer, queue = self.timers.get(topic), topic.queue
        due_ms = queue.next_due() if timer is not None and queue is not None else None
        if timer is None or due_ms is None or due_ms >= timer.due_ms:
            return
        if timer.handle is not None:
            timer.handle.cancel()
        wait_ms = min(max(due_ms - self._clock.now_ms(), 0), WAIT_MS_MAX)
        timer.due_ms = due_ms
        timer.handle = self._loop.call_later(wait_ms / 1000, self._came, topic, timer)

    def _came(self, topic: Topic, timer: _Timer) -> None:
        timer.due_ms, timer.handle = NEVER, None
        assert topic.queue is not None
        if topic.queue.collect(self._clock.now_ms()) and topic.waiters is not None:
            self._watch.wake(topic)
        self.look(topic)
