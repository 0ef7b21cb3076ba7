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
from shared.ipc.link import LinkKind
from shared.ipc.placement import shard_of
from topicsd.engine.state import ShardState
from topicsd.stream.remote_feed import Ways
from topicsd.stream.sessions.definition import Asked, Defined, Stand, define, stands_here
from topicsd.stream.sessions.sessions import WatchSession, WatchSessions

RETRY_AFTER_MS: Final = 1000

_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(list[Asked]).decode
_decode_stands = msgspec.msgpack.Decoder(list[Stand | None]).decode


class Made(NamedTuple):
    session: WatchSession
    stands: list[Stand]


Told = Callable[[Made | Refusal], None]


def answer_stands(shard: ShardState, payload: bytes, told: Callable[[bytes], object]) -> None:
    """Answer a position request of another shard for topics of this shard."""
    stands_here(shard, _decode_asked(payload), lambda stands: told(_encode(stands)))


class WatchMaking:
    """The creation of sessions in one shard. `ways` is None on a server of one shard."""

    def __init__(
        self,
        shard: ShardState,
        sessions: WatchSessions,
        number: int = 0,
        shard_count: int = 1,
        ways: Ways | None = None,
    ) -> None:
        self._shard = shard
        self._sessions = sessions
        self._number = number
        self._shard_count = shard_count
        self._ways = ways

    def make(self, request: WatchRequest, told: Told) -> None:
        """Create a session. Call `told` once, with the session or a `Refusal`."""
        by_shard: dict[int, list[Asked]] = {}
        for name, place in zip(request.names, request.from_seqs, strict=True):
            asked = (name, place if isinstance(place, Seek) else None)
            by_shard.setdefault(shard_of(topic_id(name), self._shard_count), []).append(asked)
        refusals = (self._refusal(shard) for shard in by_shard if shard != self._number)
        refusal = next(filter(None, refusals), None)
        if refusal is not None:
            told(refusal)
        else:
            _Asking(self, request, told).ask(by_shard)

    def _refusal(self, shard: int) -> Refusal | None:
        return self._other_shards.refusal(shard)

    @property
    def _other_shards(self) -> Ways:
        assert self._ways is not None, "a server of one shard owns every topic"
        return self._ways

    def ask(
        self, shard: int, asked: Sequence[Asked], done: Callable[[list[Stand | None] | Refusal], None]
    ) -> None:
        if shard == self._number:
            stands_here(self._shard, asked, done)
            return

        def answered(answer: bytes | None) -> None:
            done(_decode_stands(answer) if answer else self._not_reached(shard))

        self._other_shards.links.call(str(shard), LinkKind.TOPIC_HEADS, _encode(asked), answered)

    def _not_reached(self, shard: int) -> Refusal:
        message = f"shard {shard} does not answer"
        return self._refusal(shard) or Refusal(NOT_READY, message, {"shard": shard}, RETRY_AFTER_MS)

    def keep(self, request: WatchRequest, told: Told, stands: dict[str, Stand | None]) -> None:
        """Define and store the session, once the positions of all its topics are known."""
        defined = define(secrets.token_bytes(SESSION_BYTES), request, stands)
        if isinstance(defined, Refusal):
            told(defined)
        else:
            self._sessions.make(defined.session, partial(self._kept, defined, told))

    def _kept(self, defined: Defined, told: Told, answer: WatchSession | Refusal) -> None:
        told(answer if isinstance(answer, Refusal) else Made(answer, defined.stands))


class _Asking:
    """The query for the positions of one session's topics, here and in other shards."""

    def __init__(self, making: WatchMaking, request: WatchRequest, told: Told) -> None:
        self._making = making
        self._request = request
        self._told = told
        self._stands: dict[str, Stand | None] = {}
        self._missing = 0
        self._refusal: Refusal | None = None

    def ask(self, by_shard: dict[int, list[Asked]]) -> None:
        self._missing = len(by_shard)
        for shard, asked in by_shard.items():
            self._making.ask(shard, asked, partial(self._answered, asked))

    def _answered(self, asked: list[Asked], answer: list[Stand | None] | Refusal) -> None:
        self._missing -= 1
        if isinstance(answer, Refusal):
            self._refusal = self._refusal or answer
        else:
            self._stands.update(zip((name for name, _ in asked), answer, strict=True))
        if self._missing:
            return
        if self._refusal is not None:
            self._told(self._refusal)
        else:
            self._making.keep(self._request, self._told, self._stands)
