"""A subscription: one cursor that moves along a feed, as fast as its sink accepts chunks.

Used by streams, WebSockets, long polls, routes and requests of other shards. At any time a subscription is
in one state: a read is in progress, or it waits for news, for its turn, or for the sink. So it is never
called twice for one event, and a slow sink costs a cursor and nothing else.

S1  The cursor moves over what the sink was given, and nothing else. It moves back when the sink could not
    keep a chunk.
S2  When a topic cannot be read now, because its shard is unavailable or a record is damaged, the sink is
    informed once. The subscription resumes from its cursor as soon as it can.
S3  A cursor past the head of its topic ends the subscription: the records that get those seqs later are
    not the records that the reader has seen.
"""

from __future__ import annotations

from typing import Protocol

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, TOPIC_NOT_FOUND, Refusal
from topicsd.stream.chunks import Chunk
from topicsd.stream.feed import Feed


class ChunkSink(Protocol):
    @property
    def is_paused(self) -> bool:
        """Return whether the sink is paused. On resuming, it calls `resume` of the held subscriptions."""
        ...

    def hold(self, subscription: Subscription) -> None:
        """Keep a subscription that may have a chunk, until the paused sink resumes."""
        ...

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        """Accept a chunk, which may be empty. The cursor of the subscription is already after it."""
        ...

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        """Report a failed read. Following resumes by itself, unless the subscription is over (S3)."""
        ...

    def ended(self, subscription: Subscription) -> None:
        """Report that the topic is deleted and the subscription is over."""
        ...


class Subscription:
    __slots__ = (
        "_is_busy",
        "_is_interrupted",
        "_sink",
        "epoch",
        "feed",
        "has_reported_caught_up",
        "head_seq",
        "index",
        "is_over",
        "seq",
    )

    def __init__(self, feed: Feed, seq: int, epoch: int | None, sink: ChunkSink, index: int = 0) -> None:
        """Create a subscription, which starts with `resume`. `index` is for the use of the sink."""
        self.feed = feed
        self.seq = seq
        self.epoch = epoch
        self.index = index
        self.head_seq = seq
        """The last known head."""
        self.has_reported_caught_up = False
        """For the sink: whether it has reported that the subscription was caught up."""
        self.is_over = False
        self._sink = sink
        self._is_busy = False
        self._is_interrupted = False
        feed.add_follower()

    def resume(self) -> None:
        """Read after the cursor unless a read is in progress.

        Called at the start, when there may be news, and when the sink resumes.
        """
        if self._is_busy or self.is_over:
            return
        if self._sink.is_paused:
            self._sink.hold(self)
            return
        self._is_busy = True
        self.feed.read(self.seq, self.epoch, self._on_chunk)

    def rewind(self, seq: int) -> None:
        """Move the cursor back to `seq`; the sink calls `resume` when it can accept the chunk again."""
        if not self.is_over:
            self.feed.cancel(self.resume)
            self.seq = seq

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.feed.cancel(self.resume)
            self.feed.remove_follower()

    def _on_chunk(self, result: Chunk | Refusal) -> None:
        self._is_busy = False
        if self.is_over:
            return
        if isinstance(result, Refusal):
            self._on_refusal(result)
            return
        self._is_interrupted = False
        self.seq = result.to_seq
        self.epoch = result.epoch
        self.head_seq = result.head_seq
        self._sink.deliver(self, result)
        self.resume_after(result)

    def resume_after(self, chunk: Chunk) -> None:
        """Wait for news, or read on after a chunk that the sink has and that ends at the cursor."""
        if self.is_over:
            return
        if chunk.to_seq >= chunk.head_seq:
            self.feed.wait(self.seq, chunk.epoch, self.resume)
        else:
            self.feed.schedule(self.resume)

    def _on_refusal(self, refusal: Refusal) -> None:
        if refusal.code == TOPIC_NOT_FOUND:
            self.close()
            self._sink.ended(self)
            return
        if refusal.code == POSITION_PAST_HEAD:
            self.close()
            self._sink.interrupted(self, refusal)
            return
        if refusal.code == CORRUPT_SEGMENT:
            self._sink.interrupted(self, refusal)
            # A repair keeps the good records; the rest was reported here.
            self.seq = int(str((refusal.detail or {})["next_from_seq"]))
        elif not self._is_interrupted:
            self._is_interrupted = True
            self._sink.interrupted(self, refusal)
        if not self.is_over:
            self.feed.schedule(self.resume)
