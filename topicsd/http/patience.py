"""How long a connection is waited for; and the last seconds of one that was refused.

Lanes are asked now and then (`check_patience`), with the time, so nothing here starts a timer.

Must not know: requests.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final, Protocol, cast

# A head has to come through in this time, and what a client is to read has to move.
PATIENCE_SECONDS: Final = 10.0
# A body has to keep this pace, once the same time has gone by.
BODY_BYTES_A_SECOND: Final = 1024
IDLE_SECONDS: Final = 75.0
LINGER_SECONDS: Final = 2.0
# `tcpi_bytes_acked` of the kernel's `struct tcp_info`.
_TCP_INFO_BYTES: Final = 256
_ACKED_AT: Final = 120
_ACKED_BYTES = struct.Struct("@Q")


class Connection(Protocol):
    """What a worker does with each of its connections, whichever lane has it."""

    def check_patience(self, now: float) -> None: ...

    def drain(self) -> None: ...


class Connections(Protocol):
    """All connections of the process."""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


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
    except (OSError, struct.error):
        # No TCP, or a kernel that does not say.
        return -transport.get_write_buffer_size()


class Lingering(asyncio.Protocol):
    """A connection behind its last answer: what still comes is dropped until the client ends too.

    To close with something unread would reset the connection, and the client might never see the answer.
    """

    def __init__(
        self, transport: asyncio.Transport, connections: Connections, monotonic: Callable[[], float]
    ) -> None:
        self._transport = transport
        self._connections = connections
        self._since = monotonic()
        self._outflow = Outflow()
        self._outflow.begin(transport, self._since)
        if transport.is_closing():
            return
        connections.opened(self)
        transport.set_protocol(self)
        transport.write_eof()
        transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.closed(self)

    def check_patience(self, now: float) -> None:
        if self._transport.get_write_buffer_size():
            if self._outflow.is_stuck(self._transport, now):
                self._transport.abort()
        elif now - self._since > LINGER_SECONDS:
            self._transport.close()

    def drain(self) -> None:
        pass
