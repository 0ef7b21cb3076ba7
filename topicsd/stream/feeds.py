"""The feeds that this shard follows, and its answers to other shards that follow its topics."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import TOPIC_NOT_FOUND, Refusal
from shared.ipc.link import LinkReply
from shared.ipc.placement import OwnerLookup, Placement
from shared.runtime.disk_thread import Loop
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import missing_topic, topic_not_found
from topicsd.stream.chunks import Chunk, FeedSpec, encode_chunk
from topicsd.stream.feed import Feed, LocalFeed, is_perhaps_shared, perhaps_shared
from topicsd.stream.remote_feed import (
    CHUNK,
    REFUSAL,
    FeedRequest,
    RemoteFeed,
    RemoteShards,
    decode_feed_request,
    encode_refusal,
)
from topicsd.stream.shared.shared_feed import SharedFeed, SharedTopics
from topicsd.stream.subscription import Subscription

PASSED_MAX: Final = 1024
"""A pull is answered after so many records that a filter leaves out, so that positions move."""


class Feeds:
    """The feeds of one shard, by topic and options. `remote_shards` is None on a server of one shard.

    `broker_number` is the owner number of a broker of this node, or None. `shared` is what the feeds of a
    broker process have, in which no topic is on the shard; it follows topics that it does not know to be
    shared at their owners by the placement first, as every process does (F6 of `feed.py`).
    """

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        number: int = 0,
        placement: OwnerLookup | None = None,
        remote_shards: RemoteShards | None = None,
        *,
        broker_number: int | None = None,
        shared: SharedTopics | None = None,
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._number = number
        self._placement = placement or Placement(1)
        self._remote_shards = remote_shards
        self._broker_number = broker_number
        self.shared = shared
        self._feeds: dict[FeedSpec, Feed] = {}
        self._broker_feeds: dict[FeedSpec, Feed] = {}

    def feed(self, spec: FeedSpec) -> Feed:
        feed = self._feeds.get(spec)
        if feed is None:
            owner = self.owner_of(spec.topic)
            if self.shared is not None and (owner < 0 or self.shared.is_known(spec.topic)):
                # A node without shards has no owner of local topics.
                return self.broker_feed(spec)
            feed = self._feeds[spec] = self._make(owner, spec)
        return feed

    def broker_feed(self, spec: FeedSpec) -> Feed:
        """Return the feed of a topic that is followed as a shared one."""
        feed = self._broker_feeds.get(spec)
        if feed is None:
            feed = self._broker_feeds[spec] = self._make_at_broker(spec)
        return feed

    def owner_of(self, topic: str) -> int:
        return self._placement.owner_of(topic)

    def has_moved(self, topic: str, owner: int) -> bool:
        return owner not in (self._ready_broker(), self.owner_of(topic))

    @property
    def has_broker(self) -> bool:
        return self._broker_number is not None

    def is_here(self, topic: str) -> bool:
        return self.owner_of(topic) == self._number

    def _make(self, owner: int, spec: FeedSpec) -> Feed:
        if owner == self._number:
            return LocalFeed(self._shard, self._loop, spec, self)
        assert self._remote_shards is not None, "a server of one shard owns every topic"
        return RemoteFeed(self._remote_shards, owner, spec, self)

    def _make_at_broker(self, spec: FeedSpec) -> Feed:
        if self.shared is not None:
            return SharedFeed(self.shared, spec, self)
        broker = self._ready_broker()
        assert broker is not None
        return self._make(broker, spec)

    def _ready_broker(self) -> int | None:
        """Return the broker of this node that serves now; that of this process as long as it does."""
        number, remote = self._broker_number, self._remote_shards
        return number if number is None or remote is None else remote.ready_broker(number)

    def drop(self, feed: Feed) -> None:
        for feeds in (self._feeds, self._broker_feeds):
            if feeds.get(feed.spec) is feed:
                del feeds[feed.spec]

    def forget_all(self) -> None:
        """Make new feeds from now on: the placement changed. Followers find out by themselves."""
        self._feeds.clear()

    def successor(self, spec: FeedSpec, refusal: Refusal) -> Feed:
        """Return the feed of the present owner of a topic that was moved, or of the broker.

        From a source on another shard only synced records are copied.
        """
        # The lookup comes first: it notices a new placement, and then forgets the feed of the former owner.
        is_here = self.is_here(spec.topic)
        if spec.is_for_routes:
            options = msgspec.structs.replace(spec.options, is_strong=not is_here)
            spec = spec._replace(options=options)
        return self.broker_feed(spec) if is_perhaps_shared(refusal) else self.feed(spec)

    def answer(self, payload: bytes, reply: LinkReply) -> None:
        """Answer a read or a pull of another shard for a topic of this shard, or a shared one."""
        request = decode_feed_request(payload)
        spec = FeedSpec(request.topic, request.options)
        if self.shared is not None:
            feed = self.broker_feed(spec)
        elif self.has_broker and self._is_unknown(request.topic):
            # The other shard asks the broker itself, instead of through this one.
            reply(REFUSAL + encode_refusal(perhaps_shared(request.topic)))
            return
        else:
            feed = self.feed(spec)
        FeedResponder(feed, request, reply).subscription.resume()

    def _is_unknown(self, topic: str) -> bool:
        if self._shard.visible_topic(topic) is not None or not self.is_here(topic):
            return False
        return missing_topic(self._shard, topic).code == TOPIC_NOT_FOUND


class FeedResponder:
    """The answer to one request of another shard: a subscription that ends at its first result."""

    def __init__(self, feed: Feed, request: FeedRequest, reply: LinkReply) -> None:
        self._is_pull = request.is_pull
        self._from_seq = request.seq
        self._reply = reply
        self.is_paused = False
        self.subscription = Subscription(feed, request.seq, request.epoch, self)
        reply.cancel_wait = self._cancel_wait

    def hold(self, subscription: Subscription) -> None:
        raise AssertionError("a responder is never paused")

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        if self._is_pull and chunk.is_empty and chunk.to_seq - self._from_seq < PASSED_MAX:
            # The cursor of the subscription moves over skipped records; a later chunk reports it.
            return
        self._end(CHUNK + encode_chunk(chunk))

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        self._end(REFUSAL + encode_refusal(refusal))

    def ended(self, subscription: Subscription) -> None:
        self._end(REFUSAL + encode_refusal(topic_not_found(subscription.feed.spec.topic)))

    def _cancel_wait(self) -> None:
        """Cancel the wait: the other shard does not need the answer any more, or the link is lost."""
        self._end(REFUSAL)

    def _end(self, answer: bytes) -> None:
        self.subscription.close()
        self._reply(answer)
