"""`topicsd serve` as a user or systemd starts it, with all its processes, over one directory.

Promises: inside the block the server is ready; after it, nothing of it runs, and its output is in `log`.
`stop` is a clean stop; leaving the block, as `kill`, ends all processes at once. A server can be started
again on its directory. Passed sockets are its descriptors from 3 on, as with systemd.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.output.command_run import PROJECT
from tests.harness.server.processes import (
    END_SECONDS,
    ListeningProcess,
    Process,
    descendants,
    log_file,
    port_file,
    processes_of,
)

WORKER_SPEC = b"TOPICSD_WORKER="
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


class WholeServer:
    def __init__(
        self,
        folder: Path,
        *flags: str,
        shards: int = 2,
        data_dir: Path | None = None,
        environ: dict[str, str] | None = None,
        sockets: tuple[socket.socket, ...] = (),
        python: str = "",
        cwd: Path | None = None,
        host: str = "127.0.0.1",
        stderr: int | None = None,
        is_awaited: bool = True,
    ) -> None:
        """Use `folder`/data for the data unless `data_dir` is given, and `folder` for the rest.

        It runs this tree, or the one installed for another `python`, and is asked at `host`. Unless it
        `is_awaited`, it is only started, and may not be ready or not even listen.
        """
        self.folder = folder
        self.shards = shards
        self.log = log_file(folder)
        fds = [one.fileno() for one in sockets]
        serve = [
            *("--port=0", f"--port-file={port_file(folder)}", f"--shards={shards}"),
            *(f"--data-dir={data_dir or folder / 'data'}", *flags),
        ]
        self._command = [python or sys.executable, "-c", PASS_SOCKETS, str(len(fds)), *map(str, fds), *serve]
        self._fds = fds
        self._environ = {} if python else {"PYTHONPATH": str(PROJECT)}
        self._environ.update(environ or {})
        self._cwd = cwd
        self._host = host
        self._stderr = stderr
        self._is_awaited = is_awaited
        self._process: ListeningProcess | None = None

    def __enter__(self) -> WholeServer:
        self.start()
        return self

    def __exit__(self, *about: object) -> None:
        if self._process is not None:
            # A stopped worker cannot notice the end of its server: kill everything.
            self.kill()

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._launch()
        if self._is_awaited:
            try:
                self.process.wait_until(self._is_ready)
            except BaseException:
                self.kill()
                raise

    def start_and_kill(self, seconds: float) -> None:
        """Start a server and kill it after that time, possibly before it is ready."""
        self._launch()
        time.sleep(seconds)
        self.kill()

    def stop(self) -> int:
        """Stop the server by SIGTERM; return the exit code."""
        children = self.children()
        self.signal(signal.SIGTERM)
        return self._wait(children)

    def wait(self) -> int:
        """Wait until a server that ends has ended, with all its processes; return the exit code."""
        return self._wait(self.children())

    def _wait(self, children: list[Process]) -> int:
        code = self.process.wait()
        for child in children:
            assert child.wait(0), f"process {child.pid} outlived its server"
            child.close()
        self._process = None
        return code

    def kill(self, rng: Random | None = None) -> None:
        """Kill all processes at once, in an order of `rng`, so that none reacts to another's end.

        If the supervisor is gone already, the caller has to handle its children.
        """
        self.process.kill(rng)
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self.process.signal(number)

    def _launch(self) -> None:
        assert self._process is None
        clean = {
            name: text for name, text in os.environ.items() if not name.startswith(("TOPICS_", "LISTEN_"))
        }
        self._process = ListeningProcess(
            self._command,
            self.folder,
            {**clean, **self._environ},
            cwd=self._cwd,
            fds=self._fds,
            stderr=self._stderr,
        )

    def _is_ready(self) -> bool:
        # Ready even if the test has a shard that does not start.
        return self.ask("GET", "/v0/ready?allow_degraded=true").status == 200

    # -- requests ------------------------------------------------------------------------------------------

    def connect(self, *, buffer_bytes: int | None = None) -> RawClient:
        return RawClient(self.port, buffer_bytes=buffer_bytes, host=self._host)

    def ask(self, method: str, target: str, body: object = None, *fields: str) -> Answer:
        """Send one request on a connection of its own; return its answer, whatever its status."""
        with self.connect() as client:
            return client.ask(method, target, body, *fields)

    def ask_json(self, method: str, target: str, body: object = None, *fields: str) -> Any:
        """Send one request that must succeed on a connection of its own; return the JSON of its answer."""
        return self.ask(method, target, body, *fields).succeeded

    # -- processes -----------------------------------------------------------------------------------------

    @property
    def process(self) -> ListeningProcess:
        assert self._process is not None, "the server does not run"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def supervisor(self) -> Process:
        return Process(self.pid)

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

    def kill_worker(self, shard: int) -> None:
        with closing(self.a_worker(shard)) as worker:
            worker.signal(signal.SIGKILL)

    def worker_pids(self) -> dict[int, int]:
        """Return the pids of the workers by shard."""
        return {spec["shard"]: pid for pid, spec in self._worker_specs() if spec.get("broker") is None}

    def broker_pids(self) -> dict[int, int]:
        """Return the pids of the brokers by number."""
        return {spec["broker"]: pid for pid, spec in self._worker_specs() if spec.get("broker") is not None}

    def a_broker(self, number: int = 0) -> Process:
        return Process(self.broker_pids()[number])

    def _worker_specs(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for pid in descendants(self.pid):
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if line.startswith(WORKER_SPEC):
                        yield pid, json.loads(line.removeprefix(WORKER_SPEC))

    def children(self) -> list[Process]:
        """Return every descendant of the supervisor."""
        return processes_of(descendants(self.pid))

    def topic_of(self, shard: int, prefix: str) -> str:
        return name_on(shard, self.shards, prefix)

    def wait_for(self, is_so: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> float:
        """Wait until `is_so` returns true; return the seconds it took."""
        started = time.monotonic()
        while not is_so():
            waited = time.monotonic() - started
            assert waited < seconds, f"not within {seconds} s: {what}\n{self.log.read_text()[-2000:]}"
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
            self.kill_worker(shard)
            self.wait_for_shard(shard)

    def _is_served(self, shard: int) -> bool:
        try:
            return self.ask("GET", f"/v0/topics/{self.topic_of(shard, 'served')}").status in (200, 404)
        except OSError:
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
