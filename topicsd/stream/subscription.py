"""A subscription: one cursor that moves along a feed, as fast as its sink accepts chunks.

Used by streams, WebSockets, long polls, routes and requests of other shards. At any time a subscription is
in one state: a read is in progress, or it waits for news, for its turn, or for the sink. So it is never
called twice for one event, and a slow sink costs a cursor and nothing else.

S1  The cursor moves over what the sink was given, and nothing else. It moves back when the sink could not
    keep a chunk.
S2  When a topic cannot be read now, because its shard is unavailable, the sink is informed once. The
    subscription resumes from its cursor as soon as it can.
S3  A cursor past the head of its topic ends the subscription: the records that get those seqs later are
    not the records that the reader has seen.
S4  Adjoining damage in one file is one range, reported once. A read ends at a page, and so finds a part of a
    range only: the range is kept until a read finds its end. What that read found is read again, because the
    sink may pause when it receives the range.
S5  When the topic was moved to another shard, or may be a shared one, the subscription continues there from
    its cursor. The sink is not informed.
"""

from __future__ import annotations

from typing import Protocol

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, RELOCATED, TOPIC_NOT_FOUND, Refusal
from topicsd.engine.damage import joined_damage, next_from_seq
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
        "_damage",
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
        self._damage: Refusal | None = None
        """The range of damaged records before the cursor that is not reported yet (S4)."""
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
            self._damage = None

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.feed.cancel(self.resume)
            self.feed.remove_follower()

    def _on_chunk(self, result: Chunk | Refusal) -> None:
        self._is_busy = False
        if self.is_over:
            return
        if self._damage is not None or isinstance(result, Refusal):
            self._on_interruption(result)
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

    def _on_interruption(self, result: Chunk | Refusal) -> None:
        """Handle a refusal, or the first result after a damaged range."""
        damage = self._damage
        if isinstance(result, Refusal) and result.code == CORRUPT_SEGMENT:
            range_ = result if damage is None else joined_damage(damage, result)
            if range_ is not None:
                self._damage = range_
                # A repair keeps the good records; the rest is reported.
                self.seq = next_from_seq(range_)
                self.feed.schedule(self.resume)
                return
        if damage is not None:
            self._damage = None
            self._sink.interrupted(self, damage)
            if not self.is_over:
                self.feed.schedule(self.resume)
        else:
            assert isinstance(result, Refusal)
            self._on_refusal(result)

    def _follow_move(self, refusal: Refusal) -> None:
        """Follow the topic to another shard, or to the broker (S5)."""
        former, self.feed = self.feed, self.feed.successor(refusal)
        self.feed.add_follower()
        former.remove_follower()
        self.feed.schedule(self.resume)

    def _on_refusal(self, refusal: Refusal) -> None:
        if refusal.code == RELOCATED:
            self._follow_move(refusal)
            return
        if refusal.code == TOPIC_NOT_FOUND:
            self.close()
            self._sink.ended(self)
            return
        if refusal.code == POSITION_PAST_HEAD:
            self.close()
            self._sink.interrupted(self, refusal)
            return
        if not self._is_interrupted:
            self._is_interrupted = True
            self._sink.interrupted(self, refusal)
        if not self.is_over:
            self.feed.schedule(self.resume)
