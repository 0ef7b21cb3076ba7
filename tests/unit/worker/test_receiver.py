"""Connections are received over a real channel while descriptors are free."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from shared.ipc.handoff import (
    channel_pair,
    first_reserved_descriptor,
    send_connection,
    send_drain,
    shutdown_requested,
)
from topicsd.worker.receiver import DESCRIPTORS_RESERVED_MAX, HandOverReceiver

pytestmark = pytest.mark.slow


class FakeConnection(asyncio.Protocol):
    def __init__(self, first: bytes, connections: list[FakeConnection]) -> None:
        self.first = first
        self.transport: asyncio.BaseTransport
        connections.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Receiving:
    def __init__(self, room: int) -> None:
        """Leave `room` descriptors for connections."""
        self.sender, self.receiver = channel_pair()
        probe = os.dup(0)
        os.close(probe)
        self.connections: list[FakeConnection] = []
        self.ends = 0
        self.hand_over_receiver = HandOverReceiver(
            self.receiver, lambda first: FakeConnection(first, self.connections), self._end, probe + room
        )
        self.clients: list[socket.socket] = []

    def _end(self) -> None:
        self.ends += 1

    def hand_over(self, count: int) -> None:
        for number in range(count):
            ours, theirs = socket.socketpair()
            self.clients.append(ours)
            assert send_connection(self.sender, theirs.fileno(), b"%d" % number)
            theirs.close()

    async def __aenter__(self) -> Receiving:
        self.hand_over_receiver.start()
        return self

    async def __aexit__(self, *given: object) -> None:
        asyncio.get_running_loop().remove_reader(self.receiver.fileno())
        for connection in self.connections:
            connection.transport.close()
        # The transports close in the next turn.
        await asyncio.sleep(0)
        for one in (*self.clients, self.sender, self.receiver):
            one.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_connections_arrive_with_the_bytes_already_read() -> None:
    async def run() -> None:
        async with Receiving(room=100) as receiving:
            receiving.hand_over(3)
            await until(lambda: len(receiving.connections) == 3)
            assert [connection.first for connection in receiving.connections] == [b"0", b"1", b"2"]
            assert (receiving.ends, receiving.hand_over_receiver.pause_count) == (0, 0)
            receiving.sender.close()
            await until(lambda: receiving.ends == 1)

    asyncio.run(run())


def test_a_drain_arrives_after_the_connections_before_it() -> None:
    async def run() -> None:
        async with Receiving(room=100) as receiving:
            receiving.hand_over(2)
            assert send_drain(receiving.sender)
            await until(lambda: receiving.ends == 1)
            await until(lambda: len(receiving.connections) == 2)

    asyncio.run(run())


def test_connections_wait_until_descriptors_are_free() -> None:
    async def run() -> None:
        async with Receiving(room=40) as receiving:
            receiving.hand_over(35)
            await until(lambda: receiving.hand_over_receiver.pause_count > 0)
            taken = len(receiving.connections)
            await asyncio.sleep(0.3)
            # The other end of each connection is in this process too.
            assert len(receiving.connections) == taken < 35
            for one in receiving.clients[:20]:
                one.close()
            await until(lambda: len(receiving.connections) == 35)

    asyncio.run(run())


def test_the_end_of_the_supervisor_is_noticed_while_paused() -> None:
    async def run() -> None:
        async with Receiving(room=10) as receiving:
            receiving.hand_over(35)
            await until(lambda: receiving.hand_over_receiver.pause_count > 0)
            assert receiving.ends == 0
            receiving.sender.close()
            await until(lambda: receiving.ends > 0)
            assert len(receiving.connections) < 35

    asyncio.run(run())


def test_a_part_of_the_descriptors_is_reserved_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, first_kept in ((1 << 18, (1 << 18) - DESCRIPTORS_RESERVED_MAX), (256, 128)):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert first_reserved_descriptor(DESCRIPTORS_RESERVED_MAX) == first_kept


def test_a_drain_is_visible_without_receiving_it() -> None:
    sender, receiver = channel_pair()
    assert not shutdown_requested(receiver)
    send_drain(sender)
    assert shutdown_requested(receiver)
    assert shutdown_requested(receiver)
    assert receiver.recv(10) == b"D"
    assert not shutdown_requested(receiver)
    sender.close()
    assert shutdown_requested(receiver)
    receiver.close()
