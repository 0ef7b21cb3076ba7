"""The limit of concurrent reads of one connection, however many topics it follows.

A read may be answered after the connection has paused, and its result is then held for a client that does
not read. So at most `CONCURRENT_READS_MAX` reads are in progress, and the others wait: the results held are
bounded by that number, not by the number of topics. Reads that are answered at once block the loop, so at
most `RESUMES_PER_TURN_MAX` subscriptions that were not called by their topic resume in one turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from shared.contract.errors import Refusal
from shared.runtime.disk_thread import Loop
from topicsd.engine.wakeups.wake_queue import Waiter
from topicsd.stream.chunks import Chunk
from topicsd.stream.feed import Feed, OnChunk
from topicsd.stream.subscription import Subscription

logger = logging.getLogger("topicsd.stream")

CONCURRENT_READS_MAX: Final = 4
# Each is a read and an event.
RESUMES_PER_TURN_MAX: Final = 8


class ReadLimiter:
    """The read limiter of one connection.

    `on_failure` is called after an unexpected error: the connection may wait for a chunk that never arrives.
    """

    def __init__(self, loop: Loop, is_paused: Callable[[], bool], on_failure: Callable[[], None]) -> None:
        self._loop = loop
        self._is_paused = is_paused
        self._on_failure = on_failure
        self._is_resuming = False
        self.read_count = 0
        # No deque: an empty one takes half a KiB of each stream, and a long list has some hundred feeds.
        self.waiting: list[LimitedFeed] = []

    def feed(self, feed: Feed) -> LimitedFeed:
        """Return the feed for a follower that this limiter limits."""
        return LimitedFeed(feed, self)

    def resume_all(self, subscriptions: Sequence[Subscription]) -> None:
        """Resume `RESUMES_PER_TURN_MAX` subscriptions in each turn of the loop, starting with this one."""
        try:
            for subscription in subscriptions[:RESUMES_PER_TURN_MAX]:
                subscription.resume()
        except Exception:
            logger.exception("connection: subscriptions not resumed: unexpected error")
            self._on_failure()
        if len(subscriptions) > RESUMES_PER_TURN_MAX:
            self._loop.call_soon(self.resume_all, subscriptions[RESUMES_PER_TURN_MAX:])

    def resume(self) -> None:
        """Start waiting reads while there is room: a read ended, or the connection resumed."""
        # A read that is answered at once calls this function again, for each waiting read.
        if not self.waiting or self._is_resuming:
            return
        self._is_resuming = True
        try:
            while self.waiting and self.read_count < CONCURRENT_READS_MAX and not self._is_paused():
                self.waiting.pop(0).begin()
        finally:
            self._is_resuming = False


class LimitedFeed:
    """The feed of one subscription, with its reads limited. It has one read at a time."""

    __slots__ = ("_cursor", "_inner", "_limiter", "_on_chunk", "spec")

    def __init__(self, inner: Feed, limiter: ReadLimiter) -> None:
        self.spec = inner.spec
        self._inner = inner
        self._limiter = limiter
        self._cursor: tuple[int, int | None]
        self._on_chunk: OnChunk

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        self._cursor = (seq, epoch)
        self._on_chunk = on_chunk
        if self._limiter.read_count < CONCURRENT_READS_MAX:
            self.begin()
        else:
            self._limiter.waiting.append(self)

    def begin(self) -> None:
        self._limiter.read_count += 1
        self._inner.read(*self._cursor, self._on_result)

    def _on_result(self, result: Chunk | Refusal) -> None:
        limiter = self._limiter
        limiter.read_count -= 1
        self._on_chunk(result)
        if limiter.waiting:
            limiter.resume()

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        self._inner.wait(seq, epoch, waiter)

    def schedule(self, waiter: Waiter) -> None:
        self._inner.schedule(waiter)

    def cancel(self, waiter: Waiter) -> None:
        self._inner.cancel(waiter)

    def successor(self, refusal: Refusal) -> LimitedFeed:
        return LimitedFeed(self._inner.successor(refusal), self._limiter)

    def add_follower(self) -> None:
        self._inner.add_follower()

    def remove_follower(self) -> None:
        if self in self._limiter.waiting:
            self._limiter.waiting.remove(self)
        self._inner.remove_follower()
