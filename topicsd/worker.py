"""The worker: one process, one shard. Recover, serve, drain.

It gets its connections from the front process, with what was read of them, over a socket that it inherits;
when that socket ends the front process has died, and the worker drains and ends too. It says how it is on
the board. Requests for topics of other shards go over the link, and theirs for its topics come over it.

Must not know: how connections are accepted, or who supervises.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import msgspec
import uvloop

from shared.auth import Keys, parse_keys
from shared.board import Board, Slot, WorkerState
from shared.clock import SystemClock
from shared.config import Settings
from shared.handoff import ChannelClosed, Handed, receive_connections
from shared.link import LinkKind, LinkPool, serve_links
from shared.log_setup import set_up_logging
from topicsd.disk.dir_lock import DirectoryInUse
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import shard_paths
from topicsd.engine.shard import Shard
from topicsd.http.app import App
from topicsd.http.dispatch import Dispatch
from topicsd.http.fast_lane import FastLane
from topicsd.http.handlers import Handlers
from topicsd.http.known_heads import KnownHeads
from topicsd.http.patience import Connection
from topicsd.http.topic_list import list_topics
from topicsd.wal.log_walk import UnreadableLog
from topicsd.wal.recovery import RecoveryRefused
from topicsd.wal.sync_thread import start_threads
from topicsd.wal.writer import Identity

logger = logging.getLogger("topicsd.worker")

SPEC_VARIABLE = "TOPICSD_WORKER"
BEAT_SECONDS = 0.5
PATIENCE_CHECK_SECONDS = 1.0
LOCK_RETRY_SECONDS = 0.1
LOCK_RETRIES_MAX = 300
EXIT_REFUSED = 3
EXIT_STORAGE_FAILED = 4


class Spec(msgspec.Struct, frozen=True):
    """What the front process tells a worker when it starts it."""

    shard: int
    shards: int
    data_dir: str
    instance: str
    channel_fd: int
    board_fd: int
    settings: Settings


class Worker:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._slot: Slot = Board.attach(spec.board_fd, spec.shards).slot(spec.shard)
        self._channel = socket.socket(fileno=spec.channel_fd)
        self._channel.setblocking(False)
        self._lanes: set[Connection] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._ending = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        self._slot.pid = os.getpid()
        self._slot.state = WorkerState.REPLAYING
        self._beat()
        shard = await self._open_shard()
        if shard is None:
            return EXIT_REFUSED
        spec = self._spec
        links = LinkPool(spec.instance, self._answer_link)
        keys: Keys = parse_keys(spec.settings.api_keys)
        handlers = Handlers(shard, spec.settings, self._loop)
        self._shard = shard
        self._dispatch = Dispatch(handlers, keys, links, spec.shard, spec.shards)
        self._heads = KnownHeads(self._dispatch)
        self._app = App(self._dispatch, self._heads, self)
        server = await serve_links(spec.instance, str(spec.shard), self._answer_link)
        # What recovery left is here to stay: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        self._loop.add_reader(self._channel.fileno(), self._take_connections)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        self._slot.state = WorkerState.READY
        self._check_patience()
        logger.info("shard %d is ready with %d topics", spec.shard, len(shard.state.topics))
        await self._ending.wait()
        await self._drain()
        server.close()
        links.close()
        try:
            shard.close()
        except OSError as error:
            logger.error("the shard could not be closed cleanly: %s", error)
        self._slot.state = WorkerState.GONE
        return self._exit_code

    async def _open_shard(self) -> Shard | None:
        """The shard, once its lock is free: a worker of the generation before may still drain."""
        spec = self._spec
        fs = RealFs()
        threads = start_threads(self._loop, spec.shard)
        for attempt in range(LOCK_RETRIES_MAX):
            try:
                return Shard(
                    fs,
                    self._clock,
                    self._loop,
                    threads,
                    shard_paths(spec.data_dir, spec.shard),
                    Identity(bytes.fromhex(spec.instance), spec.shard),
                    spec.settings,
                    self._storage_failed,
                )
            except DirectoryInUse:
                if attempt == 0:
                    logger.info("shard %d is still held by another process; waiting", spec.shard)
                await asyncio.sleep(LOCK_RETRY_SECONDS)
            except (RecoveryRefused, UnreadableLog) as error:
                logger.error("shard %d does not start: %s", spec.shard, error)
                self._slot.reason = str(error)
                self._slot.state = WorkerState.REFUSED
                return None
        self._slot.reason = "the shard's lock was not released"
        return None

    def _storage_failed(self, error: OSError) -> None:
        """Answers that wait are refused by now; a new process recovers from the media."""
        self._slot.state = WorkerState.FAILED
        self._exit_code = EXIT_STORAGE_FAILED
        self._loop.call_later(0.05, self._ending.set)

    # -- connections ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._lanes.add(connection)
        self._is_empty.clear()

    def closed(self, connection: Connection) -> None:
        self._lanes.discard(connection)
        if not self._lanes:
            self._is_empty.set()

    def _take_connections(self) -> None:
        try:
            handed = receive_connections(self._channel)
        except ChannelClosed:
            logger.info("the front process is gone; shard %d drains", self._spec.shard)
            self._loop.remove_reader(self._channel.fileno())
            self._ending.set()
            return
        for one in handed:
            if one.drains:
                self._ending.set()
            else:
                self._loop.create_task(self._adopt(one))

    async def _adopt(self, handed: Handed) -> None:
        connection = socket.socket(fileno=handed.fd)
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_lane(handed.data), connection)
        except OSError:
            connection.close()

    def _make_lane(self, first: bytes) -> FastLane:
        return FastLane(self._dispatch, self._heads, self, self._app.upgrade, first)

    def _answer_link(self, kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
        if kind == LinkKind.REQUEST:
            self._dispatch.answer_link(payload, reply)
        elif kind == LinkKind.LIST_TOPICS:
            reply(list_topics(self._shard.state, payload))

    def _check_patience(self) -> None:
        now = self._clock.monotonic()
        for lane in list(self._lanes):
            lane.check_patience(now)
        self._loop.call_later(PATIENCE_CHECK_SECONDS, self._check_patience)

    async def _drain(self) -> None:
        """Take nothing new, answer what was read; bounded by the drain's time."""
        if self._slot.state == WorkerState.READY:
            self._slot.state = WorkerState.DRAINING
        self._dispatch.drains = True
        for lane in list(self._lanes):
            lane.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.settings.drain_seconds):
                await self._is_empty.wait()
        await self._app.close()

    # -- the board -----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        slot = self._slot
        slot.beat_ms = int(self._clock.monotonic() * 1000)
        if hasattr(self, "_shard"):
            state = self._shard.state
            counters = self._shard.log.counters
            slot.topics = len(state.topics)
            slot.connections = len(self._lanes)
            slot.frames_total = counters.frames
            slot.batches_total = counters.batches
            slot.syncs_total = counters.syncs
            slot.sync_us_total = int(counters.sync_seconds * 1e6)
            slot.bytes_written_total = counters.bytes_written
            slot.forwarded_total = self._dispatch.forwarded_count
        self._loop.call_later(BEAT_SECONDS, self._beat)


def main() -> int:
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=Spec)
    set_up_logging(spec.settings.log, f"worker-{spec.shard:02d}")

    async def run() -> int:
        return await Worker(spec).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
