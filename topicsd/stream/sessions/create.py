"""Session creation at the home shard: query the topics' positions, define it, store it.

All topics of another shard are one request. The session exists once its frame is written. The client
receives the positions that the topics had when they were queried.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import NOT_READY, Refusal
from shared.contract.names import topic_id
from shared.contract.seek import Seek
from shared.contract.watch_id import SESSION_BYTES
from shared.contract.watch_request import WatchRequest
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import shard_of
from topicsd.engine.state import ShardState
from topicsd.stream.remote_feed import RemoteShards
from topicsd.stream.sessions.definition import (
    NewSession,
    PositionRequest,
    TopicPosition,
    define,
    local_positions,
)
from topicsd.stream.sessions.sessions import Session, Sessions

RETRY_AFTER_MS: Final = 1000

_encode = msgspec.msgpack.Encoder().encode
_decode_requests = msgspec.msgpack.Decoder(list[PositionRequest]).decode
_decode_positions = msgspec.msgpack.Decoder(list[TopicPosition | None]).decode


class CreatedSession(NamedTuple):
    session: Session
    positions: list[TopicPosition]


OnSession = Callable[[CreatedSession | Refusal], None]


def answer_positions(shard: ShardState, payload: bytes, reply: Callable[[bytes], object]) -> None:
    """Answer a position request of another shard for topics of this shard."""
    local_positions(shard, _decode_requests(payload), lambda positions: reply(_encode(positions)))


class SessionCreator:
    """The creation of sessions in one shard. `remote_shards` is None on a server of one shard."""

    def __init__(
        self,
        shard: ShardState,
        sessions: Sessions,
        number: int = 0,
        shard_count: int = 1,
        remote_shards: RemoteShards | None = None,
    ) -> None:
        self._shard = shard
        self._sessions = sessions
        self._number = number
        self._shard_count = shard_count
        self._remote = remote_shards

    def make(self, request: WatchRequest, on_session: OnSession) -> None:
        """Create a session. Call `on_session` once, with the session or a `Refusal`."""
        by_shard: dict[int, list[PositionRequest]] = {}
        for name, position in zip(request.names, request.from_seqs, strict=True):
            position_request = (name, position if isinstance(position, Seek) else None)
            by_shard.setdefault(shard_of(topic_id(name), self._shard_count), []).append(position_request)
        refusals = (self._refusal(shard) for shard in by_shard if shard != self._number)
        refusal = next(filter(None, refusals), None)
        if refusal is not None:
            on_session(refusal)
        else:
            _PositionQuery(self, request, on_session).send(by_shard)

    def _refusal(self, shard: int) -> Refusal | None:
        return self._remote_shards.refusal(shard)

    @property
    def _remote_shards(self) -> RemoteShards:
        assert self._remote is not None, "a server of one shard owns every topic"
        return self._remote

    def ask(
        self,
        shard: int,
        requests: Sequence[PositionRequest],
        on_positions: Callable[[list[TopicPosition | None] | Refusal], None],
    ) -> None:
        if shard == self._number:
            local_positions(self._shard, requests, on_positions)
            return

        def on_answer(answer: bytes | None) -> None:
            on_positions(_decode_positions(answer) if answer else self._unavailable_refusal(shard))

        self._remote_shards.links.call(str(shard), LinkKind.TOPIC_HEADS, _encode(requests), on_answer)

    def _unavailable_refusal(self, shard: int) -> Refusal:
        message = f"shard {shard} does not answer"
        return self._refusal(shard) or Refusal(NOT_READY, message, {"shard": shard}, RETRY_AFTER_MS)

    def store(
        self, request: WatchRequest, on_session: OnSession, positions: dict[str, TopicPosition | None]
    ) -> None:
        """Define and store the session, once the positions of all its topics are known."""
        new_session = define(secrets.token_bytes(SESSION_BYTES), request, positions)
        if isinstance(new_session, Refusal):
            on_session(new_session)
        else:
            self._sessions.create(new_session.session, partial(self._on_stored, new_session, on_session))

    def _on_stored(self, new_session: NewSession, on_session: OnSession, answer: Session | Refusal) -> None:
        on_session(answer if isinstance(answer, Refusal) else CreatedSession(answer, new_session.positions))


class _PositionQuery:
    """The query for the positions of one session's topics, here and in other shards."""

    def __init__(self, creator: SessionCreator, request: WatchRequest, on_session: OnSession) -> None:
        self._creator = creator
        self._request = request
        self._on_session = on_session
        self._positions: dict[str, TopicPosition | None] = {}
        self._pending_count = 0
        self._refusal: Refusal | None = None

    def send(self, by_shard: dict[int, list[PositionRequest]]) -> None:
        self._pending_count = len(by_shard)
        for shard, requests in by_shard.items():
            self._creator.ask(shard, requests, partial(self._on_answer, requests))

    def _on_answer(
        self, requests: list[PositionRequest], answer: list[TopicPosition | None] | Refusal
    ) -> None:
        self._pending_count -= 1
        if isinstance(answer, Refusal):
            self._refusal = self._refusal or answer
        else:
            self._positions.update(zip((name for name, _ in requests), answer, strict=True))
        if self._pending_count:
            return
        if self._refusal is not None:
            self._on_session(self._refusal)
        else:
            self._creator.store(self._request, self._on_session, self._positions)
