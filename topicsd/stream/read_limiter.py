"""The limit of concurrent reads of one connection, however many topics it follows.

A read may be answered after the connection has paused, and its result is then held for a client that does
not read. So at most `AT_ONCE_MAX` reads are in progress, and the others wait: the results held are bounded
by that number, not by the number of topics. Reads that are answered at once block the loop, so at most
`A_TURN_MAX` subscriptions that were not called by their topic resume in one turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from shared.contract.errors import Refusal
from shared.runtime.disk_thread import Loop
from topicsd.engine.wakeups.wake_queue import Waiter
from topicsd.stream.chunks import Piece
from topicsd.stream.feed import Feed, Found
from topicsd.stream.subscription import Subscription

logger = logging.getLogger("topicsd.stream")

AT_ONCE_MAX: Final = 4
# Each is a read and an event.
A_TURN_MAX: Final = 8


class Pace:
    """The read limiter of one connection.

    `failed` is called after an unexpected error: the connection may wait for a chunk that never arrives.
    """

    def __init__(self, loop: Loop, is_clogged: Callable[[], bool], failed: Callable[[], None]) -> None:
        self._loop = loop
        self._is_clogged = is_clogged
        self._failed = failed
        self._is_going_on = False
        self.under_way = 0
        # No deque: an empty one takes half a KiB of each stream, and a long list has some hundred feeds.
        self.waiting: list[PacedFeed] = []

    def feed(self, feed: Feed) -> PacedFeed:
        """Return the feed for a follower that this limiter limits."""
        return PacedFeed(feed, self)

    def go_on_with(self, subscriptions: Sequence[Subscription]) -> None:
        """Resume `A_TURN_MAX` subscriptions in this turn of the loop, and the others in later turns."""
        try:
            for subscription in subscriptions[:A_TURN_MAX]:
                subscription.go_on()
        except Exception:
            logger.exception("what a connection follows could not go on")
            self._failed()
        if len(subscriptions) > A_TURN_MAX:
            self._loop.call_soon(self.go_on_with, subscriptions[A_TURN_MAX:])

    def go_on(self) -> None:
        """Start waiting reads while there is room: a read ended, or the connection resumed."""
        # A read that is answered at once calls this function again, for each waiting read.
        if not self.waiting or self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self.waiting and self.under_way < AT_ONCE_MAX and not self._is_clogged():
                self.waiting.pop(0).begin()
        finally:
            self._is_going_on = False


class PacedFeed:
    """The feed of one subscription, with its reads limited. It has one read at a time."""

    __slots__ = ("_cursor", "_found", "_inner", "_pace", "wanted")

    def __init__(self, inner: Feed, pace: Pace) -> None:
        self.wanted = inner.wanted
        self._inner = inner
        self._pace = pace
        self._cursor: tuple[int, int | None]
        self._found: Found

    def read(self, seq: int, epoch: int | None, found: Found) -> None:
        self._cursor = (seq, epoch)
        self._found = found
        if self._pace.under_way < AT_ONCE_MAX:
            self.begin()
        else:
            self._pace.waiting.append(self)

    def begin(self) -> None:
        self._pace.under_way += 1
        self._inner.read(*self._cursor, self._answered)

    def _answered(self, what: Piece | Refusal) -> None:
        pace = self._pace
        pace.under_way -= 1
        self._found(what)
        if pace.waiting:
            pace.go_on()

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        self._inner.wait(seq, epoch, waiter)

    def later(self, waiter: Waiter) -> None:
        self._inner.later(waiter)

    def forget(self, waiter: Waiter) -> None:
        self._inner.forget(waiter)

    def enter(self) -> None:
        self._inner.enter()

    def leave(self) -> None:
        if self in self._pace.waiting:
            self._pace.waiting.remove(self)
        self._inner.leave()
