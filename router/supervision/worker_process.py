"""One life of one worker, or of one acceptor: the process.

W2  The end of the process is told by a descriptor of it (pidfd), so no number of a process is ever signalled
    that by now belongs to another, and nobody has to own SIGCHLD.
W3  A worker has a process group of its own: a Ctrl-C reaches the front process alone, which drains it in
    order. What the service manager told the front process is not for the worker.

The way into the process of one slot, over all the lives of that process.

W1  The front process keeps both ends. What a process had not received when it died, or does not receive
    because it hangs, is taken back and answered, not reset.
W4  One channel for all lives: who has the sending end, as the acceptors do, need not hear of a new life.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared.ipc.handoff import ChannelClosed, Handed, channel_pair, receive_connections, send_drain

NOT_FOR_WORKERS: Final = (
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)


PACKAGE_ROOT: Final = str(Path(__file__).absolute().parents[2])


def module_command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module in a process that never imports from its current directory."""
    return (sys.executable, "-P", "-m", module)


def import_environment(environ: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """Return the environment in which a child finds the packages that this process runs.

    Installed packages need nothing. `python -m topicsd` in a source tree finds them by its current directory,
    the first entry of `path`, which the child does not search; it gets the absolute path of the tree.
    """
    if list(path[:1]) != [PACKAGE_ROOT] or PACKAGE_ROOT in path[1:]:
        return dict(environ)
    given = environ.get("PYTHONPATH", "")
    return {**environ, "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{given}" if given else PACKAGE_ROOT}


class WorkerProcess:
    """Spawned when it is made; OSError when that cannot be. `on_end` is called once, in a later turn.

    It finds what it is told in the environment, under the name `variable`. It inherits `fds`, of which the
    `spec` has the numbers, and nothing else.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        variable: str,
        spec: Mapping[str, object],
        fds: Sequence[int],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        told = {**spec, "front_pid": os.getpid()}
        found = import_environment(environment, sys.path)
        passed = {name: text for name, text in found.items() if name not in NOT_FOR_WORKERS}
        self._process = subprocess.Popen(
            command,
            env={**passed, variable: msgspec.json.encode(told).decode()},
            stdin=subprocess.DEVNULL,
            pass_fds=tuple(fds),
            process_group=0,
        )
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        self._loop.add_reader(self._pidfd, self._ended)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Negative when a signal ended it; None while it lives."""
        return self._process.returncode

    def is_in_disk_wait(self) -> bool:
        """Whether its main thread sleeps in a call of the kernel that no signal ends, as on a slow disk."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            return False
        # The name of the program may contain anything; the state follows its closing parenthesis.
        return stat.rpartition(b")")[2].split()[0] == b"D"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._on_end(self)


def describe_end(exit_code: int) -> str:
    """
    >>> describe_end(4), describe_end(-9)
    ('ended with code 4', 'was ended by SIGKILL')
    """
    if exit_code >= 0:
        return f"ended with code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


class ChildChannel:
    def __init__(self) -> None:
        self.sender, self.receiver = channel_pair()

    def send_drain(self) -> bool:
        """The word to end, behind all that was sent; False when there is no room now."""
        return send_drain(self.sender)

    def take_back(self) -> list[Handed]:
        """What was handed over and not received; also a word to drain that was not."""
        taken: list[Handed] = []
        while True:
            try:
                more = receive_connections(self.receiver)
            except ChannelClosed:
                raise AssertionError("the sending end is ours and open") from None
            if not more:
                return taken
            taken += more

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
