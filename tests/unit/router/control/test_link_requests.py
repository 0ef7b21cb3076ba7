"""The supervisor on the link, with the other end as a worker has it."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
import uvloop

from router.control import link_requests
from router.control.control import METRICS_TYPE, ControlAnswer
from router.control.link_requests import SupervisorLink
from router.control.watch_home import WatchHome
from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.route_rule import RouteRule, TopicDeletion, decode_names, encode_route_message
from shared.http.answer import CLOSE
from shared.ipc import exact_counts
from shared.ipc.board import Board, WorkerState
from shared.ipc.exact_counts import ReservedCount, StreamCount
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkPool, serve_links
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement
from shared.ipc.remote_request import decode_answer
from shared.ipc.watch_request import WatchRequest, encode_watch_request
from tests.harness.server.whole_server import name_on

TOPICS = [{"topic": "a", "count": 1}]


class ReadyShards:
    """Shards that all serve."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __len__(self) -> int:
        return len(self._board)

    def refusal(self, shard: int) -> Refusal | None:
        return None


class Control:
    """Answers with the request that it receives."""

    async def answer(
        self, operation: str, name: str, query: str, accept: str, prefixes: Sequence[str] = ()
    ) -> ControlAnswer:
        if operation == "broken":
            raise ZeroDivisionError
        if operation == "metrics":
            return 200, "topics 1\n", b""
        return 503, {"request": [operation, name, query, accept]}, b"retry-after: 1\r\n"


class Routes:
    """Answers with what it receives."""

    async def put(self, rule: RouteRule) -> ControlAnswer:
        if rule.name == "broken":
            raise ZeroDivisionError
        return 201, {"put": [rule.name, rule.source, rule.dest]}, b""

    async def end_routes_of_topic(self, deleted: TopicDeletion) -> list[str]:
        if deleted.name == "broken":
            raise ZeroDivisionError
        return [deleted.name, str(deleted.epoch)]


def run(play: Callable[[SupervisorLink, str], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        instance = os.urandom(8).hex()
        board = Board.create(2)
        topics, sessions = (
            ReservedCount(board, 0, fields) for fields in (exact_counts.TOPICS, exact_counts.WATCH_SESSIONS)
        )
        link = SupervisorLink(
            instance, board, topics, StreamCount(1, 0), WatchHome(ReadyShards(board), Placement(2), sessions)
        )
        await link.start(Control(), Routes())  # type: ignore[arg-type]
        try:
            await play(link, instance)
        finally:
            link.close()
            await asyncio.sleep(0.02)
            board.close()
            os.close(board.fd)

    uvloop.run(whole())


async def forward(instance: str, operation: str) -> tuple[int, bytes, bytes]:
    links = LinkPool(instance)
    answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    request = msgspec.msgpack.encode([operation, "", "a=b", "application/json", "*/*", "", b""])
    links.call(SUPERVISOR, LinkKind.REQUEST, request, answered.set_result)
    answer = await asyncio.wait_for(answered, 5)
    links.close()
    assert answer is not None, "the supervisor was not reached"
    status, fields_length = struct.unpack_from("<HH", answer)
    return status, answer[4 : 4 + fields_length], answer[4 + fields_length :]


def test_a_remote_request_is_answered_as_any_other() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        status, fields, body = await forward(instance, "list_topics")
        assert (status, fields) == (503, b"retry-after: 1\r\n")
        assert json.loads(body) == {"request": ["list_topics", "", "a=b", "*/*"]}

    run(play)


def test_text_is_sent_as_text() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        status, fields, body = await forward(instance, "metrics")
        assert (status, body) == (200, b"topics 1\n")
        assert fields == b"content-type: %b\r\n" % METRICS_TYPE.encode()

    run(play)


def test_an_error_is_an_answer() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        status, _, body = await forward(instance, "broken")
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal")

    run(play)


def test_a_request_of_an_unknown_kind_is_answered_as_never_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        assert await ask(instance, LinkKind.LIST_TOPICS, b"") == NEVER_SENT

    run(play)
    assert "unknown kind  kind=2" in caplog.text


def test_a_shard_is_asked_for_its_topics() -> None:
    seen = []

    def serve(kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
        seen.append((kind, msgspec.msgpack.decode(payload)))
        reply(msgspec.msgpack.encode(TOPICS))

    async def play(link: SupervisorLink, instance: str) -> None:
        worker = await serve_links(instance, "1", serve)
        listed = await link.list_shard(1, "p", "after", 7)
        missing = await link.list_shard(2, "p", "after", 7)
        worker.close()
        assert listed == TOPICS
        assert missing is None
        assert seen == [(LinkKind.LIST_TOPICS, ["p", "after", 7])]

    run(play)


def test_a_hung_shard_counts_as_not_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_requests, "LIST_SECONDS", 0.05)

    async def play(link: SupervisorLink, instance: str) -> None:
        worker = await serve_links(instance, "0", lambda kind, payload, reply: None)
        assert await link.list_shard(0, "", "", 7) is None
        worker.close()

    run(play)


# -- watch sessions and streams ----------------------------------------------------------------------------


async def ask(instance: str, kind: LinkKind, payload: bytes) -> bytes:
    links = LinkPool(instance)
    answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    links.call(SUPERVISOR, kind, payload, answered.set_result)
    answer = await asyncio.wait_for(answered, 5)
    links.close()
    assert answer is not None
    return answer


def watch_of(shard: int) -> bytes:
    name = name_on(shard, 2, "watched")
    return encode_watch_request(
        WatchRequest([name], [0], [None], "", ReaderOptions(), 1000, is_lenient=False)
    )


def test_a_session_is_created_at_its_home_shard_and_the_answer_is_passed_on() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        seen = []

        def serve(kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
            seen.append((kind, payload))
            reply(b"as it is")

        for shard in range(2):
            link._board.slot(shard).state = WorkerState.READY
        worker = await serve_links(instance, "1", serve)
        assert await ask(instance, LinkKind.CREATE_SESSION, watch_of(1)) == b"as it is"
        assert seen == [(LinkKind.CREATE_SESSION, watch_of(1))]
        worker.close()
        # The other shard was never reached, so its session is not counted.
        answer = await ask(instance, LinkKind.CREATE_SESSION, watch_of(0))
        assert struct.unpack_from("<H", answer)[0] == 503
        assert b'"shard":0' in answer
        link._homes.sessions.read_board()
        assert [link._homes.sessions.of(shard) for shard in range(2)] == [0, 1]

    run(play)


def test_the_streams_of_a_dead_process_are_no_longer_counted() -> None:
    async def enter(instance: str, pid: int) -> Any:
        answer = await ask(instance, LinkKind.ENTER_STREAM, msgspec.msgpack.encode([pid, ""]))
        return msgspec.msgpack.decode(answer)

    async def play(link: SupervisorLink, instance: str) -> None:
        link._board.slot(0).pid, link._board.slot(1).pid = 10, 11
        assert [await enter(instance, 10), await enter(instance, 11)] == ["", "max_sse_connections"]
        await ask(instance, LinkKind.LEAVE_STREAM, msgspec.msgpack.encode([10, ""]))
        assert [await enter(instance, 11), await enter(instance, 10)] == ["", "max_sse_connections"]
        link._board.slot(1).pid = 0
        assert await enter(instance, 10) == ""

    run(play)


# -- routes -------------------------------------------------------------------------------------


def test_a_put_of_a_route_is_answered_as_any_request() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        for name, status in (("a>b", 201), ("broken", 500)):
            rule = encode_route_message(RouteRule(name, "a", "b"))
            answer_status, fields, _ = decode_answer(await ask(instance, LinkKind.PUT_ROUTE, rule))
            assert (answer_status, fields.endswith(CLOSE)) == (status, status == 500)
        rule = encode_route_message(RouteRule("r", "a", "b"))
        _, _, body = decode_answer(await ask(instance, LinkKind.PUT_ROUTE, rule))
        assert json.loads(body) == {"put": ["r", "a", "b"]}

    run(play)


def test_a_deleted_topic_ends_its_routes() -> None:
    async def play(link: SupervisorLink, instance: str) -> None:
        for name, names in (("a", ["a", "7"]), ("broken", [])):
            gone = encode_route_message(TopicDeletion(name, 7))
            assert decode_names(await ask(instance, LinkKind.TOPIC_DELETED, gone)) == names

    run(play)


def test_a_request_that_changes_state_has_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_requests, "LIST_SECONDS", 0.02)

    async def play(link: SupervisorLink, instance: str) -> None:
        loop = asyncio.get_running_loop()
        worker = await serve_links(
            instance, "0", lambda kind, payload, reply: loop.call_later(0.2, reply, b"late") and None
        )
        assert await link.ask(0, LinkKind.LIST_ROUTES, b"") is None
        assert await link.ask(0, LinkKind.PUT_ROUTE, b"") == b"late"
        worker.close()
        assert await link.ask(1, LinkKind.PUT_ROUTE, b"") == NEVER_SENT

    run(play)
