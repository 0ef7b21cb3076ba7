"""Connections that other workers hand over: all are received, like those of the acceptor."""

from __future__ import annotations

import asyncio
import secrets
import socket

from shared.ipc.connection_mailbox import ConnectionReceiver, ConnectionSender
from shared.ipc.handoff import channel_pair
from topicsd.worker.receiver import HandOverReceiver


class FakeConnection(asyncio.Protocol):
    def __init__(self, first: bytes, received: list[bytes]) -> None:
        received.append(first)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def test_connections_of_other_workers_are_received_until_the_receiver_finishes() -> None:
    received: list[bytes] = []

    async def run() -> None:
        instance = secrets.token_hex(8)
        sender, receiver = channel_pair()
        hand_over_receiver = HandOverReceiver(
            receiver,
            lambda first: FakeConnection(first, received),
            lambda: None,
            peer_receiver=ConnectionReceiver(instance, 1),
        )
        hand_over_receiver.start()
        connection_sender = ConnectionSender(instance)
        clients = []

        def send(data: bytes) -> bool:
            ours, theirs = socket.socketpair()
            clients.append(ours)
            is_sent = connection_sender.send_connection_to(1, theirs.fileno(), data)
            theirs.close()
            return is_sent

        assert send(b"early")
        async with asyncio.timeout(10):
            while not received:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert send(b"late")
        await hand_over_receiver.finish()
        assert received == [b"early", b"late"]
        assert not send(b"too late")
        await asyncio.sleep(0)
        for one in (*clients, sender, receiver):
            one.close()
        connection_sender.close()

    asyncio.run(run())
