"""Refusals of connections for which a channel has no room."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop

from router.accept.connection_router import ConnectionRouter
from router.accept.placer import Placer
from shared.contract.errors import NOT_READY, Refusal, not_ready
from shared.contract.watch_id import WatchIds
from shared.http.cors import Origins
from shared.ipc.handoff import HandoffMessage
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import SystemClock
from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.supervisor_parts import until

PLACER = Placer(WatchIds(b"instance--------"), SharedPlacement.fixed(1))


class _FullShards:
    """One shard that is ready and never has room."""

    def refusal(self, owner: int) -> Refusal | None:
        return self.down

    def returned_refusal(self, owner: int) -> Refusal:
        return self.down or not_ready(f"shard {owner} is restarting")

    def is_retired(self, owner: int) -> bool:
        return owner >= 1

    def any_ready(self) -> int | None:
        return 0

    def any_broker(self) -> int | None:
        return None

    def none_ready(self, is_broker: bool) -> Refusal:
        return not_ready("no broker is ready")

    def send(self, owner: int, fd: int, data: bytes) -> bool:
        return False

    down: Refusal | None = None


@pytest.mark.parametrize("goes_down", [False, True])
def test_a_connection_that_waits_too_long_for_a_full_channel_is_refused(goes_down: bool) -> None:
    async def run() -> bytes:
        shards = _FullShards()
        front = ConnectionRouter(
            shards, SystemClock(), lambda connection, data: True, PLACER, head_seconds=0.2
        )
        client, accepted = socket.socketpair()
        client.setblocking(False)
        accepted.setblocking(False)
        client.send(request_bytes("GET", "/v0/topics/a"))
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


def test_a_returned_connection_is_refused_although_its_shard_is_ready_again() -> None:
    async def run() -> bytes:
        front = ConnectionRouter(_FullShards(), SystemClock(), lambda connection, data: True, PLACER)
        client, accepted = socket.socketpair()
        front.refuse_returned(0, [HandoffMessage(accepted.detach(), b"")])
        answer = client.recv(4096)
        client.close()
        front.close()
        return answer

    assert b'"not_ready"' in uvloop.run(run())


@pytest.mark.parametrize(
    ("method", "status", "fields"),
    [
        ("GET", b"503", {b"access-control-allow-origin: https://a.example", b"vary: origin"}),
        # The page then reads the refusal of its request.
        ("OPTIONS", b"200", {b"access-control-allow-headers: authorization, *", b"content-length: 0"}),
    ],
)
def test_a_refused_connection_of_a_page_says_that_its_origin_is_allowed(
    method: str, status: bytes, fields: set[bytes]
) -> None:
    async def run() -> bytes:
        down = _FullShards()
        down.down = Refusal(NOT_READY, "it went down")
        front = ConnectionRouter(
            down, SystemClock(), lambda connection, data: True, PLACER, Origins("https://a.example")
        )
        client, accepted = socket.socketpair()
        accepted.setblocking(False)
        client.send(request_bytes(method, "/v0/topics/a", None, "Origin: https://A.example"))
        front.accepted(accepted)
        answer = client.recv(4096)
        client.close()
        front.close()
        return answer

    head = uvloop.run(run()).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0].split()[1] == status
    assert fields <= set(head)


@pytest.mark.parametrize("bound", [{"queued_bytes_max": 10}, {"descriptors_max": 0}, {"connections_max": 0}])
def test_connections_above_a_bound_are_refused_at_once(bound: dict[str, int]) -> None:
    async def run() -> bytes:
        front = ConnectionRouter(_FullShards(), SystemClock(), lambda connection, data: True, PLACER, **bound)  # type: ignore[arg-type]
        client, accepted = socket.socketpair()
        accepted.setblocking(False)
        client.send(request_bytes("GET", "/v0/topics/a"))
        front.accepted(accepted)
        assert (front.waiting_count, front.refused_count) == (0, 1)
        answer = client.recv(4096)
        client.close()
        front.close()
        return answer

    assert uvloop.run(run()).startswith(b"HTTP/1.1 503 ")


def test_connections_for_a_busy_supervisor_wait_in_order() -> None:
    async def run() -> list[bytes]:
        taken: list[bytes] = []
        has_room = False

        def on_control(connection: socket.socket, data: bytes) -> bool:
            if has_room:
                taken.append(data)
                connection.close()
            return has_room

        front = ConnectionRouter(_FullShards(), SystemClock(), on_control, PLACER)
        clients = []
        for number in range(3):
            client, accepted = socket.socketpair()
            accepted.setblocking(False)
            client.send(request_bytes("GET", "/v0/health", None, f"n: {number}"))
            front.accepted(accepted)
            clients.append(client)
        assert front.waiting_count == 3
        has_room = True
        await until(lambda: front.waiting_count == 0)
        for client in clients:
            client.close()
        front.close()
        return taken

    assert [data[-5:-4] for data in uvloop.run(run())] == [b"0", b"1", b"2"]
