"""Connections that other workers hand over: taken like those of the front process, to the last."""

from __future__ import annotations

import asyncio
import secrets
import socket

from shared.ipc.connection_mailbox import Mailbox, Postman
from shared.ipc.handoff import channel_pair
from topicsd.worker.receiver import HandOverReceiver


class Lane(asyncio.Protocol):
    def __init__(self, first: bytes, came: list[bytes]) -> None:
        came.append(first)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def test_what_is_in_the_mailbox_is_taken_now_and_when_the_process_ends() -> None:
    came: list[bytes] = []

    async def run() -> None:
        instance = secrets.token_hex(8)
        sender, receiver = channel_pair()
        adoption = HandOverReceiver(
            receiver, lambda first: Lane(first, came), lambda: None, peer_receiver=Mailbox(instance, 1)
        )
        adoption.start()
        postman = Postman(instance)
        clients = []

        def send(data: bytes) -> bool:
            ours, theirs = socket.socketpair()
            clients.append(ours)
            taken = postman.send_connection_to(1, theirs.fileno(), data)
            theirs.close()
            return taken

        assert send(b"early")
        async with asyncio.timeout(10):
            while not came:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert send(b"late")
        await adoption.finish()
        assert came == [b"early", b"late"]
        assert not send(b"too late")
        await asyncio.sleep(0)
        for one in (*clients, sender, receiver):
            one.close()
        postman.close()

    asyncio.run(run())
