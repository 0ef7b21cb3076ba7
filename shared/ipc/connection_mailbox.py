"""A worker's mailbox: where the other workers put connections that belong to it.

A datagram socket with an abstract name, as links have. A message is what was read of a connection, and its
descriptor.

M1  Nobody connects and nobody waits: a worker that is gone, or whose mailbox is full, is told at once by the
    kernel (`send_connection_to` is False), and the sender keeps its connection.
M2  Only of the same user: the kernel says with each message who sent it, and what others send is closed.
M3  Not the channel from the front process: if workers held its sending end, none would read its end when the
    front process dies (`handoff.py`, H4). Nor through the front process: it answers what it cannot place,
    and a client that has asked nothing is to be told nothing.
M4  As in `handoff.py`, H1: the sender has written all that it had to write. A connection in the mailbox of a
    worker that is killed ends with it, as those do that the worker has.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from shared.ipc.handoff import DATA_BYTES_MAX, Handed
from shared.ipc.link import address_of

RECEIVED_AT_ONCE_MAX: Final = 64
_DESCRIPTOR: Final = struct.Struct("i")
_CREDENTIALS: Final = struct.Struct("3i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_DESCRIPTOR.size) + socket.CMSG_SPACE(_CREDENTIALS.size)
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class Mailbox:
    """OSError when another process has the name: the worker of this shard still lives."""

    def __init__(self, namespace: str, shard: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(_mailbox_of(namespace, shard))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Handed]:
        """What is there now, so many at most that others get their turn."""
        received: list[Handed] = []
        for _ in range(RECEIVED_AT_ONCE_MAX):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(DATA_BYTES_MAX, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
            except (BlockingIOError, InterruptedError):
                break
            fd, uid = _sent_along(ancillary)
            if fd is None:
                continue
            if uid == os.getuid():
                received.append(Handed(fd, data))
            else:
                os.close(fd)
        return received

    def close(self) -> None:
        self._socket.close()


class Postman:
    """Puts connections into the mailboxes of other workers."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send_connection_to(self, shard: int, fd: int, data: bytes) -> bool:
        """False when the shard is gone or full, and nothing happened. After True the copy here is closed."""
        assert len(data) <= DATA_BYTES_MAX
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(fd))]
        try:
            self._socket.sendmsg([data], rights, _SEND_FLAGS, _mailbox_of(self._namespace, shard))
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _mailbox_of(namespace: str, shard: int) -> str:
    return address_of(namespace, f"{shard}/mailbox")


def _sent_along(ancillary: list[tuple[int, int, bytes]]) -> tuple[int | None, int]:
    """The descriptor, and the user of who sent it."""
    fd, uid = None, -1
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS and len(payload) >= _DESCRIPTOR.size:
            fd = int(_DESCRIPTOR.unpack_from(payload)[0])
        elif kind == socket.SCM_CREDENTIALS and len(payload) >= _CREDENTIALS.size:
            uid = int(_CREDENTIALS.unpack_from(payload)[1])
    return fd, uid
