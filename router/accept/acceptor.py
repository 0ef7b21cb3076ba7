"""An acceptor: the process that accepts connections, reads request lines and hands over.

An acceptor passes a connection that no worker answers to the supervisor, in the same way as it hands others
to workers. With `TOPICS_FRONTS=1` the supervisor is the acceptor, with the same `AcceptLoop` and
`ConnectionRouter`.

E1  An acceptor owns nothing: its listening sockets and the channels to the workers belong to the supervisor,
    and it may die at any moment. Only the connections that it was reading are lost then.
E2  On a drain message it stops accepting and leaves the backlog to the supervisor, which accepts in its place
    by then. When the supervisor has died, the acceptor accepts the backlog itself, and then ends.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from typing import Final

import msgspec
import uvloop

from router.accept.accept_loop import AcceptLoop
from router.accept.connection_router import ConnectionRouter
from router.accept.placer import Placer
from router.accept.worker_channels import WorkerChannels
from shared.contract.watch_id import WatchIds
from shared.http.cors import Origins
from shared.ipc.board import Board, WorkerState
from shared.ipc.handoff import ChannelClosed, HandoffMessage, receive_connections, send_connection
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.clock import SystemClock
from shared.runtime.log_setup import fields, set_up_logging

logger = logging.getLogger("router.accept.acceptor")

SPEC_VARIABLE: Final = "TOPICSD_ACCEPTOR"
BEAT_SECONDS: Final = 0.5


class AcceptorSpec(msgspec.Struct, frozen=True):
    """The parameters that the supervisor passes to an acceptor at its start."""

    number: int
    acceptors: int
    channel_fd: int
    """Carries the drain message and channels to new workers; its end means that the supervisor has died."""
    board_fd: int
    """The board of the acceptors."""
    workers_board_fd: int
    listener_fds: list[int]
    owns_listeners: bool
    """No process outside the server holds the listening sockets."""
    worker_channel_fds: list[int]
    """The sending ends of the workers' channels."""
    broker_channel_fds: list[int]
    """Those of the brokers."""
    control_fd: int
    instance: str
    placement_file: str
    fresh_seconds: float
    log: str
    cors_origins: str


class Acceptor:
    def __init__(self, spec: AcceptorSpec) -> None:
        self._spec = spec
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._slot = Board.attach(spec.board_fd).slot(spec.number)
        self._channel = socket.socket(fileno=spec.channel_fd)
        self._control = socket.socket(fileno=spec.control_fd)
        board = Board.attach(spec.workers_board_fd)
        self._stop_requested = asyncio.Event()
        self._worker_channels = [socket.socket(fileno=fd) for fd in spec.worker_channel_fds]
        self._connection_router = ConnectionRouter(
            WorkerChannels(
                board,
                self._clock,
                spec.fresh_seconds,
                self._worker_channels,
                [socket.socket(fileno=fd) for fd in spec.broker_channel_fds],
            ),
            self._clock,
            self._pass_on,
            Placer(
                WatchIds(bytes.fromhex(spec.instance)),
                # The supervisor accepts until another acceptor reads the file successfully.
                SharedPlacement(board.head, spec.placement_file, lambda error: self._stop_requested.set()),
            ),
            Origins(spec.cors_origins),
        )
        self._accept_loop = AcceptLoop(self._connection_router.accepted)
        self._is_orphan = False

    async def run(self) -> int:
        self._slot.pid = os.getpid()
        self._loop.add_reader(self._channel.fileno(), self._on_supervisor_message)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_requested.set)
        self._accept_loop.open([socket.socket(fileno=fd) for fd in self._spec.listener_fds])
        # Objects made during the start are long-lived; exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._slot.channels = len(self._worker_channels)
        self._slot.state = WorkerState.READY
        self._beat()
        logger.info("acceptor: accepting connections", extra=fields(acceptor=self._spec.number))
        await self._stop_requested.wait()
        self._slot.state = WorkerState.DRAINING
        await self._accept_loop.close(is_last=self._is_orphan and self._spec.owns_listeners)
        self._connection_router.stop()
        await self._connection_router.flush()
        self._connection_router.close()
        self._publish_counts()
        return 0

    def _pass_on(self, connection: socket.socket, data: bytes) -> bool:
        """Pass a connection to the supervisor.

        Return False when the channel is full, or the supervisor has died; then this process ends soon too.
        """
        try:
            if not send_connection(self._control, connection.fileno(), data):
                return False
        except ConnectionError:
            return False
        connection.close()
        return True

    def _on_supervisor_message(self) -> None:
        try:
            messages = receive_connections(self._channel)
        except ChannelClosed:
            logger.info("acceptor: stopping: the supervisor has died")
            self._is_orphan = True
            messages = []
        for message in messages:
            if not message.is_drain:
                self._add_channel(message)
        if any(message.is_drain for message in messages) or self._is_orphan:
            self._loop.remove_reader(self._channel.fileno())
            self._stop_requested.set()

    def _add_channel(self, message: HandoffMessage) -> None:
        """Keep the channel to a new worker, unless it arrived before."""
        channel = socket.socket(fileno=message.fd)
        if int(message.data) == len(self._worker_channels):
            self._worker_channels.append(channel)
            self._slot.channels = len(self._worker_channels)
        else:
            channel.close()

    def _beat(self) -> None:
        self._slot.beat_ms = int(self._clock.monotonic() * 1000)
        self._publish_counts()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _publish_counts(self) -> None:
        slot, router, accept_loop = self._slot, self._connection_router, self._accept_loop
        slot.accepted_total = accept_loop.accepted_count
        slot.handed_over_total = router.handed_over_count
        slot.refused_total = router.refused_count + accept_loop.refused_count
        slot.connections = router.waiting_count


def main() -> int:
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=AcceptorSpec)
    set_up_logging(spec.log, f"front-{spec.number:02d}")

    async def run() -> int:
        return await Acceptor(spec).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
