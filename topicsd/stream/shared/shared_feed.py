"""The feed of a shared topic, in a broker process.

H1  All followers at one cursor in one turn of the loop share one read, as those of a local topic do.
H2  Followers at the head are one wait at the heads of the broker (`topicsd/broker/read/heads.py`), however
    many they are. It asks neither the catalog nor the store, and ends with the last follower.
H3  A topic that was made again is noticed when its head is another one, or grows. For the case that the heads
    are equal, a feed with followers at the head looks up its topic every `LOOKUP_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shared.contract.errors import Refusal
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.broker.broker import Broker
from topicsd.broker.read.heads import HeadsWait, TailPosition
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.engine.requests import ReadAnswer, ReadRequest
from topicsd.engine.wakeups.priority import RECENT, base_priority
from topicsd.engine.wakeups.wake_queue import Waiter, Waiters, WakeQueue
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.feed import CursorReads, Feed, FeedTable, OnChunk
from topicsd.stream.shared.shared_reads import SharedReads

LOOKUP_SECONDS: Final = 60.0


class SharedTopics:
    """What the feeds of a broker process have in common."""

    def __init__(
        self, broker: Broker, reads: SharedReads, wake_queue: WakeQueue, loop: Loop, clock: Clock
    ) -> None:
        self.broker = broker
        self.reads = reads
        self.wake_queue = wake_queue
        self.loop = loop
        self.clock = clock

    def is_known(self, name: str) -> bool:
        """Return whether the topic was a shared one when this broker last looked it up."""
        return self.broker.topics.known(name) is not None


class SharedFeed:
    def __init__(self, shared: SharedTopics, spec: FeedSpec, feeds: FeedTable) -> None:
        self.spec = spec
        self.waiters: Waiters | None = None
        """The followers that are not at the head."""
        self._shared = shared
        self._feeds = feeds
        self._count = 0
        self._reads = CursorReads(shared.loop, spec, self._start_read, self._note_read)
        self._last_read_ms = 0
        self._at_head = _FollowersAtHead(self)
        self._heads_wait: HeadsWait | None = None

    def add_follower(self) -> None:
        self._count += 1

    def remove_follower(self) -> None:
        self._count -= 1
        if not self._count:
            self._stop_waiting()
            self._feeds.drop(self)

    def successor(self, refusal: Refusal) -> Feed:
        raise AssertionError("the broker sends no follower elsewhere (F6)")

    def base_priority(self, now_ms: int) -> float:
        """Return the priority by how recently the topic was read; RECENT when it does not exist.

        So its followers learn of it before most other work is done.
        """
        if not self._shared.is_known(self.spec.topic):
            return RECENT
        return base_priority(None, is_auto=True, idle_ms=now_ms - self._last_read_ms)

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        self._reads.read(seq, epoch, on_chunk)

    def _start_read(self, request: ReadRequest, reply: Callable[[ReadAnswer | Refusal], None]) -> None:
        reads, name = self._shared.reads, self.spec.topic
        answer = reads.try_read(name, request, is_follower=True)
        if answer is None:
            reads.read(name, request, reply, is_follower=True)
        else:
            reply(answer)

    def _note_read(self, chunk: Chunk) -> None:
        self._last_read_ms = self._shared.clock.now_ms()

    # -- waits

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        broker, name = self._shared.broker, self.spec.topic
        topic = broker.topics.known(name)
        if topic is None or topic.incarnation != epoch or broker.heads.head(name, epoch) > seq:
            self.schedule(waiter)
            return
        self._shared.wake_queue.add(self._at_head, waiter)
        if self._heads_wait is None:
            self._wait_after(seq, epoch)

    def _wait_after(self, seq: int, epoch: int) -> None:
        position, on_end = TailPosition(self.spec.topic, seq + 1), partial(self._on_news, seq, epoch)
        self._heads_wait = self._shared.broker.heads.begin_wait([position], LOOKUP_SECONDS, on_end)

    def _on_news(self, seq: int, epoch: int, may_have_records: bool) -> None:
        self._heads_wait = None
        if may_have_records:
            self._shared.wake_queue.wake(self._at_head)
        elif self._at_head.waiters:
            self._wait_after(seq, epoch)
            find = self._shared.broker.topics.find(self.spec.topic, ROW_SECONDS)
            find(partial(self._on_lookup, epoch))

    def _on_lookup(self, epoch: int, topic: SharedTopic | OSError | None) -> None:
        """Wake the followers when their topic is gone or another one (H3)."""
        if not isinstance(topic, OSError) and (topic is None or topic.incarnation != epoch):
            self._shared.wake_queue.wake(self._at_head)

    def _stop_waiting(self) -> None:
        if self._heads_wait is not None:
            self._shared.broker.heads.cancel(self._heads_wait)
            self._heads_wait = None

    def schedule(self, waiter: Waiter) -> None:
        self._shared.wake_queue.add(self, waiter)
        self._shared.wake_queue.wake(self)

    def cancel(self, waiter: Waiter) -> None:
        if self._shared.wake_queue.remove(self._at_head, waiter) and not self._at_head.waiters:
            self._stop_waiting()
        self._shared.wake_queue.remove(self, waiter)


class _FollowersAtHead:
    """The followers that wait for news, apart from those that only wait for their turn."""

    def __init__(self, feed: SharedFeed) -> None:
        self.waiters: Waiters | None = None
        self.base_priority = feed.base_priority
