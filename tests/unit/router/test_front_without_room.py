"""What the front process says to connections for which a worker has no room."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from router.front import Front
from shared.clock import SystemClock
from shared.errors import NOT_READY, Refusal
from shared.handoff import Handed
from tests.harness.front_stage import request


class _FullShards:
    """One shard that is ready and never has room."""

    def __len__(self) -> int:
        return 1

    def refusal(self, shard: int) -> Refusal | None:
        return self.down

    def any_ready(self) -> int | None:
        return 0

    def send(self, shard: int, fd: int, data: bytes) -> bool:
        return False

    down: Refusal | None = None


@pytest.mark.parametrize("goes_down", [False, True])
def test_who_waits_for_room_in_vain_is_told(goes_down: bool) -> None:
    async def run() -> bytes:
        shards = _FullShards()
        front = Front(shards, SystemClock(), lambda connection, data: None, head_seconds=0.2)
        client, accepted = socket.socketpair()
        client.setblocking(False)
        accepted.setblocking(False)
        client.send(request("GET", "/v0/topics/a"))
        front.accepted(accepted)
        assert front.waiting_count == 1
        if goes_down:
            shards.down = Refusal(NOT_READY, "it went down")
        answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 4096), 5)
        client.close()
        assert front.waiting_count == 0
        front.close()
        return answer

    answer = uvloop.run(run())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert (b"it went down" in answer) == goes_down


def test_a_returned_connection_is_answered_though_its_shard_is_up_again() -> None:
    async def run() -> bytes:
        front = Front(_FullShards(), SystemClock(), lambda connection, data: None)
        client, accepted = socket.socketpair()
        front.returned(0, [Handed(accepted.detach(), b"")])
        answer = client.recv(4096)
        client.close()
        front.close()
        return answer

    assert b'"not_ready"' in uvloop.run(run())
