"""The acceptors as seen by the supervisor: their processes, sockets and counters.

A1  The supervisor keeps every listening socket open, so connections in the backlog of a dead acceptor are not
    reset. While an acceptor is missing, not ready or without a heartbeat, the supervisor accepts in its
    place, so no client waits for an acceptor that crashes repeatedly.
A2  All acceptors pass connections that no worker answers through one channel, whose receiving end is here.
A3  The counts of ended acceptors are kept, so that no total decreases.
A4  An acceptor inherits the channels to the workers. It receives those of shards that are added later over
    its own channel, again until it has published that it has them. No connection is placed at a new shard
    before (`has_all_channels`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from router.accept.acceptor import SPEC_VARIABLE
from router.accept.worker_channels import silence_ms
from router.supervision.process_pool import PoolTimes, ProcessPool, StartParameters
from router.supervision.worker_process import module_command
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import HandoffMessage, channel_pair, receive_connections, send_connection
from shared.runtime.clock import Clock

ACCEPTOR_COMMAND: Final = module_command("router.accept.acceptor")
# The end of an acceptor takes as long as its lingering closes.
DRAIN_SECONDS: Final = 2.0


class Listeners(NamedTuple):
    sockets: Sequence[socket.socket]
    are_passed: bool
    """Another process passed the sockets and holds them too; else each acceptor has its own."""

    def of(self, number: int) -> Sequence[socket.socket]:
        return self.sockets if self.are_passed else self.sockets[number : number + 1]


class AcceptorCounts(NamedTuple):
    accepted: int
    handed_over: int
    refused: int


class AcceptorPool(ProcessPool):
    """The acceptor processes and the channel on which they pass connections to the supervisor.

    `worker_channels` are the sending ends of the workers' channels, to which new ones are appended;
    `broker_channels` those of the brokers.
    `on_control` receives the connections that acceptors pass on. `accept_from` makes the supervisor accept
    from exactly the given listening sockets.
    """

    kind = "acceptor"
    number_field = "acceptor"
    variable = SPEC_VARIABLE

    def __init__(
        self,
        count: int,
        clock: Clock,
        environment: Mapping[str, str],
        listeners: Listeners,
        workers_board: Board,
        worker_channels: Sequence[socket.socket],
        broker_channels: Sequence[socket.socket],
        instance: str,
        placement_file: str,
        log: str,
        cors_origins: str,
        on_control: Callable[[socket.socket, bytes], object],
        accept_from: Callable[[Sequence[socket.socket]], None],
        times: PoolTimes,
    ) -> None:
        times = times._replace(drain_seconds=min(times.drain_seconds, DRAIN_SECONDS))
        super().__init__(Board.create(count), clock, ACCEPTOR_COMMAND, environment, times)
        self._listeners = listeners
        self._workers_board_fd = workers_board.fd
        self._worker_channels = worker_channels
        self._broker_channels = broker_channels
        self._instance = instance
        self._placement_file = placement_file
        self._log = log
        self._cors_origins = cors_origins
        self._on_control = on_control
        self._accept_from = accept_from
        self._ended_counts = AcceptorCounts(0, 0, 0)
        self._control_sender, self._control_receiver = channel_pair()
        asyncio.get_running_loop().add_reader(self._control_receiver.fileno(), self._receive_passed_on)

    def start_parameters(self, number: int) -> StartParameters:
        listener_fds = [one.fileno() for one in self._listeners.of(number)]
        control_fd = self._control_sender.fileno()
        worker_channel_fds = [channel.fileno() for channel in self._worker_channels]
        broker_channel_fds = [channel.fileno() for channel in self._broker_channels]
        spec: dict[str, object] = {
            "number": number,
            "acceptors": len(self),
            "workers_board_fd": self._workers_board_fd,
            "listener_fds": listener_fds,
            "owns_listeners": not self._listeners.are_passed,
            "worker_channel_fds": worker_channel_fds,
            "broker_channel_fds": broker_channel_fds,
            "control_fd": control_fd,
            "instance": self._instance,
            "placement_file": self._placement_file,
            "fresh_seconds": self._times.fresh_seconds,
            "log": self._log,
            "cors_origins": self._cors_origins,
        }
        channel_fds = (*worker_channel_fds, *broker_channel_fds)
        return StartParameters(spec, (self._workers_board_fd, control_fd, *listener_fds, *channel_fds))

    def on_returned(self, number: int, handed: list[HandoffMessage]) -> None:
        """Close channels that an acceptor did not receive; they are sent again (A4)."""
        for message in handed:
            os.close(message.fd)

    def has_all_channels(self) -> bool:
        """Return whether no acceptor lacks the channel of a worker."""
        count = len(self._worker_channels)
        return all(
            slot.channels == count if slot.state is WorkerState.READY else slot.state is WorkerState.GONE
            for slot in self.board
        )

    def _send_channels(self) -> None:
        for slot, own_channel in zip(self.board, self.senders, strict=True):
            number = slot.channels
            if slot.state is WorkerState.READY and number < len(self._worker_channels):
                send_connection(own_channel, self._worker_channels[number].fileno(), b"%d" % number)

    def on_tick(self) -> None:
        """Make the supervisor accept in place of every acceptor that does not accept now."""
        self._send_channels()
        fresh_ms = self._times.fresh_seconds * 1000
        missing = [
            number
            for number, slot in enumerate(self.board)
            if slot.state is not WorkerState.READY or silence_ms(slot, self._clock) > fresh_ms
        ]
        # Passed sockets are shared by all acceptors, so each is listed once.
        self._accept_from(
            list(dict.fromkeys(one for number in missing for one in self._listeners.of(number)))
        )

    def before_clear(self, slot: Slot) -> None:
        self._ended_counts = _sum(self._ended_counts, _counts(slot))

    def counts(self) -> AcceptorCounts:
        total = self._ended_counts
        for slot in self.board:
            total = _sum(total, _counts(slot))
        return total

    def waiting_count(self) -> int:
        return sum(slot.connections for slot in self.board)

    async def drain(self) -> bool:
        """Drain the acceptors, then receive every connection that they had passed on."""
        is_orderly = await super().drain()
        while self._receive_passed_on():
            pass
        return is_orderly

    def close(self) -> None:
        super().close()
        asyncio.get_running_loop().remove_reader(self._control_receiver.fileno())
        self._control_sender.close()
        self._control_receiver.close()

    def _receive_passed_on(self) -> bool:
        """Receive the connections that acceptors passed on; return whether there were any."""
        messages = receive_connections(self._control_receiver)
        for handed in messages:
            connection = socket.socket(fileno=handed.fd)
            connection.setblocking(False)
            self._on_control(connection, handed.data)
        return bool(messages)


def _counts(slot: Slot) -> AcceptorCounts:
    return AcceptorCounts(slot.accepted_total, slot.handed_over_total, slot.refused_total)


def _sum(one: AcceptorCounts, other: AcceptorCounts) -> AcceptorCounts:
    return AcceptorCounts(
        one.accepted + other.accepted, one.handed_over + other.handed_over, one.refused + other.refused
    )
