"""Bodies of link calls: sent on their own, or shared with the peer as memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.ipc.link import LARGE_PAYLOAD_BYTES, NEVER_SENT, LinkPool, LinkReply, Serve, serve_links
from shared.ipc.link_kind import LinkKind
from shared.runtime.body_memory import SHARED_BYTES_MIN, BodyBuffer, SharedBody
from tests.unit.shared.ipc.test_link import _echo, run_scene


@asynccontextmanager
async def links_to(serve: Serve) -> AsyncIterator[LinkPool]:
    """Yield links, not open yet, to a peer "0" that answers with `serve`."""
    instance = secrets.token_hex(8)
    server, pool = await serve_links(instance, "0", serve), LinkPool(instance)
    try:
        yield pool
    finally:
        pool.close()
        server.close()


async def ask(pool: LinkPool, payload: bytes, body: bytes | SharedBody) -> bytes | None:
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    pool.call("0", LinkKind.REQUEST, payload, answer.set_result, body)
    return await answer


def test_a_body_is_sent_separately_and_arrives_with_its_request() -> None:
    """This includes requests that wait for the link to open. No other request gets the body."""

    def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
        del kind
        reply(b"%b:%b" % (payload, reply.body))

    async def scene() -> None:
        async with links_to(serve) as pool:
            large = secrets.token_bytes(LARGE_PAYLOAD_BYTES)
            for _ in range(2):
                answers: list[asyncio.Future[bytes | None]] = []
                for payload, body in ((b"a", b""), (b"b", large), (b"c", b""), (b"", large)):
                    answers.append(asyncio.get_running_loop().create_future())
                    pool.call("0", LinkKind.REQUEST, payload, answers[-1].set_result, body)
                assert await asyncio.gather(*answers) == [b"a:", b"b:" + large, b"c:", b":" + large]

    run_scene(scene)


def _shared_body() -> SharedBody:
    buffer = BodyBuffer()
    buffer.write(b"y" * SHARED_BYTES_MIN)
    body = buffer.finish()
    assert isinstance(body, SharedBody)
    return body


def test_a_shared_body_is_mapped_by_the_peer() -> None:
    bodies: list[bytes] = []

    def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
        bodies.append(reply.body)
        reply(payload)

    async def scene() -> None:
        async with links_to(serve) as pool:
            for _ in range(2):
                assert await ask(pool, b"a", _shared_body()) == b"a"
            assert [type(body).__name__ for body in bodies] == ["MappedBody", "MappedBody"]
            assert {bytes(body) for body in bodies} == {b"y" * SHARED_BYTES_MIN}

    run_scene(scene)


def test_a_body_that_another_process_shared_is_passed_on_twice() -> None:
    """It crosses as a copy, over a link that has to be opened and over an open one."""
    bodies: list[bytes] = []

    def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
        bodies.append(reply.body)
        reply(payload)

    async def scene() -> None:
        async with links_to(serve) as pool:
            mapped = _shared_body().mapped()
            for _ in range(2):
                assert await ask(pool, b"a", mapped) == b"a"
            assert mapped[:] == b"y" * SHARED_BYTES_MIN

    run_scene(scene)
    assert bodies == [b"y" * SHARED_BYTES_MIN] * 2


def test_a_call_that_cannot_be_sent_over_a_new_link_does_not_affect_those_behind_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(body: SharedBody) -> bytes:
        raise OSError("no such descriptor")

    monkeypatch.setattr(SharedBody, "ticket", fail)

    async def scene() -> None:
        async with links_to(_echo) as pool:
            answers: list[asyncio.Future[bytes | None]] = []
            for payload, body in ((b"a", b""), (b"b", _shared_body()), (b"c", b"")):
                answers.append(asyncio.get_running_loop().create_future())
                pool.call("0", LinkKind.REQUEST, payload, answers[-1].set_result, body)
            first, failed, last = await asyncio.gather(*answers)
            assert first is not None
            assert failed == NEVER_SENT
            assert last is not None

    run_scene(scene)
    assert "no such descriptor" in caplog.text


def test_after_a_shared_body_that_could_not_be_opened_bodies_are_copied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SharedBody, "ticket", lambda body: bytes(24))
    bodies: list[bytes] = []

    def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
        bodies.append(reply.body)
        reply(payload)

    async def scene() -> None:
        async with links_to(serve) as pool:
            answers = [await ask(pool, b"a", _shared_body()) for _ in range(2)]
            assert answers == [NEVER_SENT, b"a"]

    run_scene(scene)
    assert bodies == [b"y" * SHARED_BYTES_MIN]
    assert "not opened" in caplog.text
