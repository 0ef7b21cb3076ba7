"""A server with all its processes over one directory, which tests stop and kill in parts.

Promises: `start` returns when the server is ready. A process is signalled through a pidfd, so a signal never
reaches another process that reuses its number. `kill` ends all processes at once and returns when none is
left. Leaving the block ends everything that still runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.command_run import environment
from tests.harness.raw_client import RawClient
from tests.harness.running_server import RunningServer, served

END_SECONDS = 30.0
WORKER_SPEC = b"TOPICSD_WORKER="


class Process:
    """A process that was started by another one."""

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
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def close(self) -> None:
        os.close(self._fd)


class WholeServer:
    def __init__(
        self,
        folder: Path,
        *flags: str,
        shards: int = 2,
        environ: dict[str, str] | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """Use `folder`/data for the data unless `data_dir` is given, and `folder` for the rest."""
        self.folder = folder
        self.shards = shards
        self._flags = (f"--shards={shards}", *flags)
        if data_dir is not None:
            self._flags = (*self._flags, f"--data-dir={data_dir}")
        self._environ = environ
        self._stack = ExitStack()
        self._served: RunningServer | None = None

    def __enter__(self) -> WholeServer:
        self.start()
        return self

    def __exit__(self, *about: object) -> None:
        try:
            if self._served is not None:
                # A stopped worker cannot notice the end of its server: kill everything.
                self.kill()
        finally:
            self._stack.close()

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self._served is None
        self._served = self._stack.enter_context(served(self.folder, *self._flags, environ=self._environ))

    def start_and_kill(self, seconds: float) -> None:
        """Start a server and kill it after that time, possibly before it is ready."""
        assert self._served is None
        flags = ["--port=0", f"--data-dir={self.folder / 'data'}", *self._flags]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "topicsd", "serve", *flags], env=environment(), stderr=log
            )
        time.sleep(seconds)
        _kill([Process(process.pid), *_processes(_descendants(process.pid))])
        process.wait()

    def stop(self) -> int:
        """Stop the server by SIGTERM; return the exit code."""
        children = self.children()
        code = self.served.stop()
        for child in children:
            assert child.wait(0), f"process {child.pid} outlived its server"
            child.close()
        self._end()
        return code

    def kill(self, rng: Random | None = None) -> None:
        """Kill all processes at once, in an order of `rng`, so that none reacts to another's end.

        If the supervisor is gone already, the caller has to handle its children.
        """
        is_whole = self.served.process.poll() is None
        processes = [self.supervisor, *self.children()] if is_whole else []
        if rng is not None:
            rng.shuffle(processes)
        _kill(processes)
        self.served.process.wait()
        self._end()

    def _end(self) -> None:
        self._served = None
        self._stack.close()

    # -- processes -----------------------------------------------------------------------------------------

    @property
    def served(self) -> RunningServer:
        assert self._served is not None, "the server does not run"
        return self._served

    @property
    def port(self) -> int:
        return self.served.port

    @property
    def supervisor(self) -> Process:
        return Process(self.served.process.pid)

    def worker(self, shard: int) -> Process | None:
        """Return the worker process of this shard, or None if it has none now."""
        pid = self.worker_pids().get(shard)
        if pid is not None:
            with suppress(ProcessLookupError):
                return Process(pid)
        return None

    def a_worker(self, shard: int) -> Process:
        worker = self.worker(shard)
        assert worker is not None, f"shard {shard} has no worker"
        return worker

    def worker_pids(self) -> dict[int, int]:
        """Return the pids of the workers by shard."""
        return _worker_pids(self.served.process.pid)

    def children(self) -> list[Process]:
        """Return every descendant of the supervisor."""
        return _processes(_descendants(self.served.process.pid))

    def topic_of(self, shard: int, prefix: str) -> str:
        return name_on(shard, self.shards, prefix)

    def wait_for(self, is_so: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> float:
        """Wait until `is_so` returns true; return the seconds it took."""
        started = time.monotonic()
        while not is_so():
            waited = time.monotonic() - started
            assert waited < seconds, f"not within {seconds} s: {what}\n{self.served.log.read_text()[-2000:]}"
            time.sleep(0.01)
        return time.monotonic() - started

    def wait_for_shard(self, shard: int) -> float:
        """Wait until new connections to the shard are served; return the seconds it took."""
        return self.wait_for(lambda: self._is_served(shard), f"shard {shard} serves")

    def kill_workers(self, rng: Random, seconds: float, pauses: tuple[float, float]) -> None:
        """Kill workers one at a time, each after the one before serves again and after a pause."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(rng.uniform(*pauses))
            shard = rng.randrange(self.shards)
            with contextlib.closing(self.a_worker(shard)) as worker:
                worker.signal(signal.SIGKILL)
            self.wait_for_shard(shard)

    def _is_served(self, shard: int) -> bool:
        try:
            with RawClient(self.port) as client:
                target = f"/v0/topics/{self.topic_of(shard, 'served')}"
                return client.ask("GET", target).status in (200, 404)
        except (OSError, AssertionError):
            return False


def name_on(shard: int, shard_count: int, prefix: str) -> str:
    """Return a topic name that the shard owns."""
    names = (f"{prefix}{number}" for number in range(10_000))
    return next(name for name in names if shard_of(topic_id(name), shard_count) == shard)


@contextmanager
def nothing_left_behind(folder: Path) -> Iterator[None]:
    """Check that the block leaves no shared memory and no socket, in files or abstract.

    The namespace of a server is the device and inode of its LOCK.
    """
    before = _left_behind(folder)
    yield
    deadline = time.monotonic() + 5
    # Other programs of this machine may have named memory for a moment, too.
    while (left := _left_behind(folder) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def _left_behind(folder: Path) -> set[str]:
    paths = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    paths |= {str(path) for path in folder.rglob("*") if path.is_socket() or path.is_fifo()}
    lock = folder / "data" / "LOCK"
    if lock.exists():
        stat = lock.stat()
        table = Path("/proc/net/unix").read_text(errors="replace")
        paths |= set(re.findall(rf"@topicsd/{stat.st_dev:x}-{stat.st_ino:x}/\S*", table))
    return paths


def _processes(pids: list[int]) -> list[Process]:
    """Return the processes that still exist."""
    processes = []
    for pid in pids:
        with suppress(ProcessLookupError):
            processes.append(Process(pid))
    return processes


def _kill(processes: list[Process]) -> None:
    """Kill all at once: all are stopped first, so that none runs between the kills."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            process.signal(number)
    for process in processes:
        assert process.wait(), f"process {process.pid} does not end"
        process.close()


def _worker_pids(front_pid: int) -> dict[int, int]:
    pids = {}
    for pid in _descendants(front_pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if line.startswith(WORKER_SPEC):
                    pids[int(json.loads(line.removeprefix(WORKER_SPEC))["shard"])] = pid
    return pids


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if status[0] != "Z":
                    parents[int(entry)] = int(status[1])
    pids = [pid]
    for one in pids:
        pids += [child for child, parent in parents.items() if parent == one]
    return pids[1:]
