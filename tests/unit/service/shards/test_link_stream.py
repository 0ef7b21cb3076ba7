"""A stream over the link: parts arrive in order, and a client that does not read pauses the writer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import uvloop

from shared.ipc.link import LinkPool, LinkReply, LinkServer, serve_links
from shared.ipc.link_kind import LinkKind
from tests.harness.stage.feed_shards import FakeStream
from topicsd.service.shards.link_stream import IN_FLIGHT_BYTES_MAX, LinkStream, StreamRelay


class Ends:
    """Both ends of one stream: writes to `home` arrive at `client`."""

    def __init__(self) -> None:
        self.client = FakeStream()
        self.fields = b""
        self.answers: list[bytes | None] = []
        self.home: LinkStream
        self.server: LinkServer
        self.relay: StreamRelay

    async def open(self) -> None:
        instance = secrets.token_hex(16)
        self.server = await serve_links(instance, "1", self._on_request)
        self.links = LinkPool(instance)
        link_call = self.links.call("1", LinkKind.REQUEST, b"", self._on_answer)
        self.relay = StreamRelay(link_call, self._open)
        await until(lambda: self.relay.is_open)

    def _on_request(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        self.home = LinkStream(reply, b"content-type: text/event-stream\r\n")

    def _open(self, fields: bytes) -> FakeStream:
        self.fields = fields
        return self.client

    def open_never(self, fields: bytes) -> FakeStream:
        raise AssertionError("the connection is gone")

    def _on_answer(self, answer: bytes | None) -> None:
        self.answers.append(answer)
        self.relay.close()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if holds():
            return
        await asyncio.sleep(0)


def run(scene: Callable[[Ends], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            ends = Ends()
            await ends.open()
            await scene(ends)
            ends.server.close()
            ends.links.close()

    uvloop.run(bounded())


def test_parts_arrive_in_order_and_the_stream_ends() -> None:
    async def scene(ends: Ends) -> None:
        assert ends.fields == b"content-type: text/event-stream\r\n"
        for number in range(100):
            ends.home.write(b"%d," % number)
        ends.home.close()
        await until(lambda: ends.client.is_closed)
        assert ends.client.written == b"".join(b"%d," % number for number in range(100))
        assert ends.answers == [b""]

    run(scene)


def test_a_client_that_does_not_read_pauses_the_home_until_it_reads() -> None:
    async def scene(ends: Ends) -> None:
        ready: list[bool] = []
        ends.home.on_ready = lambda: ready.append(True)
        ends.client.is_paused = True
        written = 0
        while not ends.home.is_paused:
            ends.home.write(b"x" * 1000)
            written += 1000
            await asyncio.sleep(0)
        assert written <= IN_FLIGHT_BYTES_MAX + 1000
        await until(lambda: len(ends.client.written) == written)
        assert not ready
        ends.client.unpause()
        await until(lambda: bool(ready))
        assert not ends.home.is_paused

    run(scene)


def test_a_client_that_reads_never_pauses_the_home() -> None:
    async def scene(ends: Ends) -> None:
        for _ in range(100):
            ends.home.write(b"x" * 20_000)
            await until(lambda: not ends.home.is_paused)
        await until(lambda: len(ends.client.written) == 2_000_000)

    run(scene)


def test_the_home_learns_once_that_the_client_disconnected() -> None:
    async def scene(ends: Ends) -> None:
        lost: list[bool] = []
        ends.home.on_lost = lambda: lost.append(True)
        ends.client.on_lost()
        await until(lambda: bool(lost))
        await until(lambda: bool(ends.answers))
        assert (lost, ends.answers) == ([True], [b""])

    run(scene)


def test_no_stream_opens_for_a_client_that_has_disconnected() -> None:
    async def scene(ends: Ends) -> None:
        link_call = ends.links.call("1", LinkKind.REQUEST, b"", ends.answers.append)
        relay = StreamRelay(link_call, ends.open_never)
        link_call.cancel_wait()
        await until(lambda: bool(ends.answers))
        assert (relay.is_open, ends.answers) == (False, [b""])

    run(scene)


def test_the_stream_ends_when_its_home_dies() -> None:
    async def scene(ends: Ends) -> None:
        ends.server.close()
        await until(lambda: ends.client.is_closed)
        assert ends.answers == [None]

    run(scene)


def test_the_home_learns_that_the_process_of_the_connection_died() -> None:
    async def scene(ends: Ends) -> None:
        lost: list[bool] = []
        ends.home.on_lost = lambda: lost.append(True)
        ends.links.close()
        await until(lambda: bool(lost))

    run(scene)
