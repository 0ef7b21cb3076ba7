"""A subscription: one cursor that goes along a feed, as fast as its sink takes what it finds.

Streams, WebSockets, readers that wait, forwards, and whoever follows for another shard: all go along a topic
with this. At any time it is in one place: a reading is on its way, or it waits for news, or for its turn, or
for the sink. So it is never called twice for one thing, and what a slow sink does not take costs a cursor and
nothing else.

S1  The cursor moves over what the sink was given, and nothing else; back, where the sink could not keep it.
S2  A topic that cannot be read now, because its shard is away or a record is damaged, is said to the sink
    once, and followed on from the cursor as soon as it can be.
S3  A cursor past the head of its topic ends the subscription: the records that get those seqs later are not
    those that the reader has seen.
"""

from __future__ import annotations

from typing import Protocol

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, TOPIC_NOT_FOUND, Refusal
from topicsd.stream.chunks import Piece
from topicsd.stream.feed import Feed


class Sink(Protocol):
    @property
    def is_clogged(self) -> bool:
        """Takes nothing now; calls `go_on` of those that it held when it does again."""
        ...

    def hold(self, subscription: Subscription) -> None:
        """It has something, and the sink is clogged."""
        ...

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        """The cursor stands behind the piece already. Empty ones are given too."""
        ...

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        """Report a failed read. Following resumes by itself, unless the subscription is over (S3)."""
        ...

    def ended(self, subscription: Subscription) -> None:
        """The topic is deleted; the subscription is over."""
        ...


class Subscription:
    __slots__ = (
        "_is_busy",
        "_is_interrupted",
        "_sink",
        "epoch",
        "feed",
        "head_seq",
        "index",
        "is_over",
        "is_told_caught_up",
        "seq",
    )

    def __init__(self, feed: Feed, seq: int, epoch: int | None, sink: Sink, index: int = 0) -> None:
        """It begins with `go_on`. `index` is the sink's own."""
        self.feed = feed
        self.seq = seq
        self.epoch = epoch
        self.index = index
        self.head_seq = seq
        """As far as is known."""
        self.is_told_caught_up = False
        """For the sink: it knows that there was a time when nothing was behind."""
        self.is_over = False
        self._sink = sink
        self._is_busy = False
        self._is_interrupted = False
        feed.enter()

    def go_on(self) -> None:
        """Look for what is behind the cursor: at the beginning, when there may be something, when the sink
        takes it again."""
        if self._is_busy or self.is_over:
            return
        if self._sink.is_clogged:
            self._sink.hold(self)
            return
        self._is_busy = True
        self.feed.read(self.seq, self.epoch, self._found)

    def rewind(self, seq: int) -> None:
        """The sink could not keep what it was given; it calls `go_on` when it wants that again."""
        if not self.is_over:
            self.feed.forget(self.go_on)
            self.seq = seq

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.feed.forget(self.go_on)
            self.feed.leave()

    def _found(self, found: Piece | Refusal) -> None:
        self._is_busy = False
        if self.is_over:
            return
        if isinstance(found, Refusal):
            self._refused(found)
            return
        self._is_interrupted = False
        self.seq = found.to_seq
        self.epoch = found.epoch
        self.head_seq = found.head_seq
        self._sink.deliver(self, found)
        self.go_on_behind(found)

    def go_on_behind(self, found: Piece) -> None:
        """The sink has this, which ends at the cursor: look on when it is time."""
        if self.is_over:
            return
        if found.to_seq >= found.head_seq:
            self.feed.wait(self.seq, found.epoch, self.go_on)
        else:
            self.feed.later(self.go_on)

    def _refused(self, refusal: Refusal) -> None:
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
            # Whoever repairs it keeps what was good; the rest was reported here.
            self.seq = int(str((refusal.detail or {})["next_from_seq"]))
        elif not self._is_interrupted:
            self._is_interrupted = True
            self._sink.interrupted(self, refusal)
        if not self.is_over:
            self.feed.later(self.go_on)
