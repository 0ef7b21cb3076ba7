"""Processes that outlive the command that starts them, and are ended later by another one.

A pid alone does not name a process, since the system uses it again. A process is the one that was started if
its start time is the same; a pidfd then refers to it while it is signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from loadtest.clients.processes import start_time, tree

STOP_SECONDS: Final = 20.0
RUN_VARIABLE: Final = "LOADTEST_RUN"
"""In the environment of every process of a run: the folder of the run."""

# Kept so that the processes are reaped when they end before this one does.
_children: Final[dict[int, subprocess.Popen[bytes]]] = {}


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was started for a run."""

    name: str
    pid: int
    start_time: str
    """In clock ticks since the boot of the machine."""
    port: int
    url: str
    log: str
    command: list[str]

    @property
    def is_alive(self) -> bool:
        _reap(self.pid)
        return start_time(self.pid) == self.start_time


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    *,
    port: int = 0,
    url: str = "",
    cwd: Path | None = None,
    user: int | None = None,
) -> Tracked:
    """Start a process in a session of its own, so that Ctrl-C does not reach it."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environ),
            cwd=cwd,
            user=user,
            start_new_session=True,
        )
    _children[process.pid] = process
    started = start_time(process.pid) or ""
    return Tracked(
        name=name,
        pid=process.pid,
        start_time=started,
        port=port,
        url=url,
        log=str(log),
        command=list(command),
    )


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]


def stop(tracked: Tracked, first: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS) -> str:
    """End a process and its descendants; return what happened: ended, killed, gone, or replaced."""
    if start_time(tracked.pid) is None:
        _reap(tracked.pid)
        return "gone"
    try:
        descriptor = os.pidfd_open(tracked.pid)
    except ProcessLookupError:
        return "gone"
    try:
        # Compared after the descriptor is open: from here on the pid cannot become another process.
        if start_time(tracked.pid) != tracked.start_time:
            return "replaced"
        descendants = {pid: start_time(pid) for pid in tree(tracked.pid) if pid != tracked.pid}
        outcome = "ended"
        signal.pidfd_send_signal(descriptor, first)
        if not _ends_within(descriptor, seconds):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _ends_within(descriptor, seconds)
            outcome = "killed"
    finally:
        os.close(descriptor)
    for pid, started in descendants.items():
        _kill(pid, started)
    child = _children.pop(tracked.pid, None)
    if child is not None:
        child.wait()
    return outcome


def _ends_within(descriptor: int, seconds: float) -> bool:
    """Wait for the end of a process: its pidfd is then readable."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def _kill(pid: int, started: str | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if started is not None and start_time(pid) == started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def leftovers(run: Path) -> Iterator[int]:
    """Yield the living processes whose environment names this run."""
    variable = f"{RUN_VARIABLE}={run}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if variable in file.read().split(b"\0") and start_time(int(name)) is not None:
                yield int(name)


def end_leftovers(run: Path) -> list[int]:
    """Kill what is left of a run; return the pids."""
    processes = [(pid, start_time(pid)) for pid in leftovers(run)]
    for pid, started in processes:
        _kill(pid, started)
    return [pid for pid, _ in processes]


def log_tail(tracked: Tracked) -> str:
    with open(tracked.log, encoding="utf-8", errors="replace") as file:
        return file.read()[-800:].strip() or "no output"
