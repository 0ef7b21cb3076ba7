"""A worker's mailbox, through which other workers hand over connections that belong to it.

It is a datagram socket with an abstract name, as links have. A message holds the bytes already read from a
connection, and its descriptor.

M1  Mailboxes have no connections and no waiting: the kernel reports at once a worker that is dead or whose
    mailbox is full (`send_connection_to` returns False), and the sender keeps its connection.
M2  Only messages of the same user are accepted: the kernel names the sending user of each message, and
    the descriptors of others are closed.
M3  The mailbox is not the channel from the supervisor: if workers held its sending end, no worker would read
    the end of the channel when the supervisor dies (`handoff.py`, H4). The hand-over does not pass
    through the supervisor either: it answers connections that it cannot place, and a client that has sent no
    request must receive no answer.
M4  As in `handoff.py`, H1: the sender has written everything it had to write. A connection in the mailbox of
    a killed worker ends with the worker, as its other connections do.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from shared.ipc.handoff import DATA_BYTES_MAX, HandoffMessage
from shared.ipc.link import address_of

RECEIVED_AT_ONCE_MAX: Final = 64
_DESCRIPTOR: Final = struct.Struct("i")
_CREDENTIALS: Final = struct.Struct("3i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_DESCRIPTOR.size) + socket.CMSG_SPACE(_CREDENTIALS.size)
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class ConnectionReceiver:
    """The receiving end of a shard; OSError when the worker before it still has the name."""

    def __init__(self, namespace: str, shard: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind(_mailbox_address(namespace, shard))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[HandoffMessage]:
        """Return the connections that have arrived, at most `RECEIVED_AT_ONCE_MAX` in one turn."""
        received: list[HandoffMessage] = []
        for _ in range(RECEIVED_AT_ONCE_MAX):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(DATA_BYTES_MAX, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
            except (BlockingIOError, InterruptedError):
                break
            fd, uid = _descriptor_and_uid(ancillary)
            if fd is None:
                continue
            if uid == os.getuid():
                received.append(HandoffMessage(fd, data))
            else:
                os.close(fd)
        return received

    def close(self) -> None:
        self._socket.close()


class ConnectionSender:
    """The sending end, for the mailboxes of all other workers."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send_connection_to(self, shard: int, fd: int, data: bytes) -> bool:
        """Hand a connection over, or return False when the shard is dead or its mailbox full.

        After True the caller closes its own copy of the descriptor.
        """
        assert len(data) <= DATA_BYTES_MAX
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(fd))]
        try:
            self._socket.sendmsg([data], rights, _SEND_FLAGS, _mailbox_address(self._namespace, shard))
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def _mailbox_address(namespace: str, shard: int) -> str:
    return address_of(namespace, f"{shard}/mailbox")


def _descriptor_and_uid(ancillary: list[tuple[int, int, bytes]]) -> tuple[int | None, int]:
    """Return the descriptor of a message and the user id of its sender."""
    fd, uid = None, -1
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS and len(payload) >= _DESCRIPTOR.size:
            fd = int(_DESCRIPTOR.unpack_from(payload)[0])
        elif kind == socket.SCM_CREDENTIALS and len(payload) >= _CREDENTIALS.size:
            uid = int(_CREDENTIALS.unpack_from(payload)[1])
    return fd, uid
