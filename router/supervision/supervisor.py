"""The supervisor as a whole: its parts, the order of its start and the order of its end.

Start: listen (so that early clients wait and are not refused), then the board, the workers and the control
application, then accepting, then the port file. End: stop accepting, place or refuse the open connections,
drain the workers, then close everything else.

S1  The listening sockets, the board and the workers belong to this process alone. With `fronts` above 1,
    acceptors accept at its sockets, and it accepts itself only in place of a missing acceptor and while they
    end; otherwise it is the acceptor.
S2  The first SIGTERM or SIGINT drains, the second skips the wait for the deadline, the third kills.
S3  Nothing is left over: the board has no name, the links have no file, and workers end when they read the
    end of their channel. The port file of a killed process is removed by the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import uvloop

from router.accept.accept_loop import AcceptLoop
from router.accept.acceptor_pool import AcceptorPool, Listeners
from router.accept.connection_router import ConnectionRouter
from router.accept.listening import (
    ListenRefused,
    address_text,
    addresses_of,
    open_listeners,
    port_of,
    remove_port_file,
    write_port_file,
)
from router.accept.placer import Placer
from router.control.backup_points import BackupPoints
from router.control.control import ControlEndpoints
from router.control.control_app import ControlApp
from router.control.control_connections import ControlConnections
from router.control.link_requests import SupervisorLink
from router.control.metrics_table import ConnectionCounts
from router.control.route_answers import RouteAnswers
from router.control.route_registry import RouteRegistry
from router.control.watch_home import WatchHome
from router.resharding.placement_writer import PlacementWriter
from router.resharding.reshard import Directories, Reshard
from router.resharding.shard_requests import ShardRequests
from router.supervision import systemd
from router.supervision.key_reload import KeyReload, LoadSettings
from router.supervision.named_keys import NamedKeys
from router.supervision.process_pool import PoolTimes, ProcessPool
from router.supervision.worker_pools import BrokerPool, WorkerPool
from router.supervision.worker_process import module_command
from shared.contract.api_keys import ApiKeys
from shared.contract.errors import Refusal
from shared.contract.watch_id import WatchIds
from shared.http.cors import Origins
from shared.ipc.board import KEYS_VERSION, PLACEMENT_VERSION, Board, WorkerState
from shared.ipc.exact_counts import TOPICS, WATCH_SESSIONS, ReservedCount, StreamCount
from shared.ipc.handoff import HandoffMessage
from shared.ipc.key_file import NO_KEYS, KeyStorage, key_text
from shared.ipc.link import SUPERVISOR, address_of
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.log_setup import fields
from shared.runtime.program_version import program_version
from shared.settings.brokers import chosen_brokers
from shared.settings.settings import Settings
from shared.settings.store_url import store_url_of

logger = logging.getLogger(__name__)

WORKER_COMMAND: Final = module_command("topicsd.worker.worker")
EXIT_STOPPED: Final = 0
EXIT_CANNOT_RUN: Final = 1
NOTIFY_SECONDS: Final = 0.5
STDERR_FD: Final = 2
# A replay or a drain may take longer than systemd waits; more time is requested while it lasts.
MORE_SECONDS: Final = 30.0


def run(
    settings: Settings,
    shard_count: int,
    instance: str,
    namespace: str,
    listen_sockets: Sequence[socket.socket] = (),
    placement_file: str = "",
    directories: Directories | None = None,
    notify: Callable[[str], None] = lambda lines: None,
    worker_command: Sequence[str] = WORKER_COMMAND,
    times: PoolTimes | None = None,
    load_settings: LoadSettings = lambda: "no settings source to read again",
    keys: KeyStorage = NO_KEYS,
) -> int:
    """Run the server until it is stopped; return the exit code of the process.

    `placement_file` is empty and `directories` is None for a server without a directory.
    """
    try:
        sockets = list(listen_sockets) or open_listeners(settings.host, settings.port, settings.fronts)
    except ListenRefused as error:
        logger.error("listen: failed: %s", error)
        return EXIT_CANNOT_RUN
    if settings.port_file:
        # Left by a process that was killed: it must not be read before this process has written its own.
        remove_port_file(settings.port_file)
    _raise_descriptor_limit()
    times = times or PoolTimes(drain_seconds=settings.drain_seconds)
    listeners = Listeners(sockets, are_passed=bool(listen_sockets))
    supervisor = _Supervisor(
        settings,
        shard_count,
        instance,
        namespace,
        placement_file,
        directories,
        listeners,
        notify,
        worker_command,
        times,
        load_settings,
        keys,
    )
    return uvloop.run(supervisor.run())


class _Supervisor:
    def __init__(
        self,
        settings: Settings,
        shard_count: int,
        instance: str,
        namespace: str,
        placement_file: str,
        directories: Directories | None,
        listeners: Listeners,
        notify: Callable[[str], None],
        worker_command: Sequence[str],
        times: PoolTimes,
        load_settings: LoadSettings,
        key_storage: KeyStorage,
    ) -> None:
        self._settings = settings
        self._key_storage = key_storage
        self._load_settings = load_settings
        self._shard_count = shard_count
        self._instance = instance
        self._namespace = namespace
        self._placement_file = placement_file
        self._directories = directories
        self._listeners = listeners
        self._notify = notify
        self._worker_command = worker_command
        self._times = times
        self._clock = SystemClock()

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop_signal)
        self._is_on_terminal = os.isatty(STDERR_FD)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            self._board = Board.create(self._shard_count, chosen_brokers(self._settings))
        except OSError as error:
            logger.error("board: cannot create shared memory: %s", error.strerror)
            return EXIT_CANNOT_RUN
        self._placement = SharedPlacement(self._board.head, self._placement_file)
        self._board.head[PLACEMENT_VERSION] = self._placement.current.version
        self._build()
        await self._app.start()
        try:
            await self._link.start(self._control, self._routes, self._reshard, self._named_keys)
        except OSError as error:
            logger.error(
                "link: cannot listen on %s: %s", address_of(self._namespace, SUPERVISOR)[1:], error.strerror
            )
            return EXIT_CANNOT_RUN
        self._pool.start()
        self._brokers.start()
        if self._acceptors is None:
            self._accept_loop.open(self._listeners.sockets)
        else:
            self._acceptors.start()
        port = port_of(self._listeners.sockets)
        try:
            if self._settings.port_file:
                write_port_file(self._settings.port_file, port)
        except OSError as error:
            logger.error("port file: cannot write %s: %s", self._settings.port_file, error.strerror)
            await self._shut_down()
            return EXIT_CANNOT_RUN
        state = fields(
            address=addresses_of(self._listeners.sockets),
            port=port,
            shards=self._shard_count,
            brokers=self._board.broker_count,
            fronts=self._settings.fronts,
        )
        logger.info("server: listening", extra=state)
        # Objects made during the start are long-lived; exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._reshard.start()
        self._named_keys.start()
        notifying = self._loop.create_task(self._notify_systemd())
        try:
            await self._stop_requested.wait()
            return await self._shut_down()
        finally:
            notifying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await notifying

    def _build(self) -> None:
        settings, clock = self._settings, self._clock
        now_ms = clock.now_ms()
        all_keys = key_text(self._key_storage.keys, now_ms, settings.api_keys)
        # Read at each start of a worker, so a change applies to the next worker started.
        self._worker_spec: dict[str, object] = {
            "data_dir": os.path.abspath(settings.data_dir),
            "instance": self._instance,
            "namespace": self._namespace,
            "settings": msgspec.to_builtins(msgspec.structs.replace(settings, api_keys=all_keys)),
            "placement_file": self._placement_file,
        }
        if self._board.broker_count:
            self._worker_spec["address"] = settings.node_address or self._own_address()
        self._brokers = BrokerPool(*self._pool_arguments(), self._times)
        self._pool = WorkerPool(*self._pool_arguments(), self._times, self._brokers.senders)
        topics = ReservedCount(self._board, settings.max_topics, TOPICS)
        sessions = ReservedCount(self._board, settings.max_watch_sessions, WATCH_SESSIONS)
        placements = PlacementWriter(
            self._board,
            self._placement,
            None if self._directories is None else self._directories.write_placement,
            self._pool.hold_starts,
            self._stop_requested.set,
        )
        home = WatchHome(self._pool.channels, self._placement, sessions)
        streams = StreamCount(settings.max_sse_connections, settings.max_sse_connections_per_key)
        self._link = SupervisorLink(self._namespace, self._board, topics, streams, home, placements)
        registry = RouteRegistry(
            self._pool.channels, self._board, self._placement, self._link.ask, settings.max_routers
        )
        self._routes = RouteAnswers(registry, clock)
        self._reshard = Reshard(
            self._board,
            self._placement,
            placements,
            self._pool,
            ShardRequests(self._pool, self._link.ask),
            self._directories,
            lambda: self._acceptors is None or self._acceptors.has_all_channels(),
            clock,
        )
        self._control = ControlEndpoints(
            self._pool,
            clock,
            program_version(),
            self._link.list_shard,
            self._routes,
            BackupPoints(self._link.ask, self._board, self._pool.is_serving, clock, settings.memory),
            self._connection_counts,
            store_url_of(settings),
            self._reshard.answer,
            self._brokers if self._board.broker_count else None,
            lambda: self._key_reload.stored,
        )
        self._origins = Origins(settings.cors_origins)
        self._key_reload = KeyReload(
            settings,
            self._owner_numbers,
            self._load_settings,
            self._link.send_keys,
            self._apply_keys,
            self._serves,
            clock,
            self._key_storage.keys,
        )
        self._named_keys = NamedKeys(self._key_reload, clock, self._key_storage.write)
        self._app = ControlApp(self._control, self._key_reload.keys, settings.probe_auth, self._origins)
        self._build_connections()

    def _pool_arguments(self) -> _PoolArguments:
        return _PoolArguments(
            self._board,
            self._clock,
            self._worker_command,
            os.environ,
            self._worker_spec,
            lambda owner, handed: self._connection_router.refuse_returned(owner, handed),
        )

    def _own_address(self) -> str:
        """Return where other nodes reach this one, if they reach the address that it listens on."""
        return f"http://{address_text(self._settings.host, port_of(self._listeners.sockets))}"

    def _build_connections(self) -> None:
        settings, clock = self._settings, self._clock
        placer = Placer(WatchIds(bytes.fromhex(self._instance)), self._placement)
        self._controls = ControlConnections(
            self._app,
            placer,
            lambda connection, data, placement: self._connection_router.place(connection, data, placement),
            settings.max_body_bytes,
        )
        self._connection_router = ConnectionRouter(
            self._pool.channels, clock, self._controls.receive, placer, self._origins
        )
        self._accept_loop = AcceptLoop(self._connection_router.accepted)
        self._acceptors = self._build_acceptors() if settings.fronts > 1 else None

    def _build_acceptors(self) -> AcceptorPool:
        settings = self._settings
        return AcceptorPool(
            settings.fronts,
            self._clock,
            os.environ,
            self._listeners,
            self._board,
            self._pool.senders,
            self._brokers.senders,
            self._instance,
            self._placement_file,
            settings.log,
            settings.cors_origins,
            self._controls.receive,
            self._accept_loop.open,
            self._times,
        )

    def _apply_keys(self, api_keys: str, version: int, keys: ApiKeys) -> None:
        current = msgspec.structs.replace(self._settings, api_keys=api_keys)
        self._worker_spec.update(settings=msgspec.to_builtins(current), keys_version=version)
        self._app.keys = keys
        self._board.head[KEYS_VERSION] = version

    def _serves(self, owner: int) -> bool:
        """Return whether the process answers requests, also if it is slow to answer one just now."""
        return self._board.slot(owner).state in (WorkerState.READY, WorkerState.DRAINING)

    def _connection_counts(self) -> ConnectionCounts:
        """Return the counts of this process and the acceptors; those of acceptors lag up to 0.5 s."""
        accepted, handed_over = self._accept_loop.accepted_count, self._connection_router.handed_over_count
        refused = self._connection_router.refused_count + self._accept_loop.refused_count
        waiting, restarts = self._connection_router.waiting_count, 0
        if self._acceptors is not None:
            counts = self._acceptors.counts()
            accepted += counts.accepted
            handed_over += counts.handed_over
            refused += counts.refused
            waiting += self._acceptors.waiting_count()
            restarts = sum(self._acceptors.restart_count(number) for number in range(len(self._acceptors)))
        return ConnectionCounts(
            accepted=accepted,
            handed_over=max(handed_over, 0),
            refused=refused,
            waiting=waiting,
            control=self._controls.count,
            restarts=restarts,
        )

    def _owner_numbers(self) -> list[int]:
        return [*range(len(self._pool)), *self._board.broker_numbers]

    def _pools(self) -> list[ProcessPool]:
        processes: list[ProcessPool] = [self._pool, self._brokers]
        return processes if self._acceptors is None else [self._acceptors, *processes]

    def _on_hangup(self) -> None:
        """Reload the keys on SIGHUP, or stop when SIGHUP means that the terminal was closed."""
        if self._is_on_terminal and not os.isatty(STDERR_FD):
            self._on_stop_signal()
        elif not self._stop_requested.is_set():
            self._key_reload.reload()

    def _on_stop_signal(self) -> None:
        if self._stop_requested.is_set():
            for pool in self._pools():
                pool.hasten()
        self._stop_requested.set()

    async def _shut_down(self) -> int:
        self._named_keys.close()
        self._key_reload.close()
        await self._reshard.close()
        logger.info("server: stopping: refusing new requests, finishing those in flight")
        self._notify(f"{systemd.STOPPING}\n{systemd.extend_timeout(MORE_SECONDS)}")
        is_orderly = await self._drain_acceptors()
        await self._accept_loop.close(is_last=not self._listeners.are_passed)
        self._connection_router.stop()
        await self._controls.close()
        # Together: workers send requests for shared topics to brokers, and brokers those for other topics to
        # workers. Each of them answers as long as another one that stops has connections.
        is_orderly = all(await asyncio.gather(self._pool.drain(), self._brokers.drain())) and is_orderly
        await self._connection_router.flush()
        await self._app.close()
        self._link.close()
        self._connection_router.close()
        for pool in self._pools():
            pool.close()
        if self._settings.port_file:
            remove_port_file(self._settings.port_file)
        logger.info("server: stopped", extra=fields(orderly=is_orderly))
        return EXIT_STOPPED if is_orderly else EXIT_CANNOT_RUN

    async def _drain_acceptors(self) -> bool:
        """Drain the acceptors while this process accepts in their place, so that no client waits."""
        if self._acceptors is None:
            return True
        self._accept_loop.open(self._listeners.sockets)
        return await self._acceptors.drain()

    async def _notify_systemd(self) -> None:
        """Report readiness and status to systemd; feed the watchdog while all processes beat."""
        is_ready = False
        while True:
            # systemd must not stop the shards that serve because of a shard that does not start.
            state = self._control.ready(allow_degraded=True)
            lines = [systemd.status(self._status(state))]
            if not isinstance(state, Refusal):
                is_ready = True
                lines.append(systemd.READY)
            if not is_ready or self._stop_requested.is_set():
                lines.append(systemd.extend_timeout(MORE_SECONDS))
            if all(pool.all_alive() for pool in self._pools()):
                lines.append(systemd.WATCHDOG)
            self._notify("\n".join(lines))
            await asyncio.sleep(NOTIFY_SECONDS)

    def _status(self, state: dict[str, object] | Refusal) -> str:
        if not isinstance(state, Refusal):
            summary = f"{state['status']}, {state['topics']} topics"
            return f"{summary}: {state['reason']}" if "reason" in state else summary
        if self._pool.is_draining:
            count = len(self._pool.pids()) + len(self._brokers.pids())
            return f"shutting down, waiting for {count} processes"
        return f"replaying, {self._control.replay_progress():.0%}: {state.message}"


class _PoolArguments(NamedTuple):
    """What the pools of workers and of brokers have in common."""

    board: Board
    clock: Clock
    command: Sequence[str]
    environment: Mapping[str, str]
    spec: Mapping[str, object]
    on_returned: Callable[[int, list[HandoffMessage]], None]


def _raise_descriptor_limit() -> None:
    """Raise the descriptor limit to the maximum of this user.

    Every connection takes one descriptor, here and in the workers, which inherit the limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
