from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TextIO

import pytest

from router.supervision import systemd
from router.supervision.systemd import (
    extend_timeout,
    open_notify,
    status,
    take_listen_sockets,
)

PROJECT = Path(__file__).parents[4]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of systemd."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(5)
        yield end


def test_notifications_reach_systemd_unchanged(manager: socket.socket) -> None:
    notify = open_notify({"NOTIFY_SOCKET": manager.getsockname()})
    for lines in (
        f"{systemd.READY}\n{status('serving')}",
        systemd.WATCHDOG,
        systemd.STOPPING,
        extend_timeout(5),
    ):
        notify(lines)
        assert manager.recv(4096).decode() == lines


def test_an_abstract_address_begins_with_a_zero_byte() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as end:
        end.bind(f"\0topicsd-test-{os.getpid()}")
        open_notify({"NOTIFY_SOCKET": f"@topicsd-test-{os.getpid()}"})(systemd.READY)
        assert end.recv(100) == b"READY=1"


def test_a_status_is_one_line() -> None:
    assert status("one\nREADY=1") == "STATUS=one READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_systemd_no_notification_is_sent(environ: dict[str, str]) -> None:
    open_notify(environ)(systemd.READY)


def test_a_manager_that_does_not_read_delays_no_caller(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    notify = open_notify({"NOTIFY_SOCKET": manager.getsockname()})
    began = time.monotonic()
    for _ in range(2000):
        notify("x" * 1000)
    assert time.monotonic() - began < 5
    assert "systemd: notification dropped" in caplog.text


def test_a_missing_manager_only_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_notify({"NOTIFY_SOCKET": str(tmp_path / "gone")})(systemd.WATCHDOG)
    assert "systemd: notification dropped" in caplog.text


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "8", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}]
)
def test_sockets_for_another_process_are_ignored_and_not_inherited(environ: dict[str, str]) -> None:
    assert take_listen_sockets(environ, pid=7) == []
    assert environ == {}


RECEIVER = """
import os, sys
from router.supervision.systemd import ListenError, take_listen_sockets
try:
    listeners = take_listen_sockets(os.environ)
except ListenError as error:
    sys.exit(str(error))
assert not [name for name in os.environ if name.startswith("LISTEN_")]
for one in listeners:
    assert not one.get_inheritable() and not one.getblocking()
    print(one.getsockname()[1], flush=True)
    one.setblocking(True)
    connection, _ = one.accept()
    connection.sendall(b"hello")
    connection.close()
"""
# What systemd does: the sockets from descriptor 3 on, and a LISTEN_PID that is the process after its exec.
PASSER = """
import os, sys
for target, fd in enumerate(map(int, sys.argv[2:]), 3):
    os.dup2(fd, target, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(sys.argv) - 2), LISTEN_FDNAMES="a")
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


def receive(passed: socket.socket | TextIO) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PASSER, RECEIVER, str(passed.fileno())],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        pass_fds=[passed.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_connections_in_the_backlog_of_passed_sockets_are_served() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as first, closing(socket.socket()) as client:
        # No process has started yet, and the connection is not refused.
        client.connect(first.getsockname())
        client.settimeout(10)
        with receive(first) as process:
            assert client.recv(100) == b"hello"
            out, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (0, "")
        assert out.split() == [str(first.getsockname()[1])]


@pytest.mark.slow
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_passed_socket_must_be_a_listening_tcp_socket(family: int) -> None:
    with closing(socket.socket(family)) as passed, receive(passed) as process:
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert err == "LISTEN_FDS: descriptor 3 must be a listening TCP socket\n"


@pytest.mark.slow
def test_a_passed_descriptor_must_be_a_socket() -> None:
    with open(os.devnull) as passed, receive(passed) as process:
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert err.startswith("LISTEN_FDS: descriptor 3 must be a socket: ")
