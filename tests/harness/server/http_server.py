"""The HTTP side of a worker over one shard on the real disk, in a thread of the test with its own uvloop.

Promises: it listens on three ports of 127.0.0.1. The second treats every body as if it were chunked or
compressed, so that asking both ports shows that they parse alike; the third is for HTTP/2. Time is the
machine's and can be advanced by hand as well: `pass_time` for records and keys, `pass_timeout` for
connection timeouts. `restart` ends the run and begins another on the same directory, at new ports. After the
block nothing of it runs, and an error reported by the loop is an error of the test.

`HttpServerProcess` is the same in a process of its own, for measurements of its memory.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from shared.contract.api_keys import parse_keys
from shared.contract.errors import Refusal
from shared.ipc.link import LinkPool
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import SystemClock
from shared.runtime.disk_thread import start_threads
from shared.settings.settings import Settings
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import HttpClient, RawClient
from tests.harness.output.command_run import PROJECT, environment
from tests.harness.server.processes import ListeningProcess, Process, port_file
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.shard import Shard
from topicsd.http.http1.connection import Http1Connection
from topicsd.http.http1.head_cache import HeadCache, KnownFields
from topicsd.http.http1.timeouts import Connection
from topicsd.http.http2.connection import Http2Connection
from topicsd.http.websocket.upgrade import WebSockets
from topicsd.log.writer import Identity
from topicsd.service.dispatch import Dispatch

T = TypeVar("T")

INSTANCE: Final = b"http-server-----"
FAST: Final = "fast"
CODED: Final = "coded"
HTTP1_PORTS: Final = (FAST, CODED)
H2: Final = "h2"
ALL_PORTS: Final = (*HTTP1_PORTS, H2)
START_SECONDS: Final = 20.0
END_TURNS: Final = 3000


class AdvancedClock(SystemClock):
    """The system clock plus an adjustable number of milliseconds."""

    def __init__(self) -> None:
        self.advanced_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.advanced_ms


class CodedHeads(HeadCache):
    """A head cache that marks every body as encoded."""

    def learn_fields(self, text: bytes) -> KnownFields | Refusal:
        known = super().learn_fields(text)
        if isinstance(known, Refusal):
            return known
        coded = msgspec.structs.replace(known, is_common_block=False, is_coded=True)
        # HTTP/1.1 connections look into the table before they call this.
        if text in self._blocks:
            self._blocks[text] = coded
        return coded

    def fields(self, text: bytes) -> KnownFields | Refusal:
        """Mark a head with a key; such heads are not in the table of the connections."""
        known = super().fields(text)
        if isinstance(known, Refusal):
            return known
        return msgspec.structs.replace(known, is_common_block=False, is_coded=True)


class HttpServer:
    def __init__(self, data_dir: Path, *, keys: str = "", **settings: Any) -> None:
        self._data_dir = str(data_dir)
        self._keys = parse_keys(keys)
        self.settings = Settings(**{"wal_file_bytes": 1 << 20, **settings})
        self.clock = AdvancedClock()
        self.connections: set[Connection] = set()
        self.complaints: list[str] = []
        self.ports: dict[str, int] = {}
        self.shard: Shard
        self.dispatch: Dispatch
        create_data_dir(RealFs(), self._data_dir, 1, INSTANCE)

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            assert self.complaints == []

    def connect(self, lane: str) -> HttpClient:
        port = self.ports[lane]
        return H2Client(port) if lane == H2 else RawClient(port)

    # -- progress ------------------------------------------------------------------------------------------

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve(started)), name="http-server")
        self._thread.start()
        assert started.wait(START_SECONDS), "the server did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the server did not stop"

    def restart(self) -> None:
        self.stop()
        self.start()

    def run(self, what: Callable[[], T]) -> T:
        """Call `what` in the server's loop and return its result."""

        async def call() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(START_SECONDS)

    def pass_time(self, ms: int) -> None:
        self.clock.advanced_ms += ms

    def pass_timeout(self, seconds: float) -> None:
        """Check the timeouts of all connections as if that much time had passed."""

        def look() -> None:
            now = self.clock.monotonic() + seconds
            for one in list(self.connections):
                one.check_timeouts(now)

        self.run(look)

    def change_keys(self, keys: str) -> None:
        """Change the API keys as the worker does on a reload."""
        self.run(lambda: self.dispatch.change_keys(parse_keys(keys)))

    def drain(self) -> None:
        def begin() -> None:
            self.dispatch.is_draining = True
            for one in list(self.connections):
                one.drain()

        self.run(begin)

    # -- connection callbacks ------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    # -- the loop ------------------------------------------------------------------------------------------

    async def _serve(self, started: threading.Event) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        self._ending = asyncio.Event()
        threads = start_threads(loop, 0)
        self.shard = Shard(
            RealFs(),
            self.clock,
            loop,
            threads,
            shard_paths(self._data_dir, 0),
            Identity(INSTANCE, 0),
            self.settings,
            lambda error: self.complaints.append(str(error)),
        )
        links = LinkPool("none")
        self.dispatch = Dispatch(
            self.shard,
            self._keys,
            links,
            0,
            SharedPlacement.fixed(1),
            open_socket=lambda call, key: self.open_socket(call, key),
        )
        self.open_socket = WebSockets(self.dispatch, self).open
        heads = {FAST: HeadCache(self.dispatch), CODED: CodedHeads(self.dispatch)}
        servers = {
            lane: await loop.create_server(
                partial(Http1Connection, self.dispatch, heads[lane], self), "127.0.0.1", 0
            )
            for lane in HTTP1_PORTS
        }
        servers[H2] = await loop.create_server(
            partial(Http2Connection, self.dispatch, heads[FAST], self), "127.0.0.1", 0
        )
        self.ports = {lane: server.sockets[0].getsockname()[1] for lane, server in servers.items()}
        started.set()
        await self._ending.wait()
        for server in servers.values():
            server.close()
        for one in list(self.connections):
            one.drain()
        for _ in range(END_TURNS):
            if not self.connections:
                break
            await asyncio.sleep(0.001)
        else:
            self.complaints.append(f"connections did not end: {self.connections}")
        self.shard.close()


class HttpServerProcess(ListeningProcess):
    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.harness.server.http_server", str(folder)]
        super().__init__(command, folder, environment(), cwd=PROJECT)
        self.ports: dict[str, int] = json.loads(self.port_text())
        self.meter = Process(self.pid)

    def __exit__(self, *about: object) -> None:
        try:
            self.signal(signal.SIGTERM)
            code = self.wait()
        finally:
            self.kill()
            self.meter.close()
        assert code == 0, self.log.read_text()


def main(folder: Path) -> None:
    # Blocked before the threads start, so that only `sigwait` receives it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with HttpServer(folder / "data") as server:
        port_file(folder).write_text(json.dumps(server.ports))
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
