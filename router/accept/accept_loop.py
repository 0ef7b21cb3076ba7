"""The accept loop of the listening sockets.

The loop calls `accept` itself instead of `create_server`. Most first requests have arrived when their
connection is accepted, so the connection is read and handed over without a transport. Running out of
descriptors is handled too: one descriptor is kept in reserve. It is closed, the next connection is accepted
in its place, receives 503 and is closed, so clients do not hang in the backlog and this process does not
spin.

TCP_NODELAY and TCP_USER_TIMEOUT are set on the listening socket, and accepted connections inherit them.
Without TCP_USER_TIMEOUT the kernel keeps the connection of a dead machine for 15 minutes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

from router.accept.lingering_close import BUSY
from router.accept.listening import refuse_new

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE_MAX: Final = 64
PAUSE_SECONDS: Final = 0.1
HANDSHAKE_SECONDS: Final = 0.05
# Longer than a stream waits for a client that does not read (30 s), so that its last event can still be sent.
UNACKNOWLEDGED_MS_MAX: Final = 60_000

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_MEMORY: Final = frozenset({errno.ENOBUFS, errno.ENOMEM})


class AcceptLoop:
    def __init__(self, on_accepted: Callable[[socket.socket], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._on_accepted = on_accepted
        self._spare_fd: int | None = None
        self.accepted_count = 0
        self.refused_count = 0

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Accept from `listeners` from now on, and from no other sockets."""
        before, self._listeners = self._listeners, list(listeners)
        for listener in before:
            if listener not in self._listeners:
                self._loop.remove_reader(listener.fileno())
        if self._spare_fd is None:
            self._keep_spare()
        for listener in self._listeners:
            if listener not in before:
                listener.setblocking(False)
                if listener.family in (socket.AF_INET, socket.AF_INET6):
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
                self._loop.add_reader(listener.fileno(), self._accept, listener)

    async def close(self, is_last: bool) -> None:
        """Stop accepting and close the listeners.

        With `is_last`, no other process holds the sockets: first accept the connections that wait in the
        backlog or are in a handshake, since closing the sockets would reset them.
        """
        if is_last:
            for listener in self._listeners:
                refuse_new(listener)
            await asyncio.sleep(HANDSHAKE_SECONDS)
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            while is_last and self._accept_one(listener):
                pass
            listener.close()
        self._listeners.clear()
        if self._spare_fd is not None:
            os.close(self._spare_fd)
            self._spare_fd = None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            if not self._accept_one(listener):
                return

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accept one connection; return whether another attempt is useful."""
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                return self._refuse_one(listener)
            if error.errno in _NO_MEMORY:
                self._pause(listener)
                return False
            # The client disconnected before its connection was accepted.
            return True
        connection.setblocking(False)
        self.accepted_count += 1
        self._on_accepted(connection)
        return True

    def _refuse_one(self, listener: socket.socket) -> bool:
        if self._spare_fd is None:
            self._pause(listener)
            return False
        os.close(self._spare_fd)
        self._spare_fd = None
        try:
            connection, _ = listener.accept()
        except OSError as error:
            is_over = isinstance(error, BlockingIOError) or error.errno in _NO_DESCRIPTOR
            if error.errno in _NO_DESCRIPTOR:
                self._pause(listener)
        else:
            is_over = False
            if self.refused_count == 0:
                logger.error("connection: refused: no file descriptor is free; raise the limit (LimitNOFILE)")
            self.refused_count += 1
            _refuse(connection)
        self._keep_spare()
        return not is_over

    def _keep_spare(self) -> None:
        try:
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._spare_fd = None

    def _pause(self, listener: socket.socket) -> None:
        """Stop polling the listener for a moment; it stays readable, so an immediate retry spins."""
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(PAUSE_SECONDS, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        if listener not in self._listeners:
            return
        if self._spare_fd is None:
            self._keep_spare()
        self._loop.add_reader(listener.fileno(), self._accept, listener)


def _refuse(connection: socket.socket) -> None:
    # No descriptor is free for a lingering close. Read what the client has sent, so that the close does not
    # reset the response.
    try:
        connection.setblocking(False)
        connection.send(BUSY, socket.MSG_NOSIGNAL)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(64 << 10)
    except OSError:
        pass
    finally:
        connection.close()
