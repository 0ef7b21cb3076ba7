"""Connections that are taken over as long as there are descriptors, over a real channel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from shared.ipc.handoff import channel_pair, is_told_to_end, send_connection, send_drain
from topicsd.worker.receiver import DESCRIPTORS_RESERVED_MAX, HandOverReceiver, descriptors_for_connections

pytestmark = pytest.mark.slow


class Lane(asyncio.Protocol):
    def __init__(self, first: bytes, lanes: list[Lane]) -> None:
        self.first = first
        self.transport: asyncio.BaseTransport
        lanes.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Stage:
    def __init__(self, room: int) -> None:
        """So many descriptors are left for connections."""
        self.sender, self.receiver = channel_pair()
        probe = os.dup(0)
        os.close(probe)
        self.lanes: list[Lane] = []
        self.ends = 0
        self.adoption = HandOverReceiver(
            self.receiver, lambda first: Lane(first, self.lanes), self._end, probe + room
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

    async def __aenter__(self) -> Stage:
        self.adoption.start()
        return self

    async def __aexit__(self, *given: object) -> None:
        asyncio.get_running_loop().remove_reader(self.receiver.fileno())
        for lane in self.lanes:
            lane.transport.close()
        # They are closed in the next turn.
        await asyncio.sleep(0)
        for one in (*self.clients, self.sender, self.receiver):
            one.close()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_connections_come_with_what_was_read_of_them() -> None:
    async def run() -> None:
        async with Stage(room=100) as stage:
            stage.hand_over(3)
            await until(lambda: len(stage.lanes) == 3)
            assert [lane.first for lane in stage.lanes] == [b"0", b"1", b"2"]
            assert (stage.ends, stage.adoption.pause_count) == (0, 0)
            stage.sender.close()
            await until(lambda: stage.ends == 1)

    asyncio.run(run())


def test_the_word_to_end_comes_behind_the_connections() -> None:
    async def run() -> None:
        async with Stage(room=100) as stage:
            stage.hand_over(2)
            assert send_drain(stage.sender)
            await until(lambda: stage.ends == 1)
            await until(lambda: len(stage.lanes) == 2)

    asyncio.run(run())


def test_without_room_they_wait_until_there_is_some() -> None:
    async def run() -> None:
        async with Stage(room=40) as stage:
            stage.hand_over(35)
            await until(lambda: stage.adoption.pause_count > 0)
            taken = len(stage.lanes)
            await asyncio.sleep(0.3)
            # Each has its other end in this process too.
            assert len(stage.lanes) == taken < 35
            for one in stage.clients[:20]:
                one.close()
            await until(lambda: len(stage.lanes) == 35)

    asyncio.run(run())


def test_the_end_of_the_front_process_is_seen_without_room() -> None:
    async def run() -> None:
        async with Stage(room=10) as stage:
            stage.hand_over(35)
            await until(lambda: stage.adoption.pause_count > 0)
            assert stage.ends == 0
            stage.sender.close()
            await until(lambda: stage.ends > 0)
            assert len(stage.lanes) < 35

    asyncio.run(run())


def test_a_part_of_the_descriptors_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, first_kept in ((1 << 18, (1 << 18) - DESCRIPTORS_RESERVED_MAX), (256, 128)):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert descriptors_for_connections() == first_kept


def test_the_word_to_end_can_be_seen_without_receiving() -> None:
    sender, receiver = channel_pair()
    assert not is_told_to_end(receiver)
    send_drain(sender)
    assert is_told_to_end(receiver)
    assert is_told_to_end(receiver)
    assert receiver.recv(10) == b"D"
    assert not is_told_to_end(receiver)
    sender.close()
    assert is_told_to_end(receiver)
    receiver.close()
