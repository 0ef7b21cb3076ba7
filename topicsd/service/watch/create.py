"""The endpoint that creates watch sessions, and their creation at the home shard.

The receiving worker checks a request. The supervisor, which counts sessions over all shards, sends the
checked request to a home shard, whose answer passes through both unchanged. The only worker of a server
counts by itself. The client receives the positions that the topics had when they were looked up.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import TOPIC_NOT_FOUND, Refusal, limit_reached, no_answer
from shared.contract.query import query_boolean
from shared.contract.tag_filter import TopicSelection
from shared.contract.watch_id import SESSION_BYTES, WatchIds
from shared.ipc.link import SUPERVISOR, LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from shared.ipc.watch_request import WatchRequest, decode_watch_request, encode_watch_request
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.state import ShardState
from topicsd.log.control_frame import SessionFrame
from topicsd.service.call import Call, logger, start_job
from topicsd.service.input.bodies import refuse_media_type
from topicsd.service.input.clamped import member
from topicsd.service.render import encode, render_refusal
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.topic_heads import HeadAnswer, RequestedPosition, TopicStart
from topicsd.service.watch.body import decode_watch
from topicsd.service.watch.selection import topic_selection
from topicsd.service.watch.topic_lookup import PositionOf, TopicLookup, TopicLookups
from topicsd.stream.sessions import SESSION_TTL_SECONDS, Sessions


class WatchCreator:
    """The session creation of one worker; `peers` exist on a server with a supervisor."""

    def __init__(
        self,
        state: ShardState,
        ids: WatchIds,
        sessions: Sessions,
        lookups: TopicLookups,
        links: LinkPool,
        peers: Peers | None,
    ) -> None:
        self._state = state
        self._ids = ids
        self._sessions = sessions
        self._lookups = lookups
        self._links = links
        self._peers = peers
        self._in_progress = 0

    def create(self, call: Call, key: ApiKey | None) -> None:
        start_job(self._state.jobs, "create_watch", call, self._create(call, key))

    def _create(self, call: Call, key: ApiKey | None) -> BackgroundJob[Refusal | None]:
        request = self._decode(call, key)
        if isinstance(request, Refusal):
            return request
        if self._peers is None:
            body = yield from self._create_alone(request, call.started)
            if isinstance(body, Refusal):
                return body
            call.send_parts([body], len(body))
            return None
        payload = encode_watch_request(request)
        answer = yield from operation(partial(self._links.call, SUPERVISOR, LinkKind.CREATE_SESSION, payload))
        if not answer:
            return no_answer(None)
        status, fields, body = decode_answer(answer)
        call.send_parts([body], len(body), status, fields)
        return None

    def _decode(self, call: Call, key: ApiKey | None) -> WatchRequest | Refusal:
        is_lenient = query_boolean(call.query, "lenient", False)
        if isinstance(is_lenient, Refusal):
            return is_lenient
        refusal = refuse_media_type(call.fields, call.body)
        return refusal or decode_watch(call.body, key, is_lenient, self._state.settings, self._state.clock)

    def _create_alone(self, request: WatchRequest, started: float) -> BackgroundJob[bytes | Refusal]:
        bound = self._state.settings.max_watch_sessions
        if bound and len(self._sessions) + self._in_progress >= bound:
            return limit_reached("max_watch_sessions", bound, "no more watch sessions can be created")
        self._in_progress += 1
        try:
            return (yield from self._create_here(request, started))
        finally:
            self._in_progress -= 1

    def create_counted(self, payload: bytes, reply: LinkReply) -> None:
        """Create a session that the supervisor has counted, as its home shard."""

        def on_end(body: bytes | Refusal | Exception) -> None:
            status, fields = 200, b""
            if isinstance(body, Exception):
                body = refuse_unexpected_error(logger, "create_watch", body)
            if isinstance(body, Refusal):
                status, body, fields = render_refusal(body)
            if self._peers is not None:
                # After `watch_sessions`, which is up to date: a grant without a session is returned.
                self._peers.slot.watch_session_grants_total += 1
            reply(encode_answer(status, fields, [body]))

        job = self._create_here(decode_watch_request(payload), self._state.clock.monotonic())
        self._state.jobs.start_now(job, on_end)

    def _create_here(self, request: WatchRequest, started: float) -> BackgroundJob[bytes | Refusal]:
        """Create a counted session whose home is this shard; return the body of the response."""
        topics = yield from self._find_topics(request)
        if isinstance(topics, Refusal):
            return topics
        definition = define(secrets.token_bytes(SESSION_BYTES), request, topics)
        session = yield from operation(partial(self._sessions.create, definition))
        if isinstance(session, Refusal):
            return session
        wid = self._ids.make(self._state.number, definition.session)
        elapsed_ms = round((self._state.clock.monotonic() - started) * 1000, 3)
        body = {
            "wid": wid,
            "stream_url": f"/v0/watch/{wid}",
            "session_ttl_ms": int(SESSION_TTL_SECONDS * 1000),
            "topics": {name: start.body for name, start in topics.starts.items()},
            **({"patterns": request.patterns} if request.patterns else {}),
            **({"waiting": topics.waiting} if topics.waiting else {}),
            **member(request.clamped),
            "performance": {"server_total_ms": elapsed_ms},
        }
        return encode(body)

    def _find_topics(self, request: WatchRequest) -> BackgroundJob[SessionTopics | Refusal]:
        if not request.is_searching:
            positions = dict(zip(request.names, request.positions, strict=True))
            heads = yield from self._lookups.heads.find(positions)
            starts = starts_of(request, heads)
            return starts if isinstance(starts, Refusal) else SessionTopics(starts)
        selection = topic_selection(request.names, len(request.names))
        if isinstance(selection, Refusal):
            return selection
        selection = TopicSelection(selection.filter, request.within)
        names = [name for name in request.names if name in selection.filter.tags]
        lookup = TopicLookup(self._lookups, selection, positions_in(request))
        try:
            answer = yield from lookup.run(names, is_waiting=request.is_waiting or request.is_lenient)
        finally:
            lookup.close()
        if isinstance(answer, Refusal):
            return answer
        waiting = [*answer.new, *answer.missing]
        if not request.is_waiting:
            kept = selection.filter.tags.difference(waiting)
            selection = TopicSelection(msgspec.structs.replace(selection.filter, tags=kept), request.within)
            waiting = []
        return SessionTopics(answer.starts, waiting, selection)


class SessionTopics(NamedTuple):
    """The topics of a new session."""

    starts: dict[str, TopicStart]
    waiting: Sequence[str] = ()
    """Names that do not exist yet."""
    selection: TopicSelection | None = None
    """What the session looks for, or None if it has its topics only."""


def positions_in(request: WatchRequest) -> PositionOf:
    """Return the positions of topics: by their names, or by the first pattern that matches them."""
    requested = list(zip(request.names, request.positions, request.epochs, strict=True))
    by_name = {word: (position, epoch) for word, position, epoch in requested}
    by_pattern = [
        (selection, by_name[word])
        for word in request.patterns
        if not isinstance(selection := topic_selection([word], 1), Refusal)
    ]

    def position_of(name: str) -> tuple[RequestedPosition, int | None]:
        return by_name.get(name) or next(one for selection, one in by_pattern if selection.selects(name))

    return position_of


def starts_of(request: WatchRequest, heads: Mapping[str, HeadAnswer]) -> dict[str, TopicStart] | Refusal:
    """Return where each topic is followed from. Refuse a session that would never deliver a record."""
    for answer in heads.values():
        if isinstance(answer, Refusal) and answer.code != TOPIC_NOT_FOUND:
            return answer
    starts: dict[str, TopicStart] = {}
    for name, position, epoch in zip(request.names, request.positions, request.epochs, strict=True):
        head = heads[name]
        if isinstance(head, Refusal):
            if not request.is_lenient:
                return head
            continue
        start = head.start(name, position, epoch)
        if isinstance(start, Refusal):
            return start
        starts[name] = start
    return starts or Refusal(TOPIC_NOT_FOUND, "topics: must name at least one topic that exists")


def define(session: bytes, request: WatchRequest, topics: SessionTopics) -> SessionFrame:
    """Define a session; `session` is the random part of its id."""
    options, starts, selection = request.options, topics.starts, topics.selection
    return SessionFrame(
        session=session,
        key_id=request.key_id,
        names=list(starts),
        from_seqs=[start.seq for start in starts.values()],
        epochs=[start.epoch for start in starts.values()],
        nodes=sorted(options.nodes),
        limit=options.limit,
        bytes_max=options.bytes_max,
        heartbeat_ms=request.heartbeat_ms,
        with_tags=options.with_tags,
        with_meta=options.with_meta,
        with_data=options.with_data,
        is_strong=options.is_strong,
        match=options.match,
        topic_filter=None if selection is None else selection.filter,
        within=() if selection is None else selection.within,
    )
