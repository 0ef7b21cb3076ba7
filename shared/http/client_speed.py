"""The minimum speed of clients: when they send a request, and when they read a response.

The owner of a connection calls this periodically with the time, so this module starts no timers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

# Maximum time for a head to arrive, and for a response to make no progress.
CLIENT_TIMEOUT_SECONDS: Final = 10.0
# Minimum rate of a body, after the same time has passed.
BODY_BYTES_PER_SECOND: Final = 1024
IDLE_SECONDS: Final = 75.0
# `tcpi_bytes_acked` of the kernel's `struct tcp_info`.
_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120
_ACKED_BYTES = struct.Struct("@Q")


def is_too_slow(waiting_seconds: float, received_bytes: int, is_body: bool) -> bool:
    """Return whether `received_bytes` of a request in `waiting_seconds` is too slow."""
    late_seconds = waiting_seconds - CLIENT_TIMEOUT_SECONDS
    return late_seconds > 0 and not (is_body and received_bytes > late_seconds * BODY_BYTES_PER_SECOND)


class Outflow:
    """The progress of a client in reading a response.

    Progress is measured by the bytes that the client acknowledged. The process's own buffer drains in steps
    of several MiB, because the kernel accepts more only when much of its own buffer is free.
    """

    def __init__(self) -> None:
        self._acked_bytes = -1
        self._since = 0.0

    def begin(self, transport: asyncio.Transport, now: float) -> None:
        self._acked_bytes = _acked_bytes(transport)
        self._since = now

    def is_stuck(
        self, transport: asyncio.Transport, now: float, timeout_seconds: float = CLIENT_TIMEOUT_SECONDS
    ) -> bool:
        acked_bytes = _acked_bytes(transport)
        if acked_bytes != self._acked_bytes:
            self._acked_bytes, self._since = acked_bytes, now
        return now - self._since > timeout_seconds


def _acked_bytes(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    if connection is None:
        return -transport.get_write_buffer_size()
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_ACKED_BYTES.unpack_from(info, _ACKED_AT)[0])
    except (OSError, ValueError, struct.error):
        # Not TCP, a closed connection, or a kernel without the field.
        return -transport.get_write_buffer_size()
