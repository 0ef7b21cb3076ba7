"""An answer and the end of the connection, in a way that the client gets to read the answer.

Closing a socket in which something unread lies makes the kernel send a reset, which may overtake the answer.
So after the answer only our half is closed, and what still comes is read and thrown away until the client
closes too, for a second at most. Neither their number nor what one may send in that second costs memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

LINGER_SECONDS: Final = 1.0
LINGERING_MAX: Final = 1000
_DISCARDED_BYTES: Final = 64 << 10


class LastWords:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        self._all_read = asyncio.Event()

    def say(self, connection: socket.socket, answer: bytes, lingers: bool = True) -> None:
        """Send the answer to a connection to which nothing was sent yet, and close it; never waits.

        Without lingering only what the client sent so far is read, and its descriptor is free at once.
        """
        try:
            # All of it: the buffer of a fresh connection holds more than any refusal.
            connection.send(answer, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
            return
        if not lingers or len(self._lingering) >= LINGERING_MAX:
            with contextlib.suppress(OSError):
                connection.recv(_DISCARDED_BYTES, socket.MSG_DONTWAIT)
            connection.close()
            return
        self._lingering[connection] = self._loop.call_later(LINGER_SECONDS, self._close, connection)
        self._loop.add_reader(connection.fileno(), self._discard, connection)

    async def read(self) -> None:
        """Until every client has read what was said to it, or has had the time for it."""
        if self._lingering:
            self._all_read.clear()
            await self._all_read.wait()

    def close(self) -> None:
        for connection in list(self._lingering):
            self._close(connection)

    def _discard(self, connection: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                is_over = not connection.recv(_DISCARDED_BYTES)
            except ConnectionError:
                is_over = True
            if is_over:
                self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        timer = self._lingering.pop(connection)
        timer.cancel()
        self._loop.remove_reader(connection.fileno())
        connection.close()
        if not self._lingering:
            self._all_read.set()
