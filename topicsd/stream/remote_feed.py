"""A remote feed: a topic of another shard, or a shared topic at the broker, followed over the link.

It is followed once for equal followers.

While a follower waits for news, one request is with the owner (a *pull*). The owner answers it when there
are records after the feed's cursor, with a chunk that every follower at that cursor gets. A follower at an
earlier cursor sends its own read; equal reads are sent once, however many followers wait for the answer.

R1  One pull is in progress at a time, and the next starts when its chunk has arrived. So however fast the
    owner and slow the readers, one chunk for each feed is all that waits, and a slow reader does not slow
    the others.
R2  When the owner is unavailable, every follower is informed once, and called again when the owner is
    back. Followers keep their own cursors, so no record is missed or repeated.
R3  A chunk is kept for `CHUNK_TTL_SECONDS` only: a record deleted meanwhile is not sent to later followers.
R4  When the topic was moved to another shard, or the broker has gone and another one serves, every follower
    is sent to the feed of the new owner, with its cursor. It notices nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal, no_answer, relocated
from shared.contract.reader_options import ReaderOptions
from shared.ipc.link import LinkCall, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.runtime.disk_thread import Loop
from topicsd.engine.pending import call_reply
from topicsd.engine.wakeups.priority import RECENT
from topicsd.engine.wakeups.wake_queue import Waiter, Waiters, WakeQueue
from topicsd.stream.chunks import Chunk, FeedSpec, decode_chunk
from topicsd.stream.feed import Feed, FeedTable, OnChunk

CHUNK_TTL_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 0.1

CHUNK: Final = b"C"
REFUSAL: Final = b"R"
"""The first byte of an answer."""


class FeedRequest(msgspec.Struct, array_like=True):
    """A request for the records after a cursor.

    A pull is answered when there are records, or when the wait is cancelled; a read is answered at once.
    """

    topic: str
    options: ReaderOptions
    seq: int
    epoch: int | None
    is_pull: bool


encode_feed_request = msgspec.msgpack.Encoder().encode
decode_feed_request = msgspec.msgpack.Decoder(FeedRequest).decode
encode_refusal = msgspec.msgpack.Encoder().encode
_decode_refusal = msgspec.msgpack.Decoder(Refusal).decode


class RemoteShards(NamedTuple):
    """The means to send requests to other shards."""

    links: LinkPool
    refusal: Callable[[int], Refusal | None]
    """The reason why a shard is unavailable now, or None."""
    wake_queue: WakeQueue
    loop: Loop
    ready_broker: Callable[[int], int]
    """The broker that serves instead of this one, which may be itself."""


class RemoteFeed:
    def __init__(self, remote_shards: RemoteShards, shard: int, spec: FeedSpec, feeds: FeedTable) -> None:
        self.spec = spec
        self.waiters: Waiters | None = None
        self._remote_shards = remote_shards
        self._shard = shard
        self._feeds = feeds
        self._count = 0
        self._pull: LinkCall | None = None
        self._is_pulling = False
        self._pull_cursor: tuple[int, int | None] = (0, None)
        """The cursor of the current pull, or of the last one."""
        self._chunks: dict[tuple[int, int | None], Chunk] = {}
        self._reads: dict[tuple[int, int | None], list[OnChunk]] = {}
        """The callbacks of the reads in progress, by cursor."""
        self._owner_refusal: Refusal | None = None
        """The reason why the owner is unavailable, or None."""

    def add_follower(self) -> None:
        self._count += 1

    def remove_follower(self) -> None:
        self._count -= 1
        if not self._count:
            self._feeds.drop(self)
            if self._pull is not None:
                self._pull.cancel_wait()

    def successor(self, refusal: Refusal) -> Feed:
        return self._feeds.successor(self.spec, refusal)

    @property
    def _has_moved(self) -> bool:
        """Whether the topic has another owner now."""
        return self._feeds.has_moved(self.spec.topic, self._shard)

    def base_priority(self, now_ms: int) -> float:
        """Return RECENT.

        The owner already applied the priority of the topic before it sent the chunk.
        """
        return RECENT

    # -- followers -----------------------------------------------------------------------------------------

    def read(self, seq: int, epoch: int | None, on_chunk: OnChunk) -> None:
        cursor = (seq, epoch)
        chunk = self._chunks.get(cursor)
        if chunk is not None:
            on_chunk(chunk)
        elif self._owner_refusal is not None:
            on_chunk(self._owner_refusal)
        elif cursor in self._reads:
            self._reads[cursor].append(on_chunk)
        else:
            self._reads[cursor] = [on_chunk]
            self._send(cursor, is_pull=False)

    def wait(self, seq: int, epoch: int, waiter: Waiter) -> None:
        self._remote_shards.wake_queue.add(self, waiter)
        if self._owner_refusal is None and self._pull is None:
            self._begin_pull((seq, epoch))
        elif (seq, epoch) != self._pull_cursor and seq <= self._pull_cursor[0]:
            # The pull reads after records that this follower has not seen yet.
            self._remote_shards.wake_queue.wake(self)

    def schedule(self, waiter: Waiter) -> None:
        self._remote_shards.wake_queue.add(self, waiter)
        if self._owner_refusal is None:
            self._remote_shards.wake_queue.wake(self)

    def cancel(self, waiter: Waiter) -> None:
        self._remote_shards.wake_queue.remove(self, waiter)

    # -- requests to the owner -----------------------------------------------------------------------------

    def _send(self, cursor: tuple[int, int | None], is_pull: bool) -> None:
        if self._has_moved:
            self._remote_shards.loop.call_soon(self._on_moved)
            return
        refusal = self._remote_shards.refusal(self._shard)
        if refusal is not None:
            self._remote_shards.loop.call_soon(self._on_unavailable, refusal)
            return
        payload = encode_feed_request(FeedRequest(self.spec.topic, self.spec.options, *cursor, is_pull))
        on_answer = self._on_pull_answer if is_pull else partial(self._on_read_answer, cursor)
        self._is_pulling = is_pull or self._is_pulling
        call = self._remote_shards.links.call(str(self._shard), LinkKind.FEED, payload, on_answer)
        # A link that accepts no more requests has already called `_on_pull_answer`.
        if is_pull and self._is_pulling:
            self._pull = call

    def _begin_pull(self, cursor: tuple[int, int | None]) -> None:
        self._pull_cursor = cursor
        self._send(cursor, is_pull=True)

    def _on_pull_answer(self, answer: bytes | None) -> None:
        self._pull = None
        self._is_pulling = False
        if not answer:
            self._on_unavailable(self._unavailable_refusal())
            return
        if answer[:1] == CHUNK:
            chunk = self._keep_chunk(self._pull_cursor, answer)
            if not chunk.is_empty or chunk.to_seq != self._pull_cursor[0]:
                self._pull_cursor = (chunk.to_seq, chunk.epoch)
        else:
            # Followers get the refusal when they read, and not an empty chunk after which they wait again.
            self._chunks.clear()
        self._remote_shards.wake_queue.wake(self)

    def _on_read_answer(self, cursor: tuple[int, int | None], answer: bytes | None) -> None:
        if not answer:
            self._on_unavailable(self._unavailable_refusal())
            return
        callbacks = self._reads.pop(cursor, [])
        result = self._keep_chunk(cursor, answer) if answer[:1] == CHUNK else _decode_refusal(answer[1:])
        if isinstance(result, Refusal) and self._has_moved:
            # A former owner that was started again does not know that the topic was moved.
            result = relocated(self.spec.topic)
        for on_chunk in callbacks:
            call_reply(on_chunk, result)

    def _keep_chunk(self, cursor: tuple[int, int | None], answer: bytes) -> Chunk:
        chunk = decode_chunk(answer[1:])
        if not self._chunks:
            self._remote_shards.loop.call_later(CHUNK_TTL_SECONDS, self._chunks.clear)
        self._chunks[cursor] = chunk
        return chunk

    # -- an unavailable owner ------------------------------------------------------------------------------

    def _unavailable_refusal(self) -> Refusal:
        return self._remote_shards.refusal(self._shard) or no_answer(self._shard)

    def _on_unavailable(self, refusal: Refusal) -> None:
        """Report the refusal to every reader, and wake the waiters, which then read and get it too."""
        if self._has_moved:
            self._on_moved()
            return
        reads, self._reads = self._reads, {}
        if self._owner_refusal is None:
            self._owner_refusal = refusal
            self._chunks.clear()
            self._remote_shards.loop.call_later(RETRY_SECONDS, self._retry)
            self._remote_shards.wake_queue.wake(self)
        for callbacks in reads.values():
            for on_chunk in callbacks:
                call_reply(on_chunk, refusal)

    def _on_moved(self) -> None:
        """Send every follower to the successor (R4), and new ones."""
        self._feeds.drop(self)
        reads, self._reads = self._reads, {}
        self._owner_refusal = None
        self._chunks.clear()
        self._remote_shards.wake_queue.wake(self)
        for callbacks in reads.values():
            for on_chunk in callbacks:
                call_reply(on_chunk, relocated(self.spec.topic))

    def _retry(self) -> None:
        if self._has_moved:
            self._on_moved()
        elif self._remote_shards.refusal(self._shard) is None:
            self._owner_refusal = None
            self._remote_shards.wake_queue.wake(self)
        elif self._count:
            self._remote_shards.loop.call_later(RETRY_SECONDS, self._retry)
        else:
            self._owner_refusal = None
