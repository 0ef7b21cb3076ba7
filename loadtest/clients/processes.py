"""Measured programs: started with a port file, metered with their children, ended by pid.

The cost of a server is the cost of all its processes, so the meters add up the process tree: CPU from
`/proc/PID/stat`, and memory as PSS, in which a page that two processes share counts once.

A program receives SIGTERM and, after a timeout, SIGKILL; only processes started here and their children are
ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_SECONDS = 30.0
STOP_SECONDS = 20.0

Value = TypeVar("Value")


class NotStarted(Exception):
    """The program ended, or did not start in time; the text has the end of its output."""


class Running:
    """A program that listens on a port of 127.0.0.1."""

    def __init__(self, command: Sequence[str], home: str, environ: Mapping[str, str]) -> None:
        """Start the program, which must write its port to the file `port` in `home`.

        Its output is written to a file in `home` too.
        """
        self.home = home
        self._port_file = os.path.join(home, "port")
        self._output = os.path.join(home, "output")
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environ)
            )
        self._command = command
        try:
            self.port = int(self.wait_for(self._read_port, "its port file"))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_port(self) -> str | None:
        with contextlib.suppress(FileNotFoundError), open(self._port_file, encoding="ascii") as file:
            return file.read().strip() or None
        return None

    def wait_for(self, check: Callable[[], Value | None], what: str) -> Value:
        """Return the first result of `check` that is not None."""
        deadline = time.monotonic() + START_SECONDS
        while (value := check()) is None:
            if self._process.poll() is not None:
                raise NotStarted(
                    f"{self._name()} ended with {self._process.returncode}: {self.output_tail()}"
                )
            if time.monotonic() > deadline:
                raise NotStarted(
                    f"{self._name()}: no {what} within {START_SECONDS:.0f} s: {self.output_tail()}"
                )
            time.sleep(0.02)
        return value

    def _name(self) -> str:
        return " ".join(self._command)

    def output_tail(self) -> str:
        with open(self._output, encoding="utf-8", errors="replace") as file:
            return file.read()[-800:].strip() or "no output"

    def pids(self) -> list[int]:
        return list(tree(self._process.pid))

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.pids())

    def pss_bytes(self) -> int:
        return sum(pss_bytes(pid) for pid in self.pids())

    def kill(self) -> None:
        """End all processes at once, as the end of the machine would."""
        for pid in reversed(self.pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        started = {pid: start_time(pid) for pid in self.pids()}
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        for pid, at in started.items():
            # The start time proves that the pid still belongs to the same process.
            if at is not None and start_time(pid) == at:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _stat(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` from the third on; the name may contain anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def tree(root: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    pids = [root]
    for pid in pids:
        yield pid
        pids += children.get(pid, [])


def start_time(pid: int) -> str | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in user and system mode."""
    fields = _stat(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def pss_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0
