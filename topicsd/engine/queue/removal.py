"""The removal of very many jobs from a queue, a bounded number in each turn of the event loop.

Readers stop seeing the records at once. Claims of the queue wait until its jobs are removed, and so does the
reply to the delete: a client that receives it finds the final state. Recovery removes all jobs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.runtime.disk_thread import Loop
from topicsd.engine.topic import Topic, remove_at_once

logger = logging.getLogger("topicsd.engine")

AfterRemoval = Callable[[], object]


class Removals:
    """The removals of a shard. `on_end` is called for each queue whose removal has ended."""

    def __init__(self, loop: Loop, on_end: Callable[[Topic], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._waiting: dict[Topic, list[AfterRemoval]] = {}

    def wake(self, topic: Topic) -> None:
        """Remove the pending jobs of a queue, a few in each turn."""
        if topic not in self._waiting:
            self._waiting[topic] = []
            self._loop.call_soon(self._step, topic)

    def after(self, topic: Topic, then: AfterRemoval) -> None:
        """Call `then` when the removal of the topic's jobs is over, or at once if there is none."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            then()
        else:
            waiting.append(then)

    def forget(self, topic: Topic) -> None:
        """Run what waits for a topic that no longer exists."""
        self._run_waiting(topic)

    def finish(self) -> None:
        """Complete all removals at once, as the shard is about to end."""
        for topic in list(self._waiting):
            remove_at_once(topic)
            for then in self._waiting.pop(topic):
                _call(then)

    def _step(self, topic: Topic) -> None:
        if topic not in self._waiting:
            return
        if self._remove_some(topic):
            self._loop.call_soon(self._step, topic)
        else:
            self._run_waiting(topic)
            self._on_end(topic)

    def _remove_some(self, topic: Topic) -> bool:
        return topic.queue is not None and topic.queue.remove_some()

    def _run_waiting(self, topic: Topic) -> None:
        for then in self._waiting.pop(topic, ()):
            # One per turn of the event loop: there may be many.
            self._loop.call_soon(_call, then)


def _call(then: AfterRemoval) -> None:
    try:
        then()
    except Exception:
        logger.exception("queue removal: a deferred operation raised an exception")
