"""The streaming parts of one worker, connected: sessions, feeds, streams, endpoints, routes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Final

from shared.contract.api_keys import READ, ApiKeys
from shared.contract.errors import Refusal
from shared.contract.watch_id import WatchIds
from shared.http.public_address import AllowedAddresses
from shared.ipc.link import LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.disk_thread import Loop
from shared.runtime.unexpected_error import refuse_unexpected_error
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker
from topicsd.engine.routes.route import SourcePosition
from topicsd.engine.shard import Shard
from topicsd.service.call import logger
from topicsd.service.shards.dead_batches import DeadBatches
from topicsd.service.shards.limits import StreamPermits
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.topic_heads import HeadAnswer, TopicHeads
from topicsd.service.watch.create import WatchCreator
from topicsd.service.watch.open import WatchOpener
from topicsd.service.watch.stream_open import TopicStreamOpener
from topicsd.service.watch.topic_lookup import TopicLookups
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteShards
from topicsd.stream.route_runner import RouteRunners
from topicsd.stream.sessions import Session, Sessions
from topicsd.stream.shared.shared_feed import SharedTopics
from topicsd.stream.shared.shared_reads import SharedReads
from topicsd.stream.shared.shared_search import SharedSearcher
from topicsd.stream.tail.session_stream import SessionStreams
from topicsd.stream.tail.shard_search import ShardSearcher
from topicsd.stream.tail.topic_finder import TopicFinders
from topicsd.stream.tail.topic_search import TopicSearcher
from topicsd.stream.tail.topic_stream import TopicStreams
from topicsd.stream.webhooks.webhook_client import WebhookClient
from topicsd.stream.webhooks.webhook_runner import WebhookCounts, WebhookTools

FOLLOW_REQUESTS: Final = frozenset(
    {LinkKind.FEED, LinkKind.CREATE_SESSION, LinkKind.TOPIC_HEADS, LinkKind.FIND_TOPICS}
)
"""Requests of other processes that this class answers."""
READ_ONLY: Final = frozenset({READ})


class StreamServices:
    """Everything of one worker that follows topics, connected."""

    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        loop: Loop,
        links: LinkPool,
        number: int,
        placement: SharedPlacement,
        peers: Peers | None,
        keys: ApiKeys,
        *,
        broker: Broker | None = None,
        broker_number: int | None = None,
        hidden: Container[str] = (),
    ) -> None:
        """`broker_number` is the owner number of a broker of the node; a broker process has the `broker`.

        `hidden` has the names of topics of the shard that another shard owns.
        """
        state = shard.state
        remote = None
        if peers is not None:
            remote = RemoteShards(links, peers.refusal, state.wake_queue, loop, peers.ready_broker)
        self._state = state
        self._peers = peers
        self._keys = keys
        self._other_count = self._other_lagging_count = 0
        shared = None if broker is None else SharedReads(broker, state.pages, state.clock)
        self.shared_reads = shared
        topics = None
        if broker is not None and shared is not None:
            topics = SharedTopics(broker, shared, state.wake_queue, loop, state.clock)
        self.feeds = Feeds(state, loop, number, placement, remote, broker_number=broker_number, shared=topics)
        placement.call_on_change(self.feeds.forget_all)
        self.ids = WatchIds(shard.identity.instance)
        self.permits = StreamPermits(settings, links, peers)
        self.topic_heads = TopicHeads(state, placement, links, peers, broker_number, shared)
        self.sessions = Sessions(state, self.feeds, self._publish)
        self.finders = self._make_finders(links, placement, broker, broker_number, hidden)
        self.topic_streams = TopicStreams(
            self.feeds, self.finders, loop, state.clock, settings.max_watch_topics, self.count_stream
        )
        lookups = TopicLookups(self.topic_heads, self.finders, settings.max_watch_topics)
        self.creator = WatchCreator(state, self.ids, self.sessions, lookups, links, peers)
        session_streams = SessionStreams(self.sessions, self.topic_streams)
        self.opener = WatchOpener(
            state, self.ids, self.sessions, session_streams, self.permits, self._is_allowed
        )
        self.topic_stream_opener = TopicStreamOpener(
            state, self.topic_streams, lookups, self.permits, self._is_stream_allowed
        )
        self.webhooks = WebhookClient(AllowedAddresses(settings.webhook_private), state.clock)
        dead_batches = DeadBatches(links, placement)
        self.webhook_counts = WebhookCounts()
        tools = WebhookTools(self.feeds, self.webhooks.send, dead_batches.store, self.webhook_counts)
        self.route_runners = RouteRunners(state, loop, self.feeds, tools)
        self._publish()

    def _make_finders(
        self,
        links: LinkPool,
        placement: SharedPlacement,
        broker: Broker | None,
        broker_number: int | None,
        hidden: Container[str],
    ) -> TopicFinders:
        state, peers = self._state, self._peers
        number, ready_broker = state.number, None
        searcher: TopicSearcher = ShardSearcher(state, hidden)
        if broker is not None and broker_number is not None:
            number, searcher = broker_number, SharedSearcher(broker, state.loop, state.clock)
            ready_broker = partial(int, broker_number)
        elif broker_number is not None and peers is not None:
            ready_broker = partial(peers.ready_broker, broker_number)

        def refusal(owner: int) -> Refusal | None:
            return None if peers is None else peers.refusal(owner)

        return TopicFinders(number, searcher, links, placement, state.loop, refusal, ready_broker)

    def locate_source(self, name: str, reply: Callable[[SourcePosition | Refusal], object]) -> None:
        """Look up head, earliest seq and epoch of a route's source on another shard."""

        def on_end(heads: dict[str, HeadAnswer] | Exception) -> None:
            if isinstance(heads, Exception):
                reply(refuse_unexpected_error(logger, "a route's source", heads))
                return
            head = heads[name]
            if isinstance(head, Refusal):
                reply(head)
            else:
                reply(SourcePosition(head.epoch, head.head_seq, head.earliest_seq))

        self._state.jobs.start_now(self.topic_heads.find({name: None}), on_end)

    def _publish(self) -> None:
        if self._peers is not None:
            slot = self._peers.slot
            slot.watch_sessions = len(self.sessions)
            slot.sse_connections = self.sessions.stream_count + self._other_count

    def count_stream(self, change: int) -> None:
        """Count WebSockets and streams of jobs among the streams."""
        self._other_count += change
        self._publish()

    def answer_link(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        if kind == LinkKind.FEED:
            self.feeds.answer(payload, reply)
        elif kind == LinkKind.FIND_TOPICS:
            self.finders.answer(payload, reply)
        elif kind == LinkKind.CREATE_SESSION:
            self.creator.create_counted(payload, reply)
        else:
            assert kind == LinkKind.TOPIC_HEADS
            self.topic_heads.answer(payload, reply)

    @property
    def lagging_count(self) -> int:
        """Return the number of streams whose clients have not read for a while."""
        return self.sessions.lagging_count + self.topic_streams.lagging_count + self._other_lagging_count

    def count_lagging(self, change: int) -> None:
        """Count WebSockets whose clients have not read for a while."""
        self._other_lagging_count += change

    def check_keys(self, keys: ApiKeys) -> None:
        """End the streams whose key was removed or no longer covers them."""
        self._keys = keys
        self.sessions.end_revoked(self._is_allowed)
        self.topic_streams.end_revoked(self._is_stream_allowed)

    def _is_allowed(self, session: Session) -> bool:
        return self._keys.allow(session.definition.key_id, READ_ONLY, session.required)

    def _is_stream_allowed(self, key_id: str, names: Iterable[str]) -> bool:
        return self._keys.allow(key_id, READ_ONLY, names)

    def drain(self) -> None:
        """End all streams with a final event, and refuse new ones."""
        self.opener.drain()
        self.sessions.drain()
        self.topic_stream_opener.drain()
