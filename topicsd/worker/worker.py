"""The worker: one process that owns one shard. It recovers, serves and drains.

A broker is a worker whose shard lies in memory and has no topics, with a `Broker` for shared topics.

Connections arrive from the acceptor, with the bytes already read, over an inherited socket. If that socket
closes, the supervisor has died; the worker then drains and ends too. The worker publishes its state on the
board. Requests for topics of other shards are sent over the link, and requests of other shards arrive over
it.
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
from collections.abc import Mapping
from importlib import import_module

import msgspec
import uvloop

from shared.contract.api_keys import ApiKey, parse_keys
from shared.http.http2_preface import is_http2
from shared.ipc.board import KEYS_VERSION, Board, Slot, WorkerState
from shared.ipc.handoff import shutdown_requested
from shared.ipc.key_request import decode_keys_message
from shared.ipc.link import LinkPool, LinkReply, reject, serve_links
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import PlacementError
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import SystemClock
from shared.runtime.log_setup import fields, set_up_logging
from topicsd.engine.shard import Shard
from topicsd.http.http1.connection import Http1Connection
from topicsd.http.http1.head_cache import HeadCache
from topicsd.http.http1.timeouts import Connection
from topicsd.service.call import Call
from topicsd.service.dispatch import Dispatch
from topicsd.service.routes import ROUTE_REQUESTS
from topicsd.service.shards.backup_hold import HOLD_REQUESTS
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.relocation_target import RELOCATION_REQUESTS
from topicsd.service.watch.streams import FOLLOW_REQUESTS
from topicsd.worker.board_publisher import BEAT_SECONDS, BoardPublisher
from topicsd.worker.broker_service import BrokerService
from topicsd.worker.broker_start import BrokerRefused, memory_spec, open_broker
from topicsd.worker.receiver import HandOverReceiver
from topicsd.worker.spec import SPEC_VARIABLE, Spec
from topicsd.worker.start import ShardStart, StartEnded, StartRefused

logger = logging.getLogger("topicsd.worker")

SWITCH_SECONDS = 0.0005
KEYS_SECONDS = 0.005
TIMEOUT_CHECK_SECONDS = 1.0
CHECKS_PER_TURN = 1000
# After a disk failure a drain only waits for responses that are being sent.
FAILED_DRAIN_SECONDS = 1.0
IN_TRANSIT_SECONDS = 0.05
STOP_NOTICE_SECONDS = 0.25
EXIT_REFUSED = 3
BROKER_ADVICE = "correct TOPICS_STORE_URL, TOPICS_CATALOG_URL or the environment of both"
EXIT_STORAGE_FAILED = 4
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PROTOCOL_MODULES = ("topicsd.http.http2.connection", "topicsd.http.websocket.upgrade")


class Worker:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._board = Board.attach(spec.board_fd)
        self._slot: Slot = self._board.slot(spec.shard)
        self._publisher = BoardPublisher(self._slot, self._clock)
        self._channel = socket.socket(fileno=spec.channel_fd)
        self._channel.setblocking(False)
        self._shard: Shard | None = None
        self._service: BrokerService | None = None
        """The broker of a broker process."""
        self._connections: set[Connection] = set()
        self._drain_progress = asyncio.Event()
        """Set when the last connection closes, or a second stop request ends the drain."""
        self._is_drain_skipped = False
        self._keys_version = spec.keys_version
        self._shutdown = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        spec, slot = self._spec, self._slot
        slot.pid = os.getpid()
        slot.state = WorkerState.STARTING
        # The loop does not run during a replay, so its own handlers would not be called.
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: self._shutdown.set())
        self._beat()
        try:
            placement = self._open_placement()
            shard = await ShardStart(
                spec if spec.broker is None else memory_spec(spec),
                self._clock,
                slot,
                self._publisher.beat,
                self._is_shutdown_requested,
                lambda topic_id: placement.shard_of(topic_id) == spec.shard,
            ).open(self._on_storage_failure)
            if spec.broker is not None:
                self._service = await self._open_broker()
        except StartEnded:
            logger.info("%s: start cancelled: shutdown requested", self._kind, extra=self._fields())
            slot.state = WorkerState.GONE
            return 0
        except StartRefused as error:
            logger.error("%s: start refused: %s; %s", self._kind, error, error.advice, extra=self._fields())
            slot.reason = str(error)
            slot.state = WorkerState.REFUSED
            return EXIT_REFUSED
        self._shard = shard
        self._publisher.begin(shard)
        links = LinkPool(spec.namespace)
        self._dispatch = self._make_dispatch(shard, links, placement)
        self._heads = HeadCache(self._dispatch)
        server = await serve_links(spec.namespace, str(spec.shard), self._answer_link)
        # Recovered objects are long-lived; exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._receiver = HandOverReceiver(self._channel, self._make_connection, self._shutdown.set)
        self._receiver.start()
        for number in _STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)
        await self._wait_for_keys()
        slot.reason = ""
        slot.state = WorkerState.READY
        shard.pressure.start()
        self._publish()
        self._check_timeouts()
        if self._service is not None:
            self._service.start()
        logger.info("%s: ready", self._kind, extra=self._fields(topics=len(shard.state.topics)))
        loading = self._loop.create_task(self._load_protocols())
        await self._shutdown.wait()
        await self._drain()
        await self._dispatch.streams.webhooks.close()
        await self._drain_broker()
        await loading
        server.close()
        links.close()
        if self._service is None:
            await self._checkpoint(shard)
        self._close(shard)
        slot.state = WorkerState.GONE
        return self._exit_code

    async def _wait_for_keys(self) -> None:
        """Wait for the keys that changed since this process was started, which the supervisor sends.

        The next line after this makes the worker serve, so no change is missed in between.
        """
        head = self._board.head
        while self._keys_version < head[KEYS_VERSION] and not self._shutdown.is_set():  # noqa: ASYNC110
            await asyncio.sleep(KEYS_SECONDS)

    def _make_dispatch(self, shard: Shard, links: LinkPool, placement: SharedPlacement) -> Dispatch:
        spec = self._spec
        self._peers = Peers(self._board, self._clock, spec.shard)
        return Dispatch(
            shard,
            parse_keys(spec.settings.api_keys),
            links,
            spec.shard,
            placement,
            peers=self._peers,
            open_socket=self._open_socket,
            broker=None if self._service is None else self._service.broker,
            broker_number=self._broker_number(),
            operations={} if self._service is None else self._service.operations,
        )

    @property
    def _kind(self) -> str:
        return "shard" if self._spec.broker is None else "broker"

    def _fields(self, **more: object) -> Mapping[str, object]:
        spec = self._spec
        return fields(**({"shard": spec.shard} if spec.broker is None else {"broker": spec.broker}), **more)

    def _broker_number(self) -> int | None:
        """Return the owner number of a broker of this node: its own in a broker, and spread over workers."""
        if self._spec.broker is not None:
            return self._spec.shard
        numbers = self._board.broker_numbers
        return numbers[self._spec.shard % len(numbers)] if numbers else None

    async def _open_broker(self) -> BrokerService:
        spec = self._spec
        try:
            opened = await open_broker(spec, self._clock, self._slot, self._is_shutdown_requested)
        except BrokerRefused as error:
            raise StartRefused(error, spec.data_dir, BROKER_ADVICE) from error
        if opened is None:
            raise StartEnded
        return BrokerService(
            spec, opened, self._clock, lambda: self._dispatch.handlers.counts, lambda: len(self._connections)
        )

    async def _drain_broker(self) -> None:
        """Settle what waits in the broker, after all requests that could bring more."""
        service = self._service
        if service is None:
            return
        seconds = self._spec.settings.drain_seconds
        if not await service.drain(seconds, lambda: self._is_drain_skipped):
            logger.warning("broker: stopped before all writes were settled", extra=self._fields())
        service.close()

    def _open_placement(self) -> SharedPlacement:
        spec = self._spec
        try:
            return SharedPlacement(self._board.head, spec.placement_file, self._on_storage_failure)
        except (PlacementError, OSError) as error:
            raise StartRefused(error, spec.data_dir) from error

    async def _checkpoint(self, shard: Shard) -> None:
        """Write a checkpoint to spare the next start a replay. Skipped after a second stop request.

        The heartbeat continues meanwhile.
        """
        if self._is_drain_skipped or shard.log.failed is not None:
            return
        done: asyncio.Future[Exception | None] = self._loop.create_future()
        shard.prepare_to_close(done.set_result)
        self._drain_progress.clear()
        second_stop = self._loop.create_task(self._drain_progress.wait())
        seconds = self._spec.settings.drain_seconds
        await asyncio.wait((done, second_stop), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        second_stop.cancel()

    def _close(self, shard: Shard) -> None:
        try:
            shard.close(checkpoint=False)
        except OSError as error:
            logger.error("shard: close failed: %s", error, extra=fields(shard=self._spec.shard))

    def _is_shutdown_requested(self) -> bool:
        """Return whether a signal or the supervisor requested a shutdown. Works while the loop is blocked."""
        return self._shutdown.is_set() or shutdown_requested(self._channel)

    def _on_storage_failure(self, error: OSError) -> None:
        """Stop after a disk failure; a new process recovers from the disk.

        Waiting writes are already refused.
        """
        self._slot.reason = f"the disk failed: {error}"
        self._slot.state = WorkerState.FAILED
        self._exit_code = EXIT_STORAGE_FAILED
        self._loop.call_later(0.05, self._shutdown.set)

    # -- modules that few connections need -----------------------------------------------------------------

    async def _load_protocols(self) -> None:
        """Load HTTP/2 and WebSockets, which are slow to import, without delaying a restart."""
        try:
            for name in _PROTOCOL_MODULES:
                await asyncio.to_thread(import_module, name)
        except Exception:
            logger.exception("worker: HTTP/2 or WebSocket modules not loaded")
        gc.freeze()

    def _open_socket(self, call: Call, key: ApiKey | None) -> None:
        from topicsd.http.websocket.upgrade import WebSockets

        WebSockets(self._dispatch, self).open(call, key)

    # -- connections ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._drain_progress.set()

    def _make_connection(self, first: bytes) -> asyncio.Protocol:
        if is_http2(first):
            # Already loaded, or imported here.
            from topicsd.http.http2.connection import Http2Connection

            return Http2Connection(self._dispatch, self._heads, self, first)
        return Http1Connection(self._dispatch, self._heads, self, first)

    def _answer_link(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        assert self._shard is not None
        # A topic that was moved here is served from now on (`service/shards/arrivals.py`).
        self._dispatch.placement.refresh()
        if kind == LinkKind.REQUEST:
            self._dispatch.answer_link(payload, reply)
        elif kind == LinkKind.LIST_TOPICS:
            self._dispatch.list_topics(payload, reply)
        elif kind in FOLLOW_REQUESTS:
            self._dispatch.streams.answer_link(kind, payload, reply)
        elif kind in ROUTE_REQUESTS:
            self._dispatch.route_rules.answer_link(kind, payload, reply)
        elif kind == LinkKind.MOVE:
            self._dispatch.moves.answer_link(payload, reply)
        elif kind in RELOCATION_REQUESTS:
            self._dispatch.relocation_target.answer_link(kind, payload, reply)
        elif kind in HOLD_REQUESTS:
            self._dispatch.backup_hold.answer_link(kind, reply)
        elif kind == LinkKind.SURVEY:
            self._dispatch.surveys.answer_link(payload, reply)
        elif kind == LinkKind.KEYS:
            self._keys_version, api_keys = decode_keys_message(payload)
            self._dispatch.change_keys(parse_keys(api_keys))
            reply(b"taken")
        else:
            reject(kind, payload, reply)

    def _check_timeouts(self, connections: list[Connection] | None = None) -> None:
        """Check the timeouts of all connections, `CHECKS_PER_TURN` in each turn of the loop.

        `connections` are the connections left to check.
        """
        if connections is None:
            connections = list(self._connections)
        now = self._clock.monotonic()
        for connection in connections[-CHECKS_PER_TURN:]:
            if connection in self._connections:
                connection.check_timeouts(now)
        del connections[-CHECKS_PER_TURN:]
        if connections:
            self._loop.call_soon(self._check_timeouts, connections)
        else:
            self._loop.call_later(TIMEOUT_CHECK_SECONDS, self._check_timeouts)

    # -- the end -------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        """Request a stop. A second request, whatever sent the first, skips the wait for clients."""
        if self._shutdown.is_set():
            self._is_drain_skipped = True
            self._drain_progress.set()
        self._shutdown.set()

    async def _drain(self) -> None:
        """Accept nothing new and answer the requests already read, within `drain_seconds`."""
        seconds: float = self._spec.settings.drain_seconds
        started = self._clock.monotonic()
        self._slot.connections = len(self._connections)
        if self._slot.state is WorkerState.READY:
            self._slot.state = WorkerState.DRAINING
        else:
            seconds = min(seconds, FAILED_DRAIN_SECONDS)
        await self._receiver.finish()
        self._dispatch.drain()
        if self._connections:
            # Requests sent before the stop are read in the next turns, and answered as the last of their
            # connection. Twice, because a late timer fires before the sockets are polled.
            for _ in range(2):
                await asyncio.sleep(IN_TRANSIT_SECONDS)
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections and not self._is_drain_skipped:
                    self._drain_progress.clear()
                    await self._drain_progress.wait()
                # Requests over the links are answered as long as another worker may send them.
                await self._dispatch.wait_until_idle()
                self._slot.connections = len(self._connections)
                while not self._is_drain_skipped and self._may_receive_requests(started):
                    self._drain_progress.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._drain_progress.wait(), IN_TRANSIT_SECONDS / 2)

    def _may_receive_requests(self, started: float) -> bool:
        """Return whether another worker may still send requests for this shard.

        When all workers are stopped together, some learn of it later than others.
        """
        is_recent = self._clock.monotonic() - started < STOP_NOTICE_SECONDS
        return self._peers.has_draining_peer() or (is_recent and self._peers.has_ready_peer())

    # -- the board -----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._publisher.beat_on_timer()
        if self._slot.state in (WorkerState.READY, WorkerState.DRAINING):
            self._publish()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _publish(self) -> None:
        assert self._shard is not None
        self._peers.refresh()
        self._publisher.publish(self._shard, self._dispatch.handlers.counts)
        if self._service is not None:
            self._service.publish(self._slot)
        self._slot.connections = len(self._connections)
        self._slot.forwarded_total = self._dispatch.remote_count
        self._slot.misplaced_total = self._dispatch.misplaced_count
        self._slot.lagging_streams = self._dispatch.lagging_count
        self._slot.topic_streams = self._dispatch.streams.topic_streams.count
        self._slot.topic_searches = self._dispatch.streams.finders.count
        relocations = self._dispatch.relocations
        self._slot.topics_moved_total = relocations.moved_count
        self._slot.topic_moves_failed_total = relocations.failed_count
        self._slot.move_pause_us = int(relocations.last_pause_ms * 1000)
        self._slot.receiver_pauses_total = self._receiver.pause_count
        webhooks = self._dispatch.streams.webhook_counts
        self._slot.webhook_requests_total = webhooks.requests
        self._slot.webhook_failures_total = webhooks.failures
        self._slot.webhook_dead_batches_total = webhooks.dead_batches
        self._slot.webhooks_open = webhooks.open_breakers


def main() -> int:
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=Spec)
    # Threads wait for the disk, but their work between two calls must not block the loop for milliseconds.
    sys.setswitchinterval(SWITCH_SECONDS)
    set_up_logging(spec.settings.log, spec.process_name)

    async def run() -> int:
        return await Worker(spec).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
