"""The hand-over of an accepted connection to another process, with the bytes already read.

The two ends are a pair of Unix sockets of type SEQPACKET: a message arrives whole or not at all, and the
descriptor is part of it. A message is

::

    0      1
    +------+-----------------------------------------+
    | type | data, at most 65,535 bytes              |    + one descriptor with type CONNECTION
    +------+-----------------------------------------+
    CONNECTION 0x43 'C'   the data is what was read from the connection
    DRAIN      0x44 'D'   no data: finish the open requests, and end

H1  Only a connection with no unsent output may be handed over: closing the sender's copy discards what it
    had not sent.
H2  A message sent and not yet received is in the queue of the receiving end. Every process that holds that
    end can receive it, also concurrently: each message is delivered to one of them.
H3  A receiver that is out of descriptors still receives the message, and the kernel closes the connection; it
    is counted as lost. A receiver should therefore stop receiving before it runs out; the sender then refuses
    the waiting connections with a response.
H4  When all copies of the sending end are closed, the receiver reads the end of the channel after all
    messages.
"""

from __future__ import annotations

import errno
import logging
import resource
import select
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

CONNECTION: Final = b"C"
DRAIN: Final = b"D"
DATA_BYTES_MAX: Final = (1 << 16) - 1
RECEIVED_AT_ONCE_MAX: Final = 64
NO_DESCRIPTOR: Final = -1

# The kernel doubles it, bounded by net.core.wmem_max. About 400 small messages fit.
_CHANNEL_BUFFER_BYTES: Final = 1 << 20

_DESCRIPTOR = struct.Struct("i")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_DESCRIPTOR.size)
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
# ETOOMANYREFS: this user has as many descriptors in flight as it may have open.
_FULL: Final = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})


class ChannelClosed(Exception):
    """The sending end is closed and all its messages are received."""


class HandoffMessage(NamedTuple):
    """A received message: a connection, whose descriptor the receiver now owns, or a drain."""

    fd: int
    data: bytes
    is_drain: bool = False
    """Whether the message is a drain: finish the open requests, and end. It has no `fd`."""


def _log_lost() -> None:
    logger.error("hand-over: connection lost: out of file descriptors")


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return the sending and the receiving end; children inherit neither by default."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender.setblocking(False)
    receiver.setblocking(False)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BUFFER_BYTES)
    return sender, receiver


def send_connection(channel: socket.socket, fd: int, data: bytes) -> bool:
    """Hand a connection over; return False and do nothing when the channel is full.

    The caller closes its own copy after True. OSError when the other end is closed.
    """
    assert len(data) <= DATA_BYTES_MAX
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(fd))]
    return _send(channel, [CONNECTION, data], rights)


def send_drain(channel: socket.socket) -> bool:
    """Ask the receiver to finish and end; return False when the channel is full."""
    return _send(channel, [DRAIN], [])


def receive_connections(
    channel: socket.socket, count_max: int = RECEIVED_AT_ONCE_MAX, on_lost: Callable[[], None] = _log_lost
) -> list[HandoffMessage]:
    """Return at most `count_max` messages that have arrived, without waiting.

    The limit gives other work its turn. `on_lost` is called for each connection that the kernel closed
    because this process has no free descriptor.
    """
    received: list[HandoffMessage] = []
    for _ in range(count_max):
        try:
            message, ancillary, flags, _ = channel.recvmsg(
                DATA_BYTES_MAX + 1, _ANCILLARY_BYTES, _RECEIVE_FLAGS
            )
        except (BlockingIOError, InterruptedError):
            break
        except ConnectionResetError:
            message = b""
        if not message:
            # The end can be read again: the messages before it are handled first.
            if not received:
                raise ChannelClosed
            break
        if message[:1] == DRAIN:
            received.append(HandoffMessage(NO_DESCRIPTOR, b"", is_drain=True))
            continue
        assert message[:1] == CONNECTION, f"unknown message type {message[:1]!r}"
        fd = _descriptor(ancillary)
        if fd is None:
            assert flags & socket.MSG_CTRUNC
            on_lost()
        else:
            received.append(HandoffMessage(fd, message[1:]))
    return received


def shutdown_requested(channel: socket.socket) -> bool:
    """Return whether the sender is closed or the next message is a drain; receive nothing."""
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    if poll.poll(0):
        return True
    try:
        return channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == DRAIN
    except OSError:
        return False


def _send(channel: socket.socket, parts: list[bytes], rights: list[tuple[int, int, bytes]]) -> bool:
    try:
        channel.sendmsg(parts, rights, _SEND_FLAGS)
    except OSError as error:
        if error.errno in _FULL:
            return False
        raise
    return True


def _descriptor(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(payload) >= _DESCRIPTOR.size:
            (fd,) = _DESCRIPTOR.unpack_from(payload)
            return int(fd)
    return None


def first_reserved_descriptor(reserved_max: int) -> int:
    """Return the first descriptor number that connections do not take: half are theirs at least."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 30
    return limit - min(reserved_max, limit // 2)
