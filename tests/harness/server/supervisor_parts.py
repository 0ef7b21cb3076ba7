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
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from router.accept.accept_loop import AcceptLoop
from router.accept.connection_router import ConnectionRouter
from router.accept.listening import open_listeners, port_of
from router.accept.placer import Placer
from router.control.backup_points import BackupPoints
from router.control.control import ControlEndpoints
from router.control.control_app import ControlApp
from router.control.control_connections import ControlConnections
from router.control.route_answers import RouteAnswers
from router.control.route_registry import RouteRegistry
from router.control.topic_list import ListShard
from router.supervision.process_pool import PoolTimes
from router.supervision.supervisor import run
from router.supervision.worker_pools import WorkerPool
from shared.contract.api_keys import parse_keys
from shared.contract.watch_id import WatchIds
from shared.http.cors import Origins
from shared.ipc.board import Board
from shared.ipc.link import NEVER_SENT
from shared.ipc.link_kind import LinkKind
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.log_setup import set_up_logging
from shared.settings.settings import Settings
from tests.harness.clients.raw_client import Answer, RawClient, body_bytes, parse_head, request_bytes
from tests.harness.output.command_run import PROJECT, environment
from tests.harness.server.processes import ListeningProcess, children, command_of, port_file, wait_until

FAKE_WORKER = (sys.executable, "-m", "tests.harness.server.fake_worker")
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


def worker_environment(worker: dict[str, object] | None = None) -> dict[str, str]:
    """Return the environment of a supervisor; `worker` configures its fake workers."""
    return {**environment(), "TOPICS_TEST_WORKER": json.dumps(worker or {})}


async def until(what: Callable[[], object], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.01)


async def no_topics(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
    return []


async def no_answer(shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
    return NEVER_SENT


async def no_hold(shard: int, kind: LinkKind, payload: bytes, seconds: float) -> bytes | None:
    """Answer as a worker that cannot be reached."""
    del shard, kind, payload, seconds
    return NEVER_SENT


def no_backup_points(clock: Clock) -> BackupPoints:
    """Return the backup points of a server whose shards do not serve."""
    return BackupPoints(no_hold, range(1), lambda shard: False, clock)


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
        command: tuple[str, ...] = FAKE_WORKER,
        cors_origins: str = "",
    ) -> None:
        clock = SystemClock()
        self.board = Board.create(shard_count)
        self.pool = WorkerPool(
            self.board,
            clock,
            command,
            worker_environment(worker),
            {},
            lambda shard, handed: self.router.refuse_returned(shard, handed),
            times,
        )
        placement = SharedPlacement.fixed(shard_count)
        routes = RouteAnswers(RouteRegistry(self.pool.channels, self.board, placement, no_answer, 0), clock)
        self.control = ControlEndpoints(
            self.pool, clock, "0.0.0", list_shard, routes, no_backup_points(clock)
        )
        origins = Origins(cors_origins)
        self.app = ControlApp(self.control, parse_keys(api_keys), False, origins)
        placer = Placer(WatchIds(b"front-stage-----"), placement)
        self.controls = ControlConnections(
            self.app, placer, lambda *given: self.router.place(*given), Settings().max_body_bytes
        )
        self.router = ConnectionRouter(
            self.pool.channels, clock, self.controls.receive, placer, origins, head_seconds, connections_max
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

    async def connect(self) -> LoopClient:
        return await connect(self.port)

    async def ask(self, method: str, target: str, body: object = None, *fields: str) -> Answer:
        """Send one request on a connection of its own."""
        async with await self.connect() as client:
            return await client.ask(method, target, body, *fields)

    def pid(self, shard: int) -> int:
        return self.board.slot(shard).pid


class LoopClient:
    """An HTTP/1.1 client in the event loop of the test, as strict as `RawClient`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> LoopClient:
        return self

    async def __aexit__(self, *given: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, method: str, target: str, body: object = None, *fields: str) -> Answer:
        self.send(request_bytes(method, target, body_bytes(body), *fields))
        return await self.answer()

    async def answer(self) -> Answer:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            answer = parse_head(head.removesuffix(b"\r\n\r\n"))
            return answer._replace(body=await self.reader.readexactly(answer.length))

    async def rest(self) -> bytes:
        """Return everything until the server ends the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()


async def connect(port: int) -> LoopClient:
    return LoopClient(*await asyncio.open_connection("127.0.0.1", port))


class SupervisorProcess(ListeningProcess):
    """The supervisor in a process of its own, killed at the end with all its workers."""

    def __init__(
        self,
        folder: Path,
        shard_count: int = 2,
        worker: dict[str, object] | None = None,
        times: PoolTimes = TIMES,
        **settings: object,
    ) -> None:
        spec = {
            "shards": shard_count,
            "times": times._asdict(),
            "instance": os.urandom(16).hex(),
            "namespace": os.urandom(8).hex(),
            "settings": {
                "port": 0,
                "port_file": str(port_file(folder)),
                "data_dir": str(folder),
                **settings,
            },
        }
        command = [sys.executable, "-m", "tests.harness.server.supervisor_parts", json.dumps(spec)]
        super().__init__(command, folder, worker_environment(worker), cwd=PROJECT)

    def child_pids(self) -> list[int]:
        """Return the pids of the workers and acceptors."""
        return children(self.pid)

    def acceptor_pids(self) -> list[int]:
        return [pid for pid in self.child_pids() if b"router.accept.acceptor" in command_of(pid)]

    def ask(self, method: str, target: str) -> Answer:
        return ask(self.port, method, target)

    def wait_until_ready(self) -> SupervisorProcess:
        wait_until(lambda: self.ask("GET", "/v0/ready").status == 200)
        return self


def ask(port: int, method: str, target: str) -> Answer:
    """Send a request on a connection of its own."""
    with RawClient(port) as client:
        return client.ask(method, target, None, "connection: close")


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
