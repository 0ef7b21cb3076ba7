"""The endpoint that creates watch sessions, and their creation at the home shard.

The receiving worker checks a request. The supervisor, which counts sessions over all shards, sends the
checked request to a home shard, whose answer passes through both unchanged. The only worker of a server
counts by itself.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shared.contract.api_keys import ApiKey
from shared.contract.errors import NOT_READY, THROTTLED, Refusal
from shared.contract.query import query_boolean
from shared.contract.watch_id import WatchIds
from shared.contract.watch_request import WatchRequest, decode_watch_request, encode_watch_request
from shared.ipc.link import SUPERVISOR, LinkPool, LinkRequest
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.service.call import Call
from topicsd.service.input.bodies import refuse_media_type
from topicsd.service.input.clamped import member
from topicsd.service.render import encode, render_refusal
from topicsd.service.shards.peers import Peers
from topicsd.service.watch.body import decode_watch
from topicsd.stream.sessions.create import CreatedSession, SessionCreator
from topicsd.stream.sessions.sessions import SESSION_TTL_SECONDS, Sessions

RETRY_AFTER_MS: Final = 1000


class WatchCreator:
    """The session creation of one worker; `peers` exist on a server with a supervisor."""

    def __init__(
        self,
        settings: Settings,
        ids: WatchIds,
        shard: int,
        sessions: Sessions,
        creation: SessionCreator,
        links: LinkPool,
        clock: Clock,
        peers: Peers | None,
    ) -> None:
        self._settings = settings
        self._ids = ids
        self._shard = shard
        self._sessions = sessions
        self._creation = creation
        self._links = links
        self._clock = clock
        self._monotonic = clock.monotonic
        self._peers = peers
        self._is_alone = peers is None or len(peers) == 1
        self._in_progress = 0

    def create(self, call: Call, key: ApiKey | None) -> None:
        request = self._decode(call, key)
        if isinstance(request, Refusal):
            call.refuse(request)
        elif self._is_alone:
            self._create_alone(call, request)
        else:
            payload = encode_watch_request(request)
            self._links.call(SUPERVISOR, LinkKind.CREATE_SESSION, payload, partial(self._pass_on, call))

    def _decode(self, call: Call, key: ApiKey | None) -> WatchRequest | Refusal:
        is_lenient = query_boolean(call.query, "lenient", False)
        if isinstance(is_lenient, Refusal):
            return is_lenient
        refusal = refuse_media_type(call.fields, call.body)
        return refusal or decode_watch(call.body, key, is_lenient, self._settings, self._clock)

    def _pass_on(self, call: Call, answer: bytes | None) -> None:
        if not answer:
            message = "the supervisor does not answer, retry after 1 s"
            call.refuse(Refusal(NOT_READY, message, retry_after_ms=RETRY_AFTER_MS))
            return
        status, fields, body = decode_answer(answer)
        call.send_parts([body], len(body), status, fields)

    def _create_alone(self, call: Call, request: WatchRequest) -> None:
        bound = self._settings.max_watch_sessions
        if bound and len(self._sessions) + self._in_progress >= bound:
            detail: dict[str, object] = {"limit": "max_watch_sessions", "max": bound}
            message = f"there are {bound} watch sessions, the most that TOPICS_MAX_WATCH_SESSIONS allows"
            call.refuse(Refusal(THROTTLED, message, detail, RETRY_AFTER_MS))
            return
        self._in_progress += 1

        def respond(result: CreatedSession | Refusal) -> None:
            self._in_progress -= 1
            try:
                status, body, fields = self._render(result, request, call.started)
                call.send_parts([body], len(body), status, fields)
            except Exception as error:
                call.fail("create_watch", error)

        self._creation.make(request, respond)

    def create_counted(self, payload: bytes, link_request: LinkRequest) -> None:
        """Create a session that the supervisor has counted, as its home shard."""
        started = self._monotonic()
        request = decode_watch_request(payload)

        def respond(result: CreatedSession | Refusal) -> None:
            status, body, fields = self._render(result, request, started)
            if self._peers is not None:
                # After `watch_sessions`, which is up to date: a grant without a session is returned.
                self._peers.slot.watch_session_grants_total += 1
            link_request(encode_answer(status, fields, [body]))

        self._creation.make(request, respond)

    def _render(
        self, result: CreatedSession | Refusal, request: WatchRequest, started: float
    ) -> tuple[int, bytes, bytes]:
        """Return the status, body and further header fields."""
        if isinstance(result, Refusal):
            return render_refusal(result)
        definition = result.session.definition
        wid = self._ids.make(self._shard, definition.session)
        columns = zip(definition.names, definition.from_seqs, result.positions, strict=True)
        body = {
            "wid": wid,
            "stream_url": f"/v0/watch/{wid}",
            "session_ttl_ms": int(SESSION_TTL_SECONDS * 1000),
            "topics": {
                name: {
                    "from_seq": from_seq,
                    "head_seq": position.head_seq,
                    "earliest_seq": position.earliest_seq,
                    "epoch": position.epoch,
                }
                for name, from_seq, position in columns
            },
            **member(request.clamped),
            "performance": {"server_total_ms": round((self._monotonic() - started) * 1000, 3)},
        }
        return 200, encode(body), b""
