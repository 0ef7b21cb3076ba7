"""The server under systemd: its notifications, the watchdog, and restarts without refused connections."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


class Manager:
    """The systemd side of the notification socket: the received lines."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(30)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1000000"}
        self.lines: list[str] = []

    def wait_for(self, line: str) -> None:
        while line not in self.lines:
            self.lines += self._socket.recv(1 << 16).decode().splitlines()

    def heard_nothing_of(self, line: str, seconds: float) -> bool:
        self.lines.clear()
        self._socket.settimeout(seconds)
        try:
            self.wait_for(line)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(30)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with closing(Manager(tmp_path / "notify")) as one:
        yield one


def test_systemd_receives_ready_watchdog_and_stopping(tmp_path: Path, manager: Manager) -> None:
    with WholeServer(tmp_path, environ=manager.environ) as server:
        manager.wait_for("READY=1")
        assert server.ask("GET", "/v0/ready").status == 200
        assert any(line.startswith("STATUS=") for line in manager.lines)
        for _ in range(2):
            manager.lines.clear()
            manager.wait_for("WATCHDOG=1")
            # Sent more than once, as a datagram may be lost.
            manager.wait_for("READY=1")
        assert server.stop() == 0
        manager.wait_for("STOPPING=1")
        manager.wait_for("EXTEND_TIMEOUT_USEC=30000000")
        # No child process received the notification socket.
        assert "systemd: notification dropped" not in server.log.read_text()


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_restart_refuses_no_connection(tmp_path: Path, manager: Manager, fronts: int) -> None:
    """Clients send one request per connection while one server stops and the next one starts."""
    statuses: list[int] = []
    failures: list[str] = []
    enough = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0), backlog=1024)) as passed:
        port = passed.getsockname()[1]

        def ask() -> None:
            while not enough.is_set():
                try:
                    with RawClient(port) as client:
                        statuses.append(client.ask("GET", "/v0/health").status)
                except OSError as error:
                    failures.append(repr(error))

        clients = [threading.Thread(target=ask) for _ in range(4)]
        flags = (f"--fronts={fronts}",)
        with WholeServer(tmp_path, *flags, environ=manager.environ, sockets=(passed,)) as first:
            assert first.port == port
            manager.wait_for("READY=1")
            for client in clients:
                client.start()
            assert first.stop() == 0
        manager.lines.clear()
        before = len(statuses)
        with WholeServer(tmp_path, *flags, environ=manager.environ, sockets=(passed,)):
            manager.wait_for("READY=1")
            while len(statuses) < before + 20:
                enough.wait(0.01)
            enough.set()
            for client in clients:
                client.join()
    assert failures == []
    assert set(statuses) <= {200, 503}


def test_a_hanging_server_sends_no_watchdog_message(tmp_path: Path, manager: Manager) -> None:
    with WholeServer(tmp_path, environ=manager.environ) as server:
        manager.wait_for("READY=1")
        server.signal(signal.SIGSTOP)
        try:
            # A notification may be in transit.
            manager.heard_nothing_of("WATCHDOG=1", 0.2)
            assert manager.heard_nothing_of("WATCHDOG=1", 1.5)
        finally:
            server.signal(signal.SIGCONT)
        manager.wait_for("WATCHDOG=1")
