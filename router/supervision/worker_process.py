"""One run of a worker or acceptor process, and the channel into the process of one slot.

W1  The supervisor keeps both ends of the channel. Connections that a process had not received when it died,
    or does not receive because it hangs, are taken back and answered, not reset.
W2  A pidfd reports the end of the process, so no signal reaches another process that has the same pid by now,
    and no code has to own SIGCHLD.
W3  A worker has its own process group: Ctrl-C reaches the supervisor alone, which drains the worker in order.
    The variables that the service manager set for the supervisor are not passed to workers.
W4  One channel serves all runs of a slot: processes that hold the sending end, such as the acceptors, need
    not learn of a restart.
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

from shared.ipc.handoff import ChannelClosed, HandoffMessage, channel_pair, receive_connections, send_drain

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
    """Return the command that runs a module without importing from the current directory."""
    return (sys.executable, "-P", "-m", module)


def import_environment(environ: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """Return the environment in which a child finds the packages that this process runs.

    Installed packages need nothing. `python -m topicsd` in a source tree finds them by its current directory,
    the first entry of `path`, which the child does not search; it gets the absolute path of the tree.
    """
    if list(path[:1]) != [PACKAGE_ROOT] or PACKAGE_ROOT in path[1:]:
        return dict(environ)
    path_before = environ.get("PYTHONPATH", "")
    return {
        **environ,
        "PYTHONPATH": f"{PACKAGE_ROOT}{os.pathsep}{path_before}" if path_before else PACKAGE_ROOT,
    }


class WorkerProcess:
    """A process, spawned by the constructor, which raises OSError when that fails.

    `on_end` is called once, in a later turn of the event loop. The process finds its parameters in the
    environment variable `variable`. It inherits `fds`, whose numbers `spec` holds, and no other descriptor.
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
        parameters = {**spec, "supervisor_pid": os.getpid()}
        inherited = import_environment(environment, sys.path)
        passed = {name: text for name, text in inherited.items() if name not in NOT_FOR_WORKERS}
        self._process = subprocess.Popen(
            command,
            env={**passed, variable: msgspec.json.encode(parameters).decode()},
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
        self._loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: negative when a signal ended the process; None while it runs."""
        return self._process.returncode

    def is_in_disk_wait(self) -> bool:
        """Return whether its main thread is in an uninterruptible system call, as on a slow disk."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            return False
        # The program name may contain any character; the state follows its closing parenthesis.
        return stat.rpartition(b")")[2].split()[0] == b"D"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._on_end(self)


def describe_end(exit_code: int) -> str:
    """Return the end of a process as text for the log.

    >>> describe_end(4), describe_end(-9)
    ('exited with code 4', 'killed by SIGKILL')
    """
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


class ChildChannel:
    def __init__(self) -> None:
        self.sender, self.receiver = channel_pair()

    def send_drain(self) -> bool:
        """Send the drain message, after all that was sent; return False when the channel is full."""
        return send_drain(self.sender)

    def take_back(self) -> list[HandoffMessage]:
        """Return unreceived connections, and a drain message that was not received."""
        messages: list[HandoffMessage] = []
        while True:
            try:
                more = receive_connections(self.receiver)
            except ChannelClosed:
                raise AssertionError("this process holds the sending end open") from None
            if not more:
                return messages
            messages += more

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
