"""More connections than descriptors: the log continues, and waiting clients are served later."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import body_bytes, request_bytes
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

DESCRIPTORS = 200
CONNECTIONS = 160
RECORD = "x" * 16_000
FILE_BYTES = 64 << 10


def limit_descriptors(server: WholeServer) -> None:
    """Limit the descriptors of the supervisor and of workers that it starts later."""
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    server.kill_worker(0)
    server.wait_for(lambda: server.log.read_text().count("shard: ready") == 2, "another worker")


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(request_bytes("GET", "/v0/topics/t"))
    return client


def status(client: socket.socket, seconds: float) -> int | None:
    """Return the status of the answer, or None after the timeout."""
    client.settimeout(seconds)
    try:
        answer = client.recv(1 << 16)
    except TimeoutError:
        return None
    assert answer.startswith(b"HTTP/1.1 ")
    return int(answer[9:12])


def append(client: socket.socket) -> int | None:
    body = body_bytes({"records": [{"data": RECORD}]})
    client.sendall(request_bytes("POST", "/v0/topics/t", body))
    return status(client, 20)


def test_a_flood_of_connections_does_not_break_the_log(tmp_path: Path) -> None:
    with WholeServer(tmp_path, f"--wal-file-bytes={FILE_BYTES}", shards=1) as server:
        limit_descriptors(server)
        clients = [connect(server.port)]
        assert status(clients[0], 20) == 404
        assert append(clients[0]) == 201
        while len(clients) < CONNECTIONS:
            clients.append(connect(server.port))
        answers = [status(client, 0.2) for client in clients[1:]]
        assert 20 < answers.count(200) < DESCRIPTORS // 2
        assert set(answers) == {200, None}
        # Each WAL file needs another descriptor.
        for _ in range(100):
            assert append(clients[0]) == 200
        files = list((tmp_path / "data" / "shards" / "00" / "wal").glob("wal-*"))
        assert len(files) > 100 * len(RECORD) // FILE_BYTES

        waiting = [client for client, answer in zip(clients[1:], answers, strict=True) if answer is None]
        for client, answer in zip(clients[1:], answers, strict=True):
            if answer is not None:
                client.close()
        assert {status(client, 20) for client in waiting} <= {200, 503}
        assert append(clients[0]) == 200
        log = server.log.read_text()
        assert "receiving paused" in log
        assert "Traceback" not in log
        assert "was lost" not in log
        assert log.count('"worker_pid":') == 2
        for client in (*waiting, clients[0]):
            client.close()
        assert server.stop() == 0
