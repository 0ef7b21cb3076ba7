"""Thousands of nearly idle connections use little memory and do not delay other clients."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP

SHARDS = 2
CONNECTIONS = 9000 if DEEP else 3000
# Per connection, over all processes.
CONNECTION_BYTES_MAX = 16 << 10
GROWTH_BYTES_MAX = 24 << 20
# The longest wait of another client meanwhile, on a busy machine.
ANSWER_SECONDS_MAX = 2.0
ANSWER_BYTES = 900_000
HUNGRY = 60

RECORD = b'{"records":[{"data":1}]}'

pytestmark = pytest.mark.slow


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this user may have {hard} descriptors, and the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _memory(server: WholeServer) -> int:
    total = 0
    for process in (server.supervisor, *server.children()):
        total += process.resident_bytes()
        process.close()
    return total


def _worst_answer(server: WholeServer, count: int) -> float:
    """Return the longest wait of a new connection with one write."""
    worst = 0.0
    for number in range(count):
        started = time.monotonic()
        with RawClient(server.port) as client:
            answer = client.ask("POST", f"/v0/topics/good{number % 7}", RECORD)
        assert answer.status in (200, 201), answer
        worst = max(worst, time.monotonic() - started)
    return worst


def test_thousands_of_idle_and_slow_connections_use_little_memory_and_delay_no_request(
    tmp_path: Path,
) -> None:
    with descriptors(CONNECTIONS + 500), ExitStack() as stack, WholeServer(tmp_path, shards=SHARDS) as server:
        _worst_answer(server, 50)
        before = _memory(server)
        path = f"/v0/topics/{server.topic_of(0, 'd')}"
        look = request_bytes("GET", path)
        silent, halves, idle = [], [], []
        for number in range(CONNECTIONS):
            client = stack.enter_context(RawClient(server.port))
            if number % 3 == 0:
                silent.append(client)
            elif number % 3 == 1:
                # Half of them send part of a request line and stay at the acceptor, others reach a worker.
                client.send(look[: 20 if number % 2 else -2])
                halves.append(client)
            else:
                # One stays with a worker, the next with the supervisor.
                assert client.ask("GET", path if number % 2 else "/v0/health").status in (200, 404)
                idle.append(client)
        worst = _worst_answer(server, 200)
        grown = _memory(server) - before
        # Some send more, byte by byte, and time out all the same.
        trickling = halves[:50]
        for byte in b"x-a: ":
            for client in trickling[1::2]:
                client.send(bytes([byte]))
            time.sleep(0.2)
        worst = max(worst, _worst_answer(server, 100))
        print(
            f"{CONNECTIONS} connections: {grown / CONNECTIONS:,.0f} bytes each; a client waited {worst:.3f} s"
        )
        assert grown < CONNECTIONS * CONNECTION_BYTES_MAX + GROWTH_BYTES_MAX
        assert worst < ANSWER_SECONDS_MAX
        for client in idle[:200]:
            assert client.ask("GET", path).status == 404
        for client in trickling:
            answer = client.read_answer()
            assert (answer.status, answer.code) == (408, "request_timeout")
        for client in silent[:50]:
            assert client.socket.recv(1) == b"", "silent connections are closed without an answer"
        assert server.stop() == 0


def _send_what_fits(client: RawClient, wire: bytes) -> None:
    client.socket.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(100_000):
            client.socket.send(wire)
        raise AssertionError("the server reads on and on")


def test_a_client_that_does_not_read_uses_the_memory_of_one_answer(tmp_path: Path) -> None:
    with ExitStack() as stack, WholeServer(tmp_path, shards=SHARDS) as server:
        path = f"/v0/topics/{server.topic_of(0, 'd')}"
        with RawClient(server.port) as client:
            body = b'{"records":[{"data":"%b"}]}' % (b"x" * ANSWER_BYTES)
            assert client.ask("POST", path, body).status == 201
        before = _memory(server)
        for _ in range(HUNGRY):
            client = stack.enter_context(RawClient(server.port, buffer_bytes=4096))
            _send_what_fits(client, request_bytes("POST", f"{path}/diff", b"{}") * 20)
        worst = _worst_answer(server, 100)
        grown = _memory(server) - before
        print(f"{HUNGRY} clients: {grown / HUNGRY:,.0f} bytes each; another client waited {worst:.3f} s")
        assert grown < HUNGRY * 3 * ANSWER_BYTES + GROWTH_BYTES_MAX
        assert worst < ANSWER_SECONDS_MAX
