"""The front process on the link, with the other end as a worker has it."""

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

from router import front_link
from router.control import METRICS_TYPE, Answer
from router.front_link import FrontLink
from router.topic_count import TopicCount
from shared.board import Board
from shared.link import FRONT, LinkKind, LinkPool, serve_links

TOPICS = [{"topic": "a", "count": 1}]


class Control:
    """Says what it was asked."""

    async def answer(self, operation: str, query: str, accept: str, prefixes: Sequence[str] = ()) -> Answer:
        if operation == "broken":
            raise ZeroDivisionError
        if operation == "metrics":
            return 200, "topics 1\n", b""
        return 503, {"asked": [operation, query, accept]}, b"retry-after: 1\r\n"


def run(play: Callable[[FrontLink, str], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        instance = os.urandom(8).hex()
        board = Board.create(2)
        link = FrontLink(instance, TopicCount(board, 0))
        await link.start(Control())  # type: ignore[arg-type]
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
    links.call(FRONT, LinkKind.REQUEST, request, answered.set_result)
    answer = await asyncio.wait_for(answered, 5)
    links.close()
    assert answer is not None, "the front process was not reached"
    status, fields_length = struct.unpack_from("<HH", answer)
    return status, answer[4 : 4 + fields_length], answer[4 + fields_length :]


def test_a_forwarded_request_is_answered_as_any_other() -> None:
    async def play(link: FrontLink, instance: str) -> None:
        status, fields, body = await forward(instance, "list_topics")
        assert (status, fields) == (503, b"retry-after: 1\r\n")
        assert json.loads(body) == {"asked": ["list_topics", "a=b", "*/*"]}

    run(play)


def test_text_is_told_as_text() -> None:
    async def play(link: FrontLink, instance: str) -> None:
        status, fields, body = await forward(instance, "metrics")
        assert (status, body) == (200, b"topics 1\n")
        assert fields == b"content-type: %b\r\n" % METRICS_TYPE.encode()

    run(play)


def test_an_error_is_an_answer() -> None:
    async def play(link: FrontLink, instance: str) -> None:
        status, _, body = await forward(instance, "broken")
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal")

    run(play)


def test_a_shard_is_asked_for_its_topics() -> None:
    seen = []

    def serve(kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
        seen.append((kind, msgspec.msgpack.decode(payload)))
        reply(msgspec.msgpack.encode(TOPICS))

    async def play(link: FrontLink, instance: str) -> None:
        worker = await serve_links(instance, "1", serve)
        listed = await link.list_shard(1, "p", "after", 7)
        missing = await link.list_shard(2, "p", "after", 7)
        worker.close()
        assert listed == TOPICS
        assert missing is None
        assert seen == [(LinkKind.LIST_TOPICS, ["p", "after", 7])]

    run(play)


def test_a_shard_that_hangs_counts_as_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_link, "LIST_SECONDS", 0.05)

    async def play(link: FrontLink, instance: str) -> None:
        worker = await serve_links(instance, "0", lambda kind, payload, reply: None)
        assert await link.list_shard(0, "", "", 7) is None
        worker.close()

    run(play)
