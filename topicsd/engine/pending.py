"""What a request on a topic left in the log (`log/batch.py`), and whether it waits for a sync.

The entries of a topic are published in the order in which they joined. So while one of them waits for a
sync, those behind it wait too, whatever their class: `Topic.waiting_count` says how many there are.
"""

from __future__ import annotations

import logging
from typing import Any

from topicsd.engine.requests import Reply
from topicsd.engine.topic import Topic

logger = logging.getLogger("topicsd.engine")


def tell(reply: Reply, answer: Any) -> None:
    """Answer. A reply that fails is its own trouble: what is published stays so, and others are answered."""
    try:
        reply(answer)
    except Exception:
        logger.exception("a reply failed")


class TopicEntry:
    __slots__ = ("_waits", "ordinal", "topic")

    ordinal: int

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._waits = False

    def wait(self) -> None:
        """It joins those that a sync publishes."""
        self._waits = True
        self.topic.waiting_count += 1

    def end_wait(self) -> None:
        """The first thing when it is published or undone: what its answer sets off need not wait for it."""
        if self._waits:
            self.topic.waiting_count -= 1
