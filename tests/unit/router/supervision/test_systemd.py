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


def test_systemd_is_told_what_was_said(manager: socket.socket) -> None:
    notify = open_notify({"NOTIFY_SOCKET": manager.getsockname()})
    for said in (
        f"{systemd.READY}\n{status('serving')}",
        systemd.WATCHDOG,
        systemd.STOPPING,
        extend_timeout(5),
    ):
        notify(said)
        assert manager.recv(4096).decode() == said


def test_an_abstract_address_is_spelled_with_a_zero() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as end:
        end.bind(f"\0topicsd-test-{os.getpid()}")
        open_notify({"NOTIFY_SOCKET": f"@topicsd-test-{os.getpid()}"})(systemd.READY)
        assert end.recv(100) == b"READY=1"


def test_a_status_is_one_line() -> None:
    assert status("one\nREADY=1") == "STATUS=one READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_systemd_nobody_is_told(environ: dict[str, str]) -> None:
    open_notify(environ)(systemd.READY)


def test_a_manager_that_does_not_listen_holds_nobody_up(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    notify = open_notify({"NOTIFY_SOCKET": manager.getsockname()})
    began = time.monotonic()
    for _ in range(2000):
        notify("x" * 1000)
    assert time.monotonic() - began < 5
    assert "systemd was not told" in caplog.text


def test_a_manager_that_is_gone_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_notify({"NOTIFY_SOCKET": str(tmp_path / "gone")})(systemd.WATCHDOG)
    assert "systemd was not told" in caplog.text


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "8", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}]
)
def test_sockets_for_another_process_are_left_alone_and_handed_to_no_child(environ: dict[str, str]) -> None:
    assert take_listen_sockets(environ, pid=7) == []
    assert environ == {}


RECEIVER = """
import os, sys
from router.supervision.systemd import ListenError, take_listen_sockets
try:
    taken = take_listen_sockets(os.environ)
except ListenError as error:
    sys.exit(str(error))
assert not [name for name in os.environ if name.startswith("LISTEN_")]
for one in taken:
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
def test_passed_sockets_are_listened_at_and_who_came_before_is_served() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as first, closing(socket.socket()) as client:
        # Nobody has started yet, and the connection is not refused.
        client.connect(first.getsockname())
        client.settimeout(10)
        with receive(first) as process:
            assert client.recv(100) == b"hello"
            out, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (0, "")
        assert out.split() == [str(first.getsockname()[1])]


@pytest.mark.slow
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_what_is_no_listening_tcp_socket_is_refused_with_its_number(family: int) -> None:
    with closing(socket.socket(family)) as passed, receive(passed) as process:
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert err == "LISTEN_FDS names descriptor 3, which is no TCP socket that listens\n"


@pytest.mark.slow
def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with open(os.devnull) as passed, receive(passed) as process:
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert err.startswith("LISTEN_FDS names descriptor 3, which is no socket: ")
