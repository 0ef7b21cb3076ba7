"""A pending entry: a request on a topic that has joined the log (`log/batch.py`) and is not published yet.

The entries of a topic are published in the order in which they joined. While one of them waits for a sync,
all later ones wait too, whatever their class: `Topic.waiting_count` is the number of waiting entries.
"""

from __future__ import annotations

import logging
from typing import Any

from topicsd.engine.requests import Reply
from topicsd.engine.topic import Topic

logger = logging.getLogger("topicsd.engine")


def call_reply(reply: Reply, answer: Any) -> None:
    """Call `reply` with the answer; log and swallow its exceptions.

    The write stays published, and other requests still get their answers.
    """
    try:
        reply(answer)
    except Exception:
        logger.exception("reply: the callback raised an exception")


class PendingEntry:
    """The base class of all pending entries of a topic."""

    __slots__ = ("_is_waiting", "ordinal", "topic")

    ordinal: int

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._is_waiting = False

    def wait(self) -> None:
        """Have a sync publish this entry, and count it among the waiting ones of its topic."""
        self._is_waiting = True
        self.topic.waiting_count += 1

    def end_wait(self) -> None:
        """Count the entry as waiting no more.

        `publish` and `undo` call it first, so that requests made by the reply do not wait for this entry.
        """
        if self._is_waiting:
            self.topic.waiting_count -= 1
