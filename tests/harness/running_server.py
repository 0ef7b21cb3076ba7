"""A server as a user or systemd starts it: `topicsd serve` in a process of its own.

Promises: inside `served` the server is ready; after it, the server is gone, with its output in `log`. Passed
sockets are its descriptors from 3 on, as with systemd.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.harness.command_run import PROJECT

START_SECONDS = 30.0
# As systemd does before it starts a program: LISTEN_PID is the process that becomes it.
PASS_SOCKETS = """
import os, sys
count = int(sys.argv[1])
for target, fd in enumerate(map(int, sys.argv[2 : 2 + count]), 3):
    os.dup2(fd, target, inheritable=True)
if count:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count))
os.execv(sys.executable, [sys.executable, "-m", "topicsd", "serve", *sys.argv[2 + count :]])
"""


class RunningServer(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_SECONDS)


@contextmanager
def served(
    folder: Path,
    *flags: str,
    environ: dict[str, str] | None = None,
    passed: tuple[socket.socket, ...] = (),
    python: str | None = None,
    cwd: Path | None = None,
    before: tuple[str, ...] = (),
    answers_at: str = "127.0.0.1",
) -> Iterator[RunningServer]:
    """Run a server over `folder`/data, by default with two shards; its other files are in `folder`.

    It runs this tree, or the one installed for another `python`. `before` is a command that runs the rest of
    its line, such as `setpriv`.
    """
    port_file, log = folder / "port", folder / "log"
    port_file.unlink(missing_ok=True)
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("TOPICS_", "LISTEN_"))}
    fds = [one.fileno() for one in passed]
    path = {"PYTHONPATH": str(PROJECT)} if python is None else {}
    given = ["--port=0", f"--port-file={port_file}", f"--data-dir={folder / 'data'}", "--shards=2", *flags]
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [*before, python or sys.executable, "-c", PASS_SOCKETS, str(len(fds)), *map(str, fds), *given],
            env={**clean, **path, **(environ or {})},
            pass_fds=fds,
            stderr=stderr,
            cwd=cwd,
        )
    try:
        _wait_until(lambda: port_file.exists() and port_file.read_text().strip() != "", process, log)
        port = int(port_file.read_text())
        _wait_until(lambda: _is_ready(answers_at, port), process, log)
        yield RunningServer(process, port, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(host: str, port: int) -> bool:
    with closing(http.client.HTTPConnection(host, port, timeout=START_SECONDS)) as connection:
        # Ready even if the test has a shard that does not start.
        connection.request("GET", "/v0/ready?allow_degraded=true")
        return connection.getresponse().status == 200


def _wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError(f"the server does not start:\n{log.read_text()}")
