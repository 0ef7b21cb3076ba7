"""Pending entries: requests and frames that have joined the log (`log/batch.py`) and are not published yet.

The entries of a topic are published in the order in which they joined. While one of them waits for a sync,
all later ones wait too, whatever their class: `Topic.waiting_count` is the number of waiting entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from shared.contract.errors import Refusal
from topicsd.engine.topic import Topic

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")
Refuse = Callable[[Refusal], object]
"""Called with the refusal of a request; each `Reply` is one."""


def call_reply(reply: Callable[[T], object], answer: T) -> None:
    """Call `reply` with the answer; log and swallow its exceptions.

    The write stays published, and other requests still get their answers.
    """
    try:
        reply(answer)
    except Exception:
        logger.exception("reply: the callback raised an exception")


def noop() -> None:
    """Do nothing: a publication or an undo that changes nothing."""


def ignore_refusal(refusal: Refusal) -> None:
    """Do nothing: no request waits for the entry."""


class PendingEntry:
    """The base class of the pending entries that are published in the order of their topic."""

    __slots__ = ("_is_waiting", "ordinal", "topic")

    ordinal: int

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._is_waiting = False

    def count_as_waiting(self) -> None:
        """Count the entry among the waiting ones of its topic; join it so that it waits for a sync."""
        self._is_waiting = True
        self.topic.waiting_count += 1

    def end_wait(self) -> None:
        """Count the entry as waiting no more.

        `publish` and `undo` call it first, so that requests made by the reply do not wait for this entry.
        """
        if self._is_waiting:
            self.topic.waiting_count -= 1


class PendingControl(PendingEntry):
    """A pending change of a topic: `publish` applies it and replies, `undo` reverts what joining changed."""

    __slots__ = ("_publish", "_refuse", "_undo")

    def __init__(
        self,
        topic: Topic,
        publish: Callable[[], object],
        refuse: Refuse,
        undo: Callable[[], object] = noop,
    ) -> None:
        # Inlined from `PendingEntry.__init__`, as `end_wait` below: every ack is one.
        self.topic = topic
        self._is_waiting = False
        self._publish = publish
        self._refuse = refuse
        self._undo = undo

    def publish(self) -> None:
        if self._is_waiting:
            self.topic.waiting_count -= 1
        self._publish()

    def undo(self) -> None:
        self.end_wait()
        self._undo()

    def refuse(self, refusal: Refusal) -> None:
        call_reply(self._refuse, refusal)


class PendingFrame:
    """A pending frame outside the order of a topic; `topic` is the one whose state it has, if any."""

    __slots__ = ("_publish", "_refuse", "_undo", "ordinal", "topic")

    ordinal: int

    def __init__(
        self,
        topic: Topic | None,
        publish: Callable[[], object] = noop,
        undo: Callable[[], object] = noop,
        refuse: Refuse = ignore_refusal,
    ) -> None:
        self.topic = topic
        self._publish = publish
        self._undo = undo
        self._refuse = refuse

    def publish(self) -> None:
        self._publish()

    def undo(self) -> None:
        self._undo()

    def refuse(self, refusal: Refusal) -> None:
        call_reply(self._refuse, refusal)
