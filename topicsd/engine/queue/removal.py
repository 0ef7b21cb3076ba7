"""The removal of very many jobs from a queue, a bounded number in each turn of the event loop.

Readers stop seeing the records at once. Claims of the queue wait until its jobs are removed, and so does the
reply to the delete: a client that receives it finds the final state. Recovery removes all jobs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.runtime.disk_thread import Loop
from topicsd.engine.topic import Topic

logger = logging.getLogger("topicsd.engine")

Then = Callable[[], object]


class GoneJobs:
    """The removals of a shard. `is_over` is called for each queue whose removal has ended."""

    def __init__(self, loop: Loop, is_over: Callable[[Topic], None]) -> None:
        self._loop = loop
        self._is_over = is_over
        self._waiting: dict[Topic, list[Then]] = {}
        self.is_open = False
        """True once recovery is over and requests arrive."""

    def wake(self, topic: Topic) -> None:
        """Remove the pending jobs of a queue, a few in each turn; during recovery all at once."""
        if not self.is_open:
            while self._see(topic):
                pass
        elif topic not in self._waiting:
            self._waiting[topic] = []
            self._loop.call_soon(self._some, topic)

    def after(self, topic: Topic, then: Then) -> None:
        """Call `then` when the removal of the topic's jobs is over, or at once if there is none."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            then()
        else:
            waiting.append(then)

    def forget(self, topic: Topic) -> None:
        """Run what waits for a topic that no longer exists."""
        self._go_on(topic)

    def finish(self) -> None:
        """Complete all removals at once, as the shard is about to end."""
        for topic in list(self._waiting):
            while self._see(topic):
                pass
            for then in self._waiting.pop(topic):
                _call(then)

    def _some(self, topic: Topic) -> None:
        if topic not in self._waiting:
            return
        if self._see(topic):
            self._loop.call_soon(self._some, topic)
        else:
            self._go_on(topic)
            self._is_over(topic)

    def _see(self, topic: Topic) -> bool:
        return topic.queue is not None and topic.queue.see_gone()

    def _go_on(self, topic: Topic) -> None:
        for then in self._waiting.pop(topic, ()):
            # One per turn of the event loop: there may be many.
            self._loop.call_soon(_call, then)


def _call(then: Then) -> None:
    try:
        then()
    except Exception:
        logger.exception("what waited for a queue failed")
