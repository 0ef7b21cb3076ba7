"""How fast a client has to be: with its request, and with reading what it asked for.

Whoever has a connection asks this now and then, with the time, so nothing here starts a timer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

# A head has to come through in this time, and what a client is to read has to move.
PATIENCE_SECONDS: Final = 10.0
# A body has to keep this pace, once the same time has gone by.
BODY_BYTES_A_SECOND: Final = 1024
IDLE_SECONDS: Final = 75.0
# `tcpi_bytes_acked` of the kernel's `struct tcp_info`.
_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120
_ACKED_BYTES = struct.Struct("@Q")


def is_too_slow(waited: float, held: int, is_body: bool) -> bool:
    """Of a request that has been coming for so long, and of which so much is there."""
    late = waited - PATIENCE_SECONDS
    return late > 0 and not (is_body and held > late * BODY_BYTES_A_SECOND)


class Outflow:
    """Whether what a client is to read moves.

    What it has acknowledged tells it: what waits in the process moves in leaps of some MiB, because the
    kernel asks for more only when much of its own buffer is free.
    """

    def __init__(self) -> None:
        self._acked_bytes = -1
        self._since = 0.0

    def begin(self, transport: asyncio.Transport, now: float) -> None:
        self._acked_bytes = _acked_bytes(transport)
        self._since = now

    def is_stuck(
        self, transport: asyncio.Transport, now: float, patience_seconds: float = PATIENCE_SECONDS
    ) -> bool:
        acked_bytes = _acked_bytes(transport)
        if acked_bytes != self._acked_bytes:
            self._acked_bytes, self._since = acked_bytes, now
        return now - self._since > patience_seconds


def _acked_bytes(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    if connection is None:
        return -transport.get_write_buffer_size()
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_ACKED_BYTES.unpack_from(info, _ACKED_AT)[0])
    except (OSError, ValueError, struct.error):
        # No TCP, a connection that is over, or a kernel that does not say.
        return -transport.get_write_buffer_size()
