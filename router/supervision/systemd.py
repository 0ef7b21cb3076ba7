"""The protocol of systemd: readiness, status and watchdog out, listening sockets in.

The protocol is small, so it is implemented here without a dependency: datagrams of `NAME=value` lines to the
socket that NOTIFY_SOCKET names, and listening sockets from descriptor 3 on, whose number LISTEN_FDS holds.

Without systemd every function here does nothing, so callers need no check. A notification never stops or
delays the server: one that cannot be sent at once is dropped, so important ones are repeated.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from shared.runtime.log_setup import fields

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"

LISTEN_FDS_START: Final = 3

Notify = Callable[[str], None]

logger = logging.getLogger(__name__)


class ListenError(Exception):
    """A passed descriptor is not a usable listening socket; the text is for a person."""


def status(text: str) -> str:
    """Return the line that `systemctl status` shows.

    >>> status("replaying, 40 %")
    'STATUS=replaying, 40 %'
    """
    return "STATUS=" + " ".join(text.split())


def extend_timeout(seconds: float) -> str:
    """Ask for that much more time, from now, for the start or the stop in progress.

    >>> extend_timeout(2.5)
    'EXTEND_TIMEOUT_USEC=2500000'
    """
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}"


def open_notify(environ: Mapping[str, str]) -> Notify:
    """Return a function that sends lines to systemd, or does nothing without NOTIFY_SOCKET."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return _noop
    # A name that begins with @ is abstract, which the kernel writes with a zero byte.
    address = "\0" + path[1:] if path.startswith("@") else path

    def notify(lines: str) -> None:
        # Notifications are rare, so no socket is kept open for them.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(lines.encode(), address)
            except OSError as error:
                logger.warning("systemd: notification dropped: %s", error, extra=fields(lines=lines))

    return notify


def take_listen_sockets(environ: MutableMapping[str, str], pid: int | None = None) -> list[socket.socket]:
    """Return the sockets passed to this process; raise ListenError for an unusable one.

    The variables are removed, so that no child process takes them as its own, and the sockets are not
    inherited.
    """
    receiver = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if receiver != str(os.getpid() if pid is None else pid) or not count.isdecimal():
        return []
    listeners: list[socket.socket] = []
    try:
        for fd in range(LISTEN_FDS_START, LISTEN_FDS_START + int(count)):
            listeners.append(_listening_socket(fd))
    except ListenError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listening_socket(fd: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise ListenError(f"LISTEN_FDS: descriptor {fd} must be a socket: {error.strerror}") from None
    is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6) and listener.type == socket.SOCK_STREAM
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        # Not closed: the descriptor belongs to the process that passed it by mistake.
        listener.detach()
        raise ListenError(f"LISTEN_FDS: descriptor {fd} must be a listening TCP socket")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def _noop(lines: str) -> None:
    del lines
