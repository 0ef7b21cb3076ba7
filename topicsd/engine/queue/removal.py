"""The jobs of very many records that went at once leave their queue a few a turn of the loop.

Readers miss the records from the first moment. Claims of the queue wait until its jobs have left, and so does
the answer to the delete: who gets it finds the queue as it is then. A start lets all go at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shared.runtime.disk_thread import Loop
from topicsd.engine.topic import Topic

logger = logging.getLogger("topicsd.engine")

Then = Callable[[], object]


class GoneJobs:
    """`is_over` is called for a queue that has let all go."""

    def __init__(self, loop: Loop, is_over: Callable[[Topic], None]) -> None:
        self._loop = loop
        self._is_over = is_over
        self._waiting: dict[Topic, list[Then]] = {}
        self.is_open = False
        """The start is over: requests come from now on."""

    def wake(self, topic: Topic) -> None:
        if not self.is_open:
            while self._see(topic):
                pass
        elif topic not in self._waiting:
            self._waiting[topic] = []
            self._loop.call_soon(self._some, topic)

    def after(self, topic: Topic, then: Then) -> None:
        """Go on when all have left, which may be at once."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            then()
        else:
            waiting.append(then)

    def forget(self, topic: Topic) -> None:
        """It is no topic any more."""
        self._go_on(topic)

    def finish(self) -> None:
        """All at once, as the shard is about to end."""
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
            # Each in a turn of its own: there may be many.
            self._loop.call_soon(_call, then)


def _call(then: Then) -> None:
    try:
        then()
    except Exception:
        logger.exception("what waited for a queue failed")
