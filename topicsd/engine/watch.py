"""Who waits for a topic to have something new. One wake-up a topic and turn of the loop, however much came.

A waiter is called once and is gone. It registers before it looks, so that nothing can come in between.

Must not know: what a waiter reads, or who it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topicsd.wal.sync_thread import Loop

Waiter = Callable[[], None]


class Awaited(Protocol):
    """What can be waited for: a topic, or a feed of one."""

    waiters: list[Waiter] | None


class Watch:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._changed: dict[Awaited, None] = {}

    def add(self, topic: Awaited, waiter: Waiter) -> None:
        if topic.waiters is None:
            topic.waiters = []
        topic.waiters.append(waiter)

    def remove(self, topic: Awaited, waiter: Waiter) -> None:
        """Also when it was called already."""
        if topic.waiters is not None and waiter in topic.waiters:
            topic.waiters.remove(waiter)
            topic.waiters = topic.waiters or None

    def wake(self, topic: Awaited) -> None:
        """The topic has changed; its waiters are called at the end of this turn."""
        if not self._changed:
            self._loop.call_soon(self._call_waiters)
        self._changed[topic] = None

    def _call_waiters(self) -> None:
        changed, self._changed = self._changed, {}
        for topic in changed:
            waiters, topic.waiters = topic.waiters or [], None
            for waiter in waiters:
                waiter()
