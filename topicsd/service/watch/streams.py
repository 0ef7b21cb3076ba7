"""The streaming parts of one worker, connected: sessions, feeds, streams, endpoints, routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.contract.api_keys import READ, ApiKeys
from shared.contract.errors import Refusal
from shared.contract.watch_id import WatchIds
from shared.ipc.link import LinkKind, LinkPool, LinkRequest
from shared.runtime.disk_thread import Loop
from shared.settings.settings import Settings
from topicsd.engine.routes.route import SourcePosition
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import topic_not_found
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.stream_permits import StreamPermits
from topicsd.service.watch.create import WatchCreator
from topicsd.service.watch.open import WatchOpener
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteShards
from topicsd.stream.route_runner import RouteRunners
from topicsd.stream.sessions.create import SessionCreator, answer_positions
from topicsd.stream.sessions.definition import TopicPosition
from topicsd.stream.sessions.open import SessionStreams
from topicsd.stream.sessions.sessions import Session, Sessions

STREAM_REQUESTS: Final = frozenset({LinkKind.FEED, LinkKind.CREATE_SESSION, LinkKind.TOPIC_HEADS})
"""Requests of other processes that this class answers."""
READ_ONLY: Final = frozenset({READ})


class Streams:
    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        loop: Loop,
        links: LinkPool,
        number: int,
        shard_count: int,
        peers: Peers | None,
    ) -> None:
        state = shard.state
        ways = None if peers is None else RemoteShards(links, peers.refusal, state.wake_queue, loop)
        self._state = state
        self.feeds = Feeds(state, loop, number, shard_count, ways)
        self.sessions = Sessions(state, loop)
        self.ids = WatchIds(shard.identity.instance, shard_count)
        creation = SessionCreator(state, self.sessions, number, shard_count, ways)
        self._creation = creation
        self.route_runners = RouteRunners(state, loop, self.feeds)
        self.creator = WatchCreator(
            settings, self.ids, number, self.sessions, creation, links, state.clock, peers
        )
        self.permits = StreamPermits(settings, links, peers)
        self.opener = WatchOpener(self.ids, self.sessions, self.permits)
        self._other_count = self._other_lagging_count = 0
        self._streams = SessionStreams(
            self.sessions, self.feeds, loop, state.clock, self.opener.on_stream_end
        )
        self.opener.open_session = self._streams.open_session
        self._peers = peers
        self.sessions.on_change = self._publish
        self._publish()

    def locate_source(self, name: str, reply: Callable[[SourcePosition | Refusal], object]) -> None:
        """Look up head, earliest seq and epoch of a route's source on another shard."""

        def on_positions(positions: list[TopicPosition | None] | Refusal) -> None:
            if isinstance(positions, Refusal):
                reply(positions)
            elif (position := positions[0]) is None:
                reply(topic_not_found(name))
            else:
                reply(SourcePosition(position.epoch, position.head_seq, position.earliest_seq))

        self._creation.ask(self.feeds.owner_of(name), [(name, None)], on_positions)

    def _publish(self) -> None:
        if self._peers is not None:
            slot = self._peers.slot
            slot.watch_sessions = len(self.sessions)
            slot.sse_connections = self.sessions.stream_count + self._other_count

    def count_stream(self, change: int) -> None:
        """Count WebSockets and streams of jobs among the streams."""
        self._other_count += change
        self._publish()

    def answer_link(self, kind: int, payload: bytes, link_request: LinkRequest) -> None:
        if kind == LinkKind.FEED:
            self.feeds.answer(payload, link_request)
        elif kind == LinkKind.CREATE_SESSION:
            self.creator.create_counted(payload, link_request)
        else:
            assert kind == LinkKind.TOPIC_HEADS
            answer_positions(self._state, payload, link_request)

    @property
    def lagging_count(self) -> int:
        """Return the number of streams whose clients have not read for a while."""
        return self._streams.lagging_count + self._other_lagging_count

    def count_lagging(self, change: int) -> None:
        """Count WebSockets whose clients have not read for a while."""
        self._other_lagging_count += change

    def check_keys(self, keys: ApiKeys) -> None:
        """End the streams whose key was removed or no longer covers them."""

        def may_continue(session: Session) -> bool:
            return keys.allow(session.definition.key_id, READ_ONLY, session.names)

        self._streams.end_revoked(may_continue)

    def drain(self) -> None:
        """End all streams with a final event, and refuse new ones."""
        self.opener.is_draining = True
        self._streams.drain()
