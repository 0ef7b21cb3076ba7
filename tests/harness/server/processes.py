"""Processes of a test: started with a port file, measured, signalled, and ended by their ids.

Promises: a signal to a `Process` goes through a pidfd, so it never reaches another process that reuses its
number. `ListeningProcess` is ended with its block, together with everything that it started.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

START_SECONDS = 60.0
END_SECONDS = 60.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Process:
    """A process that exists when this is made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def wait(self, seconds: float = END_SECONDS) -> bool:
        """Return whether the process ends within that time."""
        ended = select.poll()
        ended.register(self._fd, select.POLLIN)
        return bool(ended.poll(seconds * 1000))

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def reset_peak_bytes(self) -> int:
        """Reset the peak to the current resident memory, and return that."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.resident_bytes()

    def peak_bytes(self) -> int:
        """Return the highest resident memory since the last reset, as counted by the kernel."""
        return self._status_bytes("VmHWM")

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all its threads since the start."""
        fields = _stat(self.pid)
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def close(self) -> None:
        os.close(self._fd)

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024


class ListeningProcess:
    """A process that listens on a port of 127.0.0.1, and writes it to a file when it does.

    Its files `port` and `log` are in `folder`; the log has what it writes to stderr.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        *,
        cwd: Path | None = None,
        fds: Sequence[int] = (),
        stderr: int | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.log = log_file(folder)
        self._port_file = port_file(folder)
        self._port: int | None = None
        # A process that was killed leaves it.
        self._port_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environ, cwd=cwd, pass_fds=fds, stderr=log if stderr is None else stderr
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        """The port, once the process listens."""
        if self._port is None:
            self._port = int(self.port_text())
        return self._port

    def port_text(self) -> str:
        """Return the content of the port file; wait for it first."""
        self.wait_until(lambda: self._port_file.exists() and self._port_file.read_text().strip() != "")
        return self._port_file.read_text()

    def wait_until(self, is_so: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for something that the process must do before it ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            if is_so():
                return
            time.sleep(0.02)
        raise AssertionError(f"the process does not start:\n{self.log.read_text()}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait until the process ends; return its exit code."""
        return self._process.wait(seconds)

    def kill(self, rng: Random | None = None) -> None:
        """Kill the process and its descendants at once, in an order of `rng`.

        If it has ended already, its children are not known any more.
        """
        if self._process.poll() is None:
            processes = [Process(self.pid), *processes_of(descendants(self.pid))]
            if rng is not None:
                rng.shuffle(processes)
            kill(processes)
        self._process.wait()


def wait_until(is_so: Callable[[], object], what: str = "", seconds: float = END_SECONDS) -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def port_file(folder: Path) -> Path:
    return folder / "port"


def log_file(folder: Path) -> Path:
    return folder / "log"


def kill(processes: list[Process]) -> None:
    """Kill all at once: all are stopped first, so that none runs between the kills."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            process.signal(number)
    for process in processes:
        assert process.wait(), f"process {process.pid} does not end"
        process.close()


def processes_of(pids: Iterable[int]) -> list[Process]:
    """Return the processes that still exist."""
    processes = []
    for pid in pids:
        with suppress(ProcessLookupError):
            processes.append(Process(pid))
    return processes


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError, IndexError):
                fields = _stat(int(entry))
                if fields[0] != "Z":
                    parents[int(entry)] = int(fields[1])
    pids = [pid]
    for one in pids:
        pids += [child for child, parent in parents.items() if parent == one]
    return pids[1:]


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> bytes:
    """Return the command line of a process, empty if it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the third on; the name may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
