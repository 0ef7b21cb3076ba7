"""The receiver of connections that the acceptor hands over.

D1  The log needs file descriptors: a file that cannot be opened is a failed write. So part of the
    process's descriptors is reserved, and no connection is received while only that part is left. Further
    connections wait in the channel, and after that at the acceptor, which refuses connections that wait
    too long.
D2  The kernel assigns the lowest free descriptor. So the number of a new descriptor says, exactly and at
    no cost, whether all lower ones are in use.
D3  A shutdown is noticed also while receiving is paused: the request may wait in the channel after
    connections, but the end of the supervisor is noticed at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from shared.ipc.handoff import (
    ChannelClosed,
    HandoffMessage,
    first_reserved_descriptor,
    receive_connections,
    shutdown_requested,
)

logger = logging.getLogger("topicsd.worker")

DESCRIPTORS_RESERVED_MAX = 512
# At most the descriptors that are reserved under the lowest possible limit.
RECEIVED_AT_ONCE = 16
RESUME_CHECK_SECONDS = 0.1


class HandOverReceiver:
    """The receiver of one worker.

    `on_end` is called when the supervisor requests a shutdown or is gone; possibly twice.
    """

    def __init__(
        self,
        channel: socket.socket,
        make_connection: Callable[[bytes], asyncio.Protocol],
        on_end: Callable[[], None],
        descriptors_max: int | None = None,
    ) -> None:
        self._channel = channel
        self._make_connection = make_connection
        self._on_end = on_end
        if descriptors_max is None:
            descriptors_max = first_reserved_descriptor(DESCRIPTORS_RESERVED_MAX)
        self._descriptors_max = descriptors_max
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        """The tasks in progress, since the loop holds only weak references to tasks."""
        self._is_finished = False
        self.pause_count = 0

    def start(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            received = receive_connections(self._channel, RECEIVED_AT_ONCE)
        except ChannelClosed:
            logger.info("supervisor: exited: this worker drains and stops")
            self._loop.remove_reader(self._channel.fileno())
            self._on_end()
            return
        for one in received:
            if one.is_drain:
                self._on_end()
                continue
            task = self._loop.create_task(self._connect(one))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        if any(one.fd >= self._descriptors_max for one in received):
            self._pause()

    async def finish(self) -> None:
        """Receive no more connections; those received are with their protocol on return."""
        self._is_finished = True
        self._loop.remove_reader(self._channel.fileno())
        if self._connecting:
            await asyncio.wait(self._connecting)

    async def _connect(self, handed: HandoffMessage) -> None:
        connection = socket.socket(fileno=handed.fd)
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_connection(handed.data), connection)
        except OSError:
            connection.close()

    # -- descriptors ---------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self.pause_count += 1
        logger.warning(
            "connections: receiving paused: the remaining file descriptors are reserved for the log"
        )
        self._loop.remove_reader(self._channel.fileno())
        self._loop.call_later(RESUME_CHECK_SECONDS, self._resume_if_room)

    def _resume_if_room(self) -> None:
        if self._is_finished:
            return
        if self._has_room():
            self.start()
            return
        if shutdown_requested(self._channel):
            self._on_end()
        self._loop.call_later(RESUME_CHECK_SECONDS, self._resume_if_room)

    def _has_room(self) -> bool:
        try:
            probe = os.dup(self._channel.fileno())
        except OSError:
            return False
        os.close(probe)
        return probe < self._descriptors_max
