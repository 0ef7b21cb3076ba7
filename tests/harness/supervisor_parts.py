"""The parts of `router/supervision/supervisor.py` in a test, with fake workers.

`SupervisorParts` runs in the loop of the test, so that a test reaches every part. `SupervisorProcess` is
the whole supervisor as a process of its own, to be signalled and killed.

Waits in tests are short, but a healthy child on a busy machine may be silent for a second. A silent child is
therefore treated as hanging only in tests that ask for it with `SHORT_TIMES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from router.accept.accept_loop import AcceptLoop
from router.accept.connection_router import ConnectionRouter
from router.accept.listening import open_listeners, port_of
from router.accept.placer import Placer
from router.control.control import ControlEndpoints
from router.control.control_app import ControlApp
from router.control.control_connections import ControlConnections
from router.control.route_answers import RouteAnswers
from router.control.route_registry import RouteRegistry
from router.control.topic_list import ListShard
from router.supervision.process_pool import PoolTimes, WorkerPool
from router.supervision.supervisor import run
from shared.contract.api_keys import parse_keys
from shared.contract.watch_id import WatchIds
from shared.ipc.board import Board
from shared.ipc.link import NEVER_SENT
from shared.ipc.link_kind import LinkKind
from shared.runtime.clock import SystemClock
from shared.runtime.log_setup import set_up_logging
from shared.settings.settings import Settings

PROJECT = Path(__file__).parents[2]
FAKE_WORKER = (sys.executable, "-m", "tests.harness.fake_worker")
TIMEOUT_SECONDS = 60.0

TIMES = PoolTimes(
    tick_seconds=0.02,
    fresh_seconds=TIMEOUT_SECONDS,
    hung_seconds=TIMEOUT_SECONDS,
    start_seconds=TIMEOUT_SECONDS,
    backoff_first_seconds=0.02,
    backoff_max_seconds=0.1,
    healthy_seconds=5.0,
    drain_seconds=TIMEOUT_SECONDS,
    grace_seconds=0.5,
)
SHORT_TIMES = TIMES._replace(fresh_seconds=1.0, hung_seconds=2.0)
END_SOON = TIMES._replace(drain_seconds=0.1)


class Answer(NamedTuple):
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def environment(worker: dict[str, object] | None = None) -> dict[str, str]:
    """Return the environment of a project process; `worker` configures fake workers."""
    return {**os.environ, "PYTHONPATH": str(PROJECT), "TOPICS_TEST_WORKER": json.dumps(worker or {})}


async def until(what: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.01)


async def no_topics(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
    return []


async def no_answer(shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
    return NEVER_SENT


class SupervisorParts:
    def __init__(
        self,
        shard_count: int = 2,
        worker: dict[str, object] | None = None,
        times: PoolTimes = TIMES,
        api_keys: str = "",
        list_shard: ListShard = no_topics,
        head_seconds: float = 10.0,
        connections_max: int = 10_000,
    ) -> None:
        clock = SystemClock()
        self.board = Board.create(shard_count)
        self.pool = WorkerPool(
            self.board,
            clock,
            FAKE_WORKER,
            environment(worker),
            {},
            lambda shard, handed: self.router.refuse_returned(shard, handed),
            times,
        )
        routes = RouteAnswers(RouteRegistry(self.pool.channels, self.board, no_answer, 0), clock)
        self.control = ControlEndpoints(self.pool, clock, "0.0.0", list_shard, routes)
        self.app = ControlApp(self.control, parse_keys(api_keys), probes_need_key=False)
        placer = Placer(WatchIds(b"front-stage-----", shard_count))
        self.controls = ControlConnections(
            self.app, placer, lambda *given: self.router.place(*given), Settings().max_body_bytes
        )
        self.router = ConnectionRouter(
            self.pool.channels, clock, self.controls.receive, placer, head_seconds, connections_max
        )
        listeners = open_listeners("127.0.0.1", 0)
        self.port = port_of(listeners)
        self.accept_loop = AcceptLoop(self.router.accepted)
        self.accept_loop.open(listeners)

    async def __aenter__(self) -> SupervisorParts:
        await self.app.start()
        self.pool.start()
        return self

    async def ready(self) -> SupervisorParts:
        await until(lambda: all(self.pool.is_serving(shard) for shard in range(len(self.pool))))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.accept_loop.close(is_last=True)
        self.router.stop()
        await self.controls.close()
        if kind is not None:
            for pid in self.pool.pids():
                os.kill(pid, signal.SIGKILL)
        await self.pool.drain()
        await self.app.close()
        self.router.close()
        self.pool.close()
        self.board.close()
        os.close(self.board.fd)

    async def connect(self) -> Client:
        return await connect(self.port)

    async def ask(self, method: str, path: str, *fields: str, body: bytes = b"") -> Answer:
        """Send one request on a connection of its own."""
        async with await self.connect() as client:
            return await client.ask(method, path, *fields, body=body)

    def pid(self, shard: int) -> int:
        return self.board.slot(shard).pid


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *given: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, method: str, path: str, *fields: str, body: bytes = b"") -> Answer:
        self.send(request(method, path, *fields, body=body))
        return await self.answer()

    async def answer(self) -> Answer:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(fields["content-length"]))
        return Answer(int(first.split()[1]), fields, body)

    async def rest(self) -> bytes:
        """Return everything until the server ends the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


def request(method: str, path: str, *fields: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: here", *fields]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class SupervisorProcess:
    """The supervisor in a process of its own, killed at the end with all its workers."""

    def __init__(
        self,
        folder: Path,
        shard_count: int = 2,
        worker: dict[str, object] | None = None,
        times: PoolTimes = TIMES,
        **settings: object,
    ) -> None:
        self._port_file = folder / "port"
        spec = {
            "shards": shard_count,
            "times": times._asdict(),
            "instance": os.urandom(16).hex(),
            "namespace": os.urandom(8).hex(),
            "settings": {"port": 0, "port_file": str(self._port_file), "data_dir": str(folder), **settings},
        }
        self.log = folder / "front.log"
        # Left by a process that was killed.
        self._port_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.supervisor_parts", json.dumps(spec)],
                env=environment(worker),
                cwd=PROJECT,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> SupervisorProcess:
        return self

    def __exit__(self, *given: object) -> None:
        if self.process.poll() is None:
            workers = self.worker_pids()
            self.process.kill()
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def port(self) -> int:
        wait_until(lambda: self._port_file.exists() or self.process.poll() is not None)
        assert self._port_file.exists(), f"the supervisor has ended:\n{self.log.read_text()}"
        return int(self._port_file.read_text())

    def worker_pids(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def acceptor_pids(self) -> list[int]:
        return [pid for pid in self.worker_pids() if b"router.accept.acceptor" in _command(pid)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_SECONDS)

    def ask(self, method: str, path: str) -> Answer:
        return ask(self.port(), method, path)

    def wait_until_ready(self) -> SupervisorProcess:
        wait_until(lambda: self.ask("GET", "/v0/ready").status == 200)
        return self


def ask(port: int, method: str, path: str) -> Answer:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(request(method, path, "connection: close"))
        with connection.makefile("rb") as file:
            status = int(file.readline().split()[1])
            fields = {}
            while (line := file.readline().decode().strip()) != "":
                name, _, value = line.partition(": ")
                fields[name.lower()] = value
            return Answer(status, fields, file.read(int(fields["content-length"])))


def wait_until(what: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def main(spec: dict[str, Any]) -> int:
    set_up_logging("debug", "front")
    return run(
        Settings(**spec["settings"]),
        spec["shards"],
        spec["instance"],
        spec["namespace"],
        worker_command=FAKE_WORKER,
        times=PoolTimes(**spec["times"]),
    )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
