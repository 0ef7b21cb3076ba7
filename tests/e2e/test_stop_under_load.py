"""A stop under load: every request that was sent gets a whole answer, or no connection.

The only exception is that of HTTP: on a persistent connection, a request that is sent after the stop
began may cross the end of the connection.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.processes import children
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 30.0


def append(number: int) -> bytes:
    return request_bytes("POST", f"/v0/topics/t{number % 7}", b'{"records":[{"data":1}]}')


def health(number: int) -> bytes:
    del number
    return request_bytes("GET", "/v0/health")


def long_poll(number: int) -> bytes:
    """Return a long poll without a record; a stop answers it early."""
    body = b'{"from_seq":1000000,"wait_ms":20000}'
    return request_bytes("POST", f"/v0/topics/t{number % 7}/diff", body)


class Clients:
    """Threads that send requests, with the unanswered requests and their times."""

    def __init__(self, port: int) -> None:
        self.statuses: set[int] = set()
        self.answer_count = 0
        self.unanswered: list[tuple[str, float]] = []
        self._port = port
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, ask: Callable[[int], bytes], keeps: bool, count: int) -> None:
        for number in range(count):
            thread = threading.Thread(target=self._run, args=(ask, keeps, number))
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask: Callable[[int], bytes], keeps: bool, number: int) -> None:
        while not self._is_over.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_SECONDS)
            except ConnectionRefusedError:
                return
            with closing(connection):
                while self._ask_once(connection, ask(number), keeps):
                    number += 1

    def _ask_once(self, connection: socket.socket, request: bytes, keeps: bool) -> bool:
        """Send one request; return whether the connection can be used again."""
        sent = time.monotonic()
        data = b""
        with suppress(OSError):
            connection.sendall(request)
            sent = time.monotonic()
            while not is_whole(data) and (more := connection.recv(1 << 16)):
                data += more
        if not is_whole(data):
            kind = "kept" if keeps else "new"
            self.unanswered.append((f"{kind}: {request[:30]!r} got {data!r}", sent))
            return False
        self.answer_count += 1
        self.statuses.add(int(data.split()[1]))
        return keeps and b"connection: close" not in data.lower() and not self._is_over.is_set()


def is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and len(body) >= sum(lengths)


@pytest.mark.parametrize("all_at_once", [False, True])
@pytest.mark.parametrize("fronts", [1, 2])
def test_a_stop_answers_every_request_that_was_sent(tmp_path: Path, fronts: int, all_at_once: bool) -> None:
    """With `all_at_once` every process is signalled, as systemd does."""
    with WholeServer(tmp_path, f"--fronts={fronts}") as server:
        clients = Clients(server.port)
        for ask in (append, health):
            clients.start(ask, keeps=False, count=3)
            clients.start(ask, keeps=True, count=3)
        clients.start(long_poll, keeps=True, count=2)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while clients.answer_count < 500 and time.monotonic() < deadline:
            time.sleep(0.01)
        stopped_at = time.monotonic()
        for pid in children(server.pid) if all_at_once else []:
            os.kill(pid, signal.SIGTERM)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        clients.join()
    lost = [error for error, sent in clients.unanswered if sent < stopped_at or error.startswith("new")]
    assert lost == []
    # The first append creates the topic, and a read may precede it.
    assert clients.statuses <= {200, 201, 404, 503}


def test_an_incomplete_request_is_answered_with_shutting_down(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server:
        halves = (
            append(0)[:-5],
            append(0)[:40],
            b"POST /v0/topics/a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
            b"GET /v0/health HTTP/1.1\r\nho",
            b"GET /v0",
            b"",
        )
        connections = [
            socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_SECONDS) for _ in halves
        ]
        for connection, half in zip(connections, halves, strict=True):
            connection.sendall(half)
        time.sleep(0.3)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        for connection in connections:
            with closing(connection):
                data = connection.recv(1 << 16)
                assert data.startswith(b"HTTP/1.1 503 ")
                assert b"shutting_down" in data
        assert server.wait() == 0
        # The rest is never sent.
        assert time.monotonic() - began < 8
