"""A worker without an engine, for tests of the supervisor; it echoes requests.

Each request, up to its empty line, is answered with a line of JSON: the shard, the pid and the bytes that
were read. TOPICS_TEST_WORKER, a JSON object, configures its behaviour:

* `exit_code`: end with it at once, with `reason` on the board;
* `ready_after`: seconds in which it replays;
* `disk_wait`: once ready, block in the kernel until this FIFO is written to, with the event loop stopped;
* `deaf`: never take a connection; `ignores_drain`: never end by itself; `drain_seconds`: the time before it
  ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from typing import Any

from shared.ipc.board import Board, WorkerState
from shared.ipc.handoff import ChannelClosed, HandoffMessage, receive_connections

BEAT_SECONDS = 0.05


class _Echo(asyncio.Protocol):
    def __init__(self, shard: int, open_lanes: set[_Echo]) -> None:
        self._shard = shard
        self._open_lanes = open_lanes
        self._unread = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._open_lanes.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_lanes.discard(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while b"\r\n\r\n" in self._unread:
            request, _, self._unread = self._unread.partition(b"\r\n\r\n")
            self._answer(request)
        if len(self._unread) > 8192 or (b"\n" in self._unread and b"\r\n" not in self._unread):
            self._answer(self._unread)
            self._unread = b""

    def _answer(self, request: bytes) -> None:
        reply = {"shard": self._shard, "pid": os.getpid(), "request": request.decode("latin-1")}
        body = json.dumps({**reply, "performance": {}}).encode() + b"\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


class _FakeWorker:
    def __init__(self) -> None:
        self._spec = json.loads(os.environ["TOPICSD_WORKER"])
        self._config = json.loads(os.environ.get("TOPICS_TEST_WORKER", "{}"))
        self._shard = self._spec["shard"]
        self._slot = Board.attach(self._spec["board_fd"]).slot(self._shard)
        self._channel = socket.socket(fileno=self._spec["channel_fd"])
        self._lanes: set[_Echo] = set()
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> int:
        slot, config = self._slot, self._config
        slot.pid = os.getpid()
        slot.state = WorkerState.REPLAYING
        slot.replay_total = 100
        slot.replay_done = 40
        self._beat()
        if "exit_code" in config:
            slot.reason = config.get("reason", "")
            return int(config["exit_code"])
        await asyncio.sleep(config.get("ready_after", 0))
        if not config.get("deaf"):
            self._loop.add_reader(self._channel.fileno(), self._take)
        slot.topics = 10 + self._shard
        slot.state = WorkerState.READY
        if "disk_wait" in config:
            _wait_in_kernel(config["disk_wait"])
        await self._ending.wait()
        slot.state = WorkerState.DRAINING
        await asyncio.sleep(config.get("drain_seconds", 0.05))
        for lane in list(self._lanes):
            lane.transport.close()
        await asyncio.sleep(0)
        return 0

    def _take(self) -> None:
        try:
            received = receive_connections(self._channel)
        except ChannelClosed:
            self._loop.remove_reader(self._channel.fileno())
            self._ending.set()
            return
        for one in received:
            if one.is_drain:
                if not self._config.get("ignores_drain"):
                    self._ending.set()
            else:
                self._loop.create_task(self._adopt(one))

    async def _adopt(self, handed: HandoffMessage) -> None:
        connection = socket.socket(fileno=handed.fd)
        connection.setblocking(False)
        _, lane = await self._loop.connect_accepted_socket(
            lambda: _Echo(self._shard, self._lanes), connection
        )
        lane.data_received(handed.data)

    def _beat(self) -> None:
        self._slot.beat_ms = int(time.monotonic() * 1000)
        self._slot.connections = len(self._lanes)
        self._loop.call_later(BEAT_SECONDS, self._beat)


def _wait_in_kernel(fifo: str) -> None:
    """Block uninterruptibly, as on a slow disk.

    The spawning process sleeps until the child runs, and the child first opens the FIFO.
    """
    opens_fifo = [(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens_fifo), 0)


async def _main() -> int:
    return await _FakeWorker().run()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
