"""The feeds that this shard follows, and its answers to other shards that follow its topics."""

from __future__ import annotations

from shared.contract.errors import Refusal
from shared.contract.names import topic_id
from shared.ipc.link import Asked
from shared.ipc.placement import shard_of
from shared.runtime.disk_thread import Loop
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found
from topicsd.stream.chunks import Piece, Wanted, encode_piece
from topicsd.stream.feed import Feed, LocalFeed
from topicsd.stream.remote_feed import (
    PIECE,
    REFUSED,
    FeedQuestion,
    RemoteFeed,
    Ways,
    decode_question,
    encode_refusal,
)
from topicsd.stream.subscription import Subscription


class Feeds:
    """The feeds of one shard, by what is followed. `ways` is None on a server of one shard."""

    def __init__(
        self, shard: ShardState, loop: Loop, number: int = 0, shard_count: int = 1, ways: Ways | None = None
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._number = number
        self._shard_count = shard_count
        self._ways = ways
        self._feeds: dict[Wanted, Feed] = {}

    def feed(self, wanted: Wanted) -> Feed:
        found = self._feeds.get(wanted)
        if found is None:
            found = self._feeds[wanted] = self._make(self.owner_of(wanted.topic), wanted)
        return found

    def owner_of(self, topic: str) -> int:
        return shard_of(topic_id(topic), self._shard_count)

    def is_here(self, topic: str) -> bool:
        return self.owner_of(topic) == self._number

    def _make(self, owner: int, wanted: Wanted) -> Feed:
        if owner == self._number:
            return LocalFeed(self._shard, self._loop, wanted, self._unused)
        assert self._ways is not None, "a server of one shard owns every topic"
        return RemoteFeed(self._ways, owner, wanted, self._unused)

    def _unused(self, wanted: Wanted) -> None:
        del self._feeds[wanted]

    def answer(self, payload: bytes, asked: Asked) -> None:
        """Answer a read or a pull of another shard for a topic of this shard."""
        question = decode_question(payload)
        Answering(self.feed(question.wanted), question, asked).subscription.go_on()


class Answering:
    """The answer to one request of another shard: a subscription that ends at its first result."""

    def __init__(self, feed: Feed, question: FeedQuestion, asked: Asked) -> None:
        self._waits = question.waits
        self._asked = asked
        self._seq = question.seq
        self.is_clogged = False
        self.subscription = Subscription(feed, question.seq, question.epoch, self)
        asked.hurry = self._hurry

    def hold(self, subscription: Subscription) -> None:
        raise AssertionError("an answer is never clogged")

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        if self._waits and piece.is_empty:
            # The cursor of the subscription moves over skipped records; the next chunk reports it.
            return
        self._end(PIECE + encode_piece(piece))

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        self._end(REFUSED + encode_refusal(refusal))

    def ended(self, subscription: Subscription) -> None:
        self._end(REFUSED + encode_refusal(topic_not_found(subscription.feed.wanted.topic)))

    def _hurry(self) -> None:
        """Cancel the wait: the other shard does not need the answer any more, or the link is lost."""
        self._end(REFUSED)

    def _end(self, answer: bytes) -> None:
        self.subscription.close()
        self._asked(answer)
