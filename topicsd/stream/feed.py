"""A feed: one topic as it is followed in one process. `LocalFeed` follows a topic of this shard.

A topic that this shard does not have may be a shared one: on a node with brokers, its followers are sent to
the feed of the broker, which knows (F6).

All followers at the same cursor in the same turn of the loop get the same chunk: the topic is read once. A
feed lives as long as it has a follower.

F1  A waiter is called once, when there may be records after its cursor. A follower that reads and finds
    nothing waits in the same turn of the loop, so no append can happen between the two.
F2  A follower that is not at the head reads again in its turn among all ready work (`schedule`), not at once.
F3  An unexpected read error, or an object store that is away, is reported after `ERROR_DELAY_SECONDS`;
    followers then retry.
F4  A feed for routes (`is_for_routes`) reads new records `GATHER_SECONDS` later, together with the records
    appended until then. The response to the append is then sent first, even if its client waits for the
    same processor that the copying would use.
F5  If a follower of synced records waits only for a sync, the sync starts at once.
F6  Followers go from the owner by the placement to the broker, and never back. So a name that neither of them
    has ends its followers, and one that changes from shared to local ends those of the shared topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from shared.contract.errors import (
    CATALOG_UNAVAILABLE,
    INTERNAL,
    RELOCATED,
    STORAGE_FAILED,
    STORE_UNAVAILABLE,
    TOPIC_NOT_FOUND,
    Refusal,
)
from shared.runtime.disk_thread import Loop
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.pending import call_reply
from topicsd.engine.read.read import read
from topicsd.engine.requests import ReadAnswer, ReadRequest
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.wakeups.priority import RECENT
from topicsd.engine.wakeups.wake_queue import Waiter, Waiters, Wakeable
from topicsd.stream.chunks import Chunk, FeedSpec, chunk_of

logger = logging.getLogger("topicsd.stream")

# How soon a reader of synced records reads again when there is nothing to sync.
REREAD_SECONDS: Final = 0.01
ERROR_DELAY_SECONDS: Final = 1.0
_DELAYED: Final = (INTERNAL, STORE_UNAVAILABLE, STORAGE_FAILED, CATALOG_UNAVAILABLE)
GATHER_SECONDS: Final = 0.001

OnChunk = Callable[[Chunk | Refusal], None]

_AT_BROKER: Final[dict[str, object]] = {"placement": "shared"}


def perhaps_shared(name: str) -> Refusal:
    """Refuse to read a topic that its owner by the placement does not have: the broker may have it (F6)."""
    return Refusal(RELOCATED, f'topic "{name}" is not on this shard', _AT_BROKER)


def is_perhaps_shared(refusal: Refusal) -> bool:
    return refusal.detail == _AT_BROKER


class FeedTable(Protocol):
    """The feeds of one shard, as `topicsd/stream/feeds.py` keeps them."""

    def drop(self, feed: Feed) -> None:
        """Forget a feed without followers."""
        ...

    def successor(self, spec: FeedSpec, refusal: Refusal) -> Feed:
        """Return the feed to follow after `refusal`: of the present owner of the topic, or of the broker."""
        ...

    def has_moved(self, topic: str, owner: int) -> bool:
        """Return whether the topic has another owner than `owner` now."""
        ...

    @property
    def has_broker(self) -> bool:
        """Return whether a topic that this shard does not have may be a shared one."""
        ...


class Feed(Protocol):
    spec: FeedSpec

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        """Pass the records after the cursor to `on_chunk`, at once or when they are available.

        The chunk is empty when there are no records.
        """
        ...

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        """Call `waiter` once there may be records after the cursor, which was at the head just now."""
        ...

    def schedule(self, waiter: Waiter) -> None:
        """Call `waiter` when its turn comes by priority."""
        ...

    def cancel(self, waiter: Waiter) -> None:
        """Cancel a call of `waiter`. A waiter that is not waiting is ignored."""
        ...

    def add_follower(self) -> None:
        """Count one more follower."""
        ...

    def remove_follower(self) -> None: ...

    def successor(self, refusal: Refusal) -> Feed:
        """Return the feed to follow after a read was refused because the topic is elsewhere."""
        ...


class CursorReads:
    """The reads of one feed: one for all followers at the same cursor in the same turn of the loop (F3)."""

    def __init__(
        self,
        loop: Loop,
        spec: FeedSpec,
        start: Callable[[ReadRequest, Callable[[ReadAnswer | Refusal], None]], object],
        on_chunk: Callable[[Chunk], object],
    ) -> None:
        """`start` reads the topic. `on_chunk` is called once for each chunk with records."""
        self._loop = loop
        self._spec = spec
        self._start = start
        self._on_chunk = on_chunk
        self._chunks_of_turn: dict[tuple[int, int | None], Chunk] = {}
        self._reads: dict[tuple[int, int | None], list[OnChunk]] = {}
        """The callbacks of the reads in progress, by cursor."""

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        chunk = self._chunks_of_turn.get((seq, epoch))
        if chunk is not None:
            on_chunk(chunk)
        elif (seq, epoch) in self._reads:
            self._reads[seq, epoch].append(on_chunk)
        else:
            self._reads[seq, epoch] = [on_chunk]
            self._start(self._spec.request(seq, epoch), partial(self._on_answer, seq, epoch))

    def _on_answer(self, seq: int, epoch: int | None, answer: ReadAnswer | Refusal) -> None:
        result = answer if isinstance(answer, Refusal) else self._make_chunk(seq, epoch, answer)
        if isinstance(result, Refusal) and result.code in _DELAYED:
            self._loop.call_later(ERROR_DELAY_SECONDS, self._answer_reads, seq, epoch, result)
        else:
            self._answer_reads(seq, epoch, result)

    def _answer_reads(self, seq: int, epoch: int | None, result: Chunk | Refusal) -> None:
        first, *others = self._reads.pop((seq, epoch))
        for on_chunk in others:
            call_reply(on_chunk, result)
        # Called last, so that an exception of the follower that started the read propagates to it.
        first(result)

    def _make_chunk(self, seq: int, epoch: int | None, answer: ReadAnswer) -> Chunk | Refusal:
        try:
            chunk = chunk_of(answer, self._spec, seq)
        except Exception as error:
            return refuse_unexpected_error(logger, "a feed", error)
        if not self._chunks_of_turn:
            self._loop.call_soon(self._chunks_of_turn.clear)
        self._chunks_of_turn[seq, epoch] = chunk
        if chunk.count:
            self._on_chunk(chunk)
        return chunk


class LocalFeed:
    def __init__(self, shard: ShardState, loop: Loop, spec: FeedSpec, feeds: FeedTable) -> None:
        self.spec = spec
        self.waiters: Waiters | None = None
        """The followers that are not at the head. Followers that wait for news are waiters of the topic."""
        self._shard = shard
        self._loop = loop
        self._feeds = feeds
        self._count = 0
        self._reads = CursorReads(loop, spec, self._start_read, self._note_read)
        self._topic: Topic | None = None
        self._delayed_waiters: Wakeable = _GatheringWaiters(self) if spec.is_for_routes else self
        """The owner of the waiters that are called when the delay ends (F4, F5)."""
        self._is_delaying = False

    def add_follower(self) -> None:
        self._count += 1

    def remove_follower(self) -> None:
        self._count -= 1
        if not self._count:
            self.cancel(self._start_gathering)
            self._feeds.drop(self)

    def successor(self, refusal: Refusal) -> Feed:
        return self._feeds.successor(self.spec, refusal)

    def base_priority(self, now_ms: int) -> float:
        """Return the priority of the topic; RECENT when the topic does not exist.

        So the followers of a deleted topic learn of it before most other work is done.
        """
        topic = self._shard.topics.get(self.spec.topic)
        return RECENT if topic is None else topic.base_priority(now_ms)

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        self._reads.read(seq, epoch, on_chunk)

    def _start_read(self, request: ReadRequest, reply: Callable[[ReadAnswer | Refusal], None]) -> None:
        def on_answer(answer: ReadAnswer | Refusal) -> None:
            if isinstance(answer, Refusal) and answer.code == TOPIC_NOT_FOUND and self._feeds.has_broker:
                answer = perhaps_shared(self.spec.topic)
            reply(answer)

        read(self._shard, self.spec.topic, request, on_answer)

    def _note_read(self, chunk: Chunk) -> None:
        self._shard.topics[chunk.topic].last_read_ms = self._shard.clock.now_ms()

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        topic = self._shard.topics.get(self.spec.topic)
        if topic is None or topic.epoch != epoch:
            self.schedule(waiter)
        elif topic.head > seq:
            if self.spec.options.is_strong:
                # The topic has records that are not synced yet.
                self._shard.wake_queue.add(self._delayed_waiters, waiter)
                self._start_sync()
            else:
                self.schedule(waiter)
        else:
            self._topic = topic
            if self.spec.is_for_routes:
                self._shard.wake_queue.add(self._delayed_waiters, waiter)
                waiter = self._start_gathering
            self._shard.wake_queue.add(topic, waiter)

    def _start_gathering(self) -> None:
        if not self._is_delaying:
            self._is_delaying = True
            self._loop.call_later(GATHER_SECONDS, self._end_delay)

    def _start_sync(self) -> None:
        if not self._is_delaying:
            self._is_delaying = True
            if not self._shard.log.sync_soon(self._end_delay):
                self._loop.call_later(REREAD_SECONDS, self._end_delay)

    def _end_delay(self) -> None:
        self._is_delaying = False
        self._shard.wake_queue.wake(self._delayed_waiters)

    def schedule(self, waiter: Waiter) -> None:
        self._shard.wake_queue.add(self, waiter)
        self._shard.wake_queue.wake(self)

    def cancel(self, waiter: Waiter) -> None:
        if self._topic is not None:
            self._shard.wake_queue.remove(self._topic, waiter)
        self._shard.wake_queue.remove(self._delayed_waiters, waiter)
        self._shard.wake_queue.remove(self, waiter)


class _GatheringWaiters:
    """The waiters of a feed for routes that are at the head, called when the gathering ends (F4).

    They are kept apart so that a follower that reads older records does not wake them.
    """

    def __init__(self, feed: LocalFeed) -> None:
        self.waiters: Waiters | None = None
        self.base_priority = feed.base_priority
