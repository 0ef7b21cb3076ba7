"""The worker's interface to its connections, and the lingering close.

Connections check their own timeouts when the worker calls `check_timeouts` with the time;
`shared/http/client_speed.py` defines what is too slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from shared.http.client_address import client_address
from shared.http.client_speed import Outflow

LINGER_SECONDS: Final = 2.0


class Connection(Protocol):
    """The interface of a connection to the worker, whatever its protocol."""

    def check_timeouts(self, now: float) -> None: ...

    def drain(self) -> None: ...


class Connections(Protocol):
    """The connections of the process."""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class ClientConnection:
    """A connection of a client, with its transport."""

    _transport: asyncio.Transport

    @property
    def address(self) -> str:
        """Return the address of the client."""
        return client_address(self._transport)


class Lingering(asyncio.Protocol):
    """A connection after its last response: input is dropped until the client closes too.

    Closing with unread input would reset the connection, and the client might never see the response.
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

    def check_timeouts(self, now: float) -> None:
        if self._transport.get_write_buffer_size():
            if self._outflow.is_stuck(self._transport, now):
                self._transport.abort()
        elif now - self._since > LINGER_SECONDS:
            self._transport.close()

    def drain(self) -> None:
        pass
