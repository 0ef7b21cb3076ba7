"""An acceptor: the process that accepts connections, reads request lines and hands over.

With `TOPICS_FRONTS=1` the supervisor is the acceptor and uses the same `AcceptLoop` and `Front`. An acceptor
passes a connection that no worker answers to the supervisor, in the same way as it hands others to workers.

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
from router.accept.connection_router import Front
from router.accept.placer import Placer
from router.accept.worker_channels import ShardDoors
from shared.contract.watch_id import WatchIds
from shared.ipc.board import Board, WorkerState
from shared.ipc.handoff import ChannelClosed, receive_connections, send_connection
from shared.runtime.clock import SystemClock
from shared.runtime.log_setup import set_up_logging

logger = logging.getLogger("router.accept.acceptor")

SPEC_VARIABLE: Final = "TOPICSD_ACCEPTOR"
BEAT_SECONDS: Final = 0.5


class AcceptorSpec(msgspec.Struct, frozen=True):
    """The parameters that the supervisor passes to an acceptor at its start."""

    number: int
    acceptors: int
    channel_fd: int
    """Carries only the drain message, and its end means that the supervisor has died."""
    board_fd: int
    """The board of the acceptors."""
    workers_board_fd: int
    listener_fds: list[int]
    owns_listeners: bool
    """No process outside the server holds the listening sockets."""
    door_fds: list[int]
    """The sending ends of the workers' channels."""
    control_fd: int
    instance: str
    fresh_seconds: float
    log: str


class Acceptor:
    def __init__(self, spec: AcceptorSpec) -> None:
        self._spec = spec
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._slot = Board.attach(spec.board_fd, spec.acceptors).slot(spec.number)
        self._channel = socket.socket(fileno=spec.channel_fd)
        self._control = socket.socket(fileno=spec.control_fd)
        board = Board.attach(spec.workers_board_fd, len(spec.door_fds))
        doors = [socket.socket(fileno=fd) for fd in spec.door_fds]
        self._front = Front(
            ShardDoors(board, self._clock, spec.fresh_seconds, doors),
            self._clock,
            self._pass_on,
            Placer(WatchIds(bytes.fromhex(spec.instance), len(doors))),
        )
        self._accept_loop = AcceptLoop(self._front.accepted)
        self._ending = asyncio.Event()
        self._is_orphan = False

    async def run(self) -> int:
        self._slot.pid = os.getpid()
        self._loop.add_reader(self._channel.fileno(), self._listen_to_supervisor)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        self._accept_loop.open([socket.socket(fileno=fd) for fd in self._spec.listener_fds])
        # Objects made during the start are long-lived; exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self._slot.state = WorkerState.READY
        self._beat()
        logger.info("acceptor %d accepts connections", self._spec.number)
        await self._ending.wait()
        self._slot.state = WorkerState.DRAINING
        await self._accept_loop.close(is_last=self._is_orphan and self._spec.owns_listeners)
        self._front.stop()
        await self._front.said_all()
        self._front.close()
        self._tell_counts()
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

    def _listen_to_supervisor(self) -> None:
        try:
            words = receive_connections(self._channel)
        except ChannelClosed:
            logger.info("the supervisor is gone; this acceptor ends")
            self._is_orphan = True
            words = []
        if words or self._is_orphan:
            self._loop.remove_reader(self._channel.fileno())
            self._ending.set()

    def _beat(self) -> None:
        self._slot.beat_ms = int(self._clock.monotonic() * 1000)
        self._tell_counts()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _tell_counts(self) -> None:
        slot, front, accept_loop = self._slot, self._front, self._accept_loop
        slot.accepted_total = accept_loop.accepted_count
        slot.handed_over_total = front.handed_over_count
        slot.refused_total = front.refused_count + accept_loop.refused_count
        slot.connections = front.waiting_count


def main() -> int:
    spec = msgspec.json.decode(os.environ[SPEC_VARIABLE], type=AcceptorSpec)
    set_up_logging(spec.log, f"front-{spec.number:02d}")

    async def run() -> int:
        return await Acceptor(spec).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
