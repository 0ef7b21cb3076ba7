"""The supervisor on the link: requests from workers, and requests to workers.

It answers the control requests that workers send, asks shards for their topics, sends watch sessions to their
home shards, passes changes of routes to the route registry, and counts topics, sessions and streams over all
shards.

The list of topics of a shard is the array of `topicsd/service/topic_list.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

import msgspec

from router.control.control import METRICS_TYPE, ControlAnswer, ControlEndpoints, refusal_answer
from router.control.route_answers import RouteAnswers
from router.control.watch_home import WatchHome
from router.resharding.placement_writer import PlacementWriter
from shared.contract.errors import Refusal
from shared.contract.route_rule import decode_route_rule, decode_topic_deletion
from shared.http.answer import CLOSE
from shared.ipc.board import Board
from shared.ipc.exact_counts import ReservedCount, StreamCount
from shared.ipc.key_request import KeyRequest, decode_key_request, encode_keys_message
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkPool, LinkReply, LinkServer, reject, serve_links
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement_change import decode_placement_change, encode_placement_message
from shared.ipc.remote_request import RemoteRequest, decode_remote_request, encode_answer
from shared.ipc.watch_request import decode_watch_request
from shared.runtime.unexpected_error import refuse_unexpected_error

logger = logging.getLogger(__name__)

LIST_SECONDS: Final = 2.0
REFRESH_SECONDS: Final = 0.25
# A shard with 100,000 topics needs about half a second.
SURVEY_SECONDS: Final = 10.0

_CHANGES: Final = frozenset({LinkKind.PUT_ROUTE, LinkKind.DELETE_ROUTE, LinkKind.REQUEST})
_SECONDS: Final = {LinkKind.SURVEY: SURVEY_SECONDS}
_decode_topics = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode
_decode_stream = msgspec.msgpack.Decoder(tuple[int, str]).decode
_decode_shard = msgspec.msgpack.Decoder(int).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class Reshards(Protocol):
    """The reshard, as `router/resharding/reshard.py` presents it."""

    async def request(self, count: int) -> dict[str, object] | Refusal: ...


class NamedKeyEndpoints(Protocol):
    """The named keys, as `router/supervision/named_keys.py` presents them."""

    async def answer(self, request: KeyRequest) -> dict[str, object] | Refusal: ...


class SupervisorLink:
    def __init__(
        self,
        namespace: str,
        board: Board,
        topics: ReservedCount,
        streams: StreamCount,
        homes: WatchHome,
        placements: PlacementWriter | None = None,
    ) -> None:
        self._namespace = namespace
        self._board = board
        self._topics = topics
        self._streams = streams
        self._homes = homes
        self._placements = placements
        self._refresh_timer: asyncio.TimerHandle | None = None
        self._links = LinkPool(namespace)
        self._control: ControlEndpoints | None = None
        self._routes: RouteAnswers | None = None
        self._reshard: Reshards | None = None
        self._keys: NamedKeyEndpoints | None = None
        self._server: LinkServer | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(
        self,
        control: ControlEndpoints,
        routes: RouteAnswers,
        reshard: Reshards | None = None,
        keys: NamedKeyEndpoints | None = None,
    ) -> None:
        self._control = control
        self._routes = routes
        self._reshard = reshard
        self._keys = keys
        self._server = await serve_links(self._namespace, SUPERVISOR, self._serve)
        self._refresh()

    def close(self) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        if self._server is not None:
            self._server.close()
        self._links.close()

    def _refresh(self) -> None:
        self._topics.read_board()
        self._homes.sessions.read_board()
        self._forget_streams()
        self._refresh_timer = asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._refresh)

    def _forget_streams(self) -> None:
        """Remove the streams of workers that died."""
        self._streams.keep({slot.pid for _, slot in self._board.owners()})

    async def list_shard(
        self, shard: int, prefix: str, after: str, limit: int
    ) -> list[dict[str, Any]] | None:
        """Return topics of a shard in name order; None when the shard does not answer."""
        answer = await self.ask(shard, LinkKind.LIST_TOPICS, _encode([prefix, after, limit]))
        return _decode_topics(answer) if answer else None

    async def send_keys(self, shard: int, version: int, api_keys: str) -> bool:
        """Send the keys to the worker of the shard; return whether it uses them now."""
        return bool(await self.ask(shard, LinkKind.KEYS, encode_keys_message((version, api_keys))))

    async def ask(
        self, shard: int, kind: LinkKind, payload: bytes, seconds: float | None = None
    ) -> bytes | None:
        """Return the answer; None without one, `NEVER_SENT` when no worker received the request.

        A request that changes nothing waits for `seconds`, else `LIST_SECONDS`. A request that changes state
        waits for a hanging worker until the worker is killed, after which the change cannot happen any more.
        """
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._links.call(str(shard), kind, payload, done)
        try:
            limit = seconds or _SECONDS.get(kind, LIST_SECONDS)
            async with asyncio.timeout(None if kind in _CHANGES else limit):
                return await answered
        except TimeoutError:
            return None

    def _serve(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        if kind == LinkKind.RESERVE_TOPIC:
            reply(_encode(self._topics.reserve(_decode_shard(payload))))
            return
        if kind == LinkKind.CREATE_SESSION:
            self._create_session(payload, reply)
            return
        if kind in (LinkKind.ENTER_STREAM, LinkKind.LEAVE_STREAM):
            pid, key_id = _decode_stream(payload)
            is_new = kind == LinkKind.ENTER_STREAM
            reply(self._enter_stream(pid, key_id) if is_new else self._leave_stream(pid, key_id))
            return
        if kind == LinkKind.PUT_ROUTE:
            answering = self._put_route(payload, reply)
        elif kind == LinkKind.TOPIC_DELETED:
            answering = self._topic_deleted(payload, reply)
        elif kind == LinkKind.PLACE:
            answering = self._place(payload, reply)
        elif kind == LinkKind.RESHARD:
            answering = self._change_shards(_decode_shard(payload), reply)
        elif kind == LinkKind.KEY_REQUEST:
            answering = self._answer_about_keys(decode_key_request(payload), reply)
        elif kind == LinkKind.REQUEST:
            answering = self._answer(decode_remote_request(payload), reply)
        else:
            reject(kind, payload, reply)
            return
        task = asyncio.get_running_loop().create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _enter_stream(self, pid: int, key_id: str) -> bytes:
        self._forget_streams()
        return _encode(self._streams.enter(pid, key_id))

    def _leave_stream(self, pid: int, key_id: str) -> bytes:
        self._streams.leave(pid, key_id)
        return _encode("")

    def _create_session(self, payload: bytes, reply: LinkReply) -> None:
        home = self._homes.reserve(decode_watch_request(payload).names)
        if isinstance(home, Refusal):
            reply(_encode_refusal(home))
            return

        def answered(answer: bytes | None) -> None:
            if answer == NEVER_SENT:
                self._homes.sessions.release(home)
            reply(answer or _encode_refusal(self._homes.unreachable(home)))

        self._links.call(str(home), LinkKind.CREATE_SESSION, payload, answered)

    async def _answer(self, request: RemoteRequest, reply: LinkReply) -> None:
        assert self._control is not None
        try:
            answer = await self._control.answer(
                request.operation, request.name, request.query, request.accept, request.prefixes
            )
        except Exception as error:  # unexpected errors are answered with 500
            answer = refusal_answer(refuse_unexpected_error(logger, "a remote request", error))
        reply(_encode_control_answer(answer))

    async def _put_route(self, payload: bytes, reply: LinkReply) -> None:
        assert self._routes is not None
        try:
            answer = await self._routes.put(decode_route_rule(payload))
        except Exception as error:  # unexpected errors are answered with 500
            answer = refusal_answer(refuse_unexpected_error(logger, "a remote request", error))
        reply(_encode_control_answer(answer))

    async def _place(self, payload: bytes, reply: LinkReply) -> None:
        assert self._placements is not None
        try:
            refusal = await self._placements.change(decode_placement_change(payload))
        except Exception as error:  # unexpected errors are answered with 500
            refusal = refuse_unexpected_error(logger, "a change of the placement", error)
        reply(encode_placement_message(refusal))

    async def _change_shards(self, count: int, reply: LinkReply) -> None:
        assert self._control is not None
        assert self._reshard is not None
        try:
            answer = self._control.complete(await self._reshard.request(count))
        except Exception as error:  # unexpected errors are answered with 500
            answer = refusal_answer(refuse_unexpected_error(logger, "a reshard", error))
        reply(_encode_control_answer(answer))

    async def _answer_about_keys(self, request: KeyRequest, reply: LinkReply) -> None:
        assert self._control is not None
        assert self._keys is not None
        try:
            answer = self._control.complete(await self._keys.answer(request))
        except Exception as error:  # unexpected errors are answered with 500
            answer = refusal_answer(refuse_unexpected_error(logger, "a request about keys", error))
        reply(_encode_control_answer(answer))

    async def _topic_deleted(self, payload: bytes, reply: LinkReply) -> None:
        assert self._routes is not None
        try:
            names = await self._routes.end_routes_of_topic(decode_topic_deletion(payload))
        except Exception as error:  # unexpected errors are logged and no route is named
            refuse_unexpected_error(logger, "a remote request", error)
            names = []
        reply(_encode(names))


def _encode_control_answer(answer: ControlAnswer) -> bytes:
    status, content, fields = answer
    if isinstance(content, str):
        fields += b"content-type: %b\r\n" % METRICS_TYPE.encode()
    body = content.encode() if isinstance(content, str) else _encode_json(content)
    if status == 500:
        # CLOSE is the last field: the worker that asked closes its connection with it.
        fields += CLOSE
    return encode_answer(status, fields, [body])


def _encode_refusal(refusal: Refusal) -> bytes:
    return _encode_control_answer(refusal_answer(refusal))
