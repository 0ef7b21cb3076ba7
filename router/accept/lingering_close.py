"""Lingering close: send a final response and close without a TCP reset.

Closing a socket with unread input makes the kernel send a reset, which may overtake the response. So only our
half of the connection is closed after the response, and further input is discarded until the client closes
too, for at most one second. At most `LINGERING_MAX` connections linger, and discarded input takes no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from shared.contract.errors import not_ready
from shared.http.answer import closing_refusal

LINGER_SECONDS: Final = 1.0
LINGERING_MAX: Final = 1000
_DISCARDED_BYTES: Final = 64 << 10

BUSY: Final = closing_refusal(not_ready("the server has too many connections"))


class LingeringClose:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        self._all_read = asyncio.Event()

    def answer_and_close(self, connection: socket.socket, answer: bytes, is_lingering: bool = True) -> None:
        """Send the only response of a connection and close it, without waiting.

        Without `is_lingering`, only the input that has arrived is read, and the descriptor is free at once.
        """
        try:
            # The send is complete: the send buffer of a new connection is larger than any refusal.
            connection.send(answer, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
            return
        if not is_lingering or len(self._lingering) >= LINGERING_MAX:
            with contextlib.suppress(OSError):
                connection.recv(_DISCARDED_BYTES, socket.MSG_DONTWAIT)
            connection.close()
            return
        self._lingering[connection] = self._loop.call_later(LINGER_SECONDS, self._close, connection)
        self._loop.add_reader(connection.fileno(), self._discard, connection)

    async def wait_closed(self) -> None:
        """Wait until every client has read its response, or its time has passed."""
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
