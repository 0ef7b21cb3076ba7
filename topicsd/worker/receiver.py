"""Connections that come from the front process, or from other workers: received, and given to a lane, while
there is room for them.

D1  The log needs descriptors to go on: a file that cannot be opened is a failed write. So a part of what
    the process may have is kept free, and no connection is received while only that part is left. What comes
    then waits in the channel, and behind it at the front process, which turns away who waits too long.
D2  The kernel gives out the lowest descriptor that is free. So the number of a new one tells, exactly and at
    no cost, whether all below it are taken.
D3  The word to end is heard also while nothing is received: it waits behind connections, but the end of the
    front process itself is seen at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable

from shared.ipc.connection_mailbox import Mailbox
from shared.ipc.handoff import ChannelClosed, Handed, is_told_to_end, receive_connections

logger = logging.getLogger("topicsd.worker")

DESCRIPTORS_KEPT_MAX = 512
# Also in one go no more than what is kept, of the least that a process can be given.
RECEIVED_AT_ONCE = 16
LOOK_AGAIN_SECONDS = 0.1


def descriptors_for_connections() -> int:
    """The number from which on descriptors are kept for the log."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 30
    return limit - min(DESCRIPTORS_KEPT_MAX, limit // 2)


class Adoption:
    """`on_end` is called when the front process says that it is time to end, or is gone; maybe twice."""

    def __init__(
        self,
        channel: socket.socket,
        make_lane: Callable[[bytes], asyncio.Protocol],
        on_end: Callable[[], None],
        descriptors_max: int | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        self._channel = channel
        self._mailbox = mailbox
        self._make_lane = make_lane
        self._on_end = on_end
        self._descriptors_max = descriptors_for_connections() if descriptors_max is None else descriptors_max
        self._loop = asyncio.get_running_loop()
        self._adopting: set[asyncio.Task[None]] = set()
        """Held, because the loop does not."""
        self._is_paused = False
        self._is_finished = False
        self.pause_count = 0

    def start(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._receive)
        if self._mailbox is not None:
            self._loop.add_reader(self._mailbox.fileno(), self._receive_moved, self._mailbox)

    def _receive(self) -> None:
        try:
            received = receive_connections(self._channel, RECEIVED_AT_ONCE)
        except ChannelClosed:
            logger.info("the front process is gone")
            self._loop.remove_reader(self._channel.fileno())
            self._on_end()
            return
        if any(one.drains for one in received):
            self._on_end()
        self._take([one for one in received if not one.drains])

    def _receive_moved(self, mailbox: Mailbox) -> None:
        self._take(mailbox.receive())

    def _take(self, received: list[Handed]) -> None:
        for one in received:
            task = self._loop.create_task(self._adopt(one))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)
        if any(one.fd >= self._descriptors_max for one in received):
            self._pause()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._channel.fileno())
        if self._mailbox is not None:
            self._loop.remove_reader(self._mailbox.fileno())

    async def finish(self) -> None:
        """Receive no more; what was received is with its lane then."""
        self._is_finished = True
        self._stop_reading()
        if self._mailbox is not None:
            # Nobody takes back what waits in it.
            while moved := self._mailbox.receive():
                self._take(moved)
            self._mailbox.close()
            self._mailbox = None
        if self._adopting:
            await asyncio.wait(self._adopting)

    async def _adopt(self, handed: Handed) -> None:
        connection = socket.socket(fileno=handed.fd)
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(lambda: self._make_lane(handed.data), connection)
        except OSError:
            connection.close()

    # -- room ----------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self._is_paused:
            return  # The channel and the mailbox had something in the same turn.
        self._is_paused = True
        self.pause_count += 1
        logger.warning("no connections are taken over: what descriptors are left are for the log")
        self._stop_reading()
        self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        if self._is_finished:
            return
        if self._has_room():
            self._is_paused = False
            self.start()
            return
        if is_told_to_end(self._channel):
            self._on_end()
        self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _has_room(self) -> bool:
        try:
            probe = os.dup(self._channel.fileno())
        except OSError:
            return False
        os.close(probe)
        return probe < self._descriptors_max
