"""A stream on a connection of HTTP/1.1 that it has for itself: the answer ends when the connection does.

What the client sends meanwhile means nothing and is not kept. Nothing but the transport holds what was
written, and it tells when that is too much; a last word is still written then. The kernel holds as little:
left to itself it takes 4 MiB for each client that does not read, and tells of one that reads slowly only
when a third of that has gone, which may be later than anybody waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shared.http.pace import Outflow
from topicsd.http.http1.timeouts import Connections
from topicsd.stream.stream import do_nothing

# More than this is held for nobody.
HELD_BYTES_MAX: Final = 64 << 10


def hold_little(transport: asyncio.Transport) -> None:
    """For a client that does not read. What has left and is not acknowledged does not count."""
    transport.set_write_buffer_limits(high=HELD_BYTES_MAX)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # Where there is no such option, as on a socket that is no TCP, the kernel has its own bound.
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, HELD_BYTES_MAX)


class ConnectionStream(asyncio.Protocol):
    __slots__ = (
        "_connections",
        "_is_lost",
        "_monotonic",
        "_outflow",
        "_transport",
        "is_clogged",
        "on_lost",
        "on_ready",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        connections: Connections,
        monotonic: Callable[[], float],
        head: bytes,
    ) -> None:
        self._transport = transport
        self._connections = connections
        self._monotonic = monotonic
        self._outflow: Outflow | None = None
        """Set when it is closed: whether the rest still leaves."""
        self._is_lost = False
        self.is_clogged = False
        self.on_ready: Callable[[], None] = do_nothing
        self.on_lost: Callable[[], None] = do_nothing
        connections.opened(self)
        hold_little(transport)
        transport.set_protocol(self)
        transport.resume_reading()
        transport.write(head)

    # -- who writes ----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        # Who writes from afar hears later that the connection is lost; to its transport that is a mistake.
        if not self._is_lost:
            self._transport.write(data)

    def close(self) -> None:
        self.on_lost = self.on_ready = do_nothing
        if self._is_lost:
            return
        self._outflow = Outflow()
        self._outflow.begin(self._transport, self._monotonic())
        self._transport.close()

    # -- asyncio's side ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> bool:
        """Who has nothing more to say might still listen, but most that do so are gone."""
        return False

    def pause_writing(self) -> None:
        self.is_clogged = True

    def resume_writing(self) -> None:
        self.is_clogged = False
        self.on_ready()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._connections.closed(self)
        on_lost, self.on_lost, self.on_ready = self.on_lost, do_nothing, do_nothing
        on_lost()

    # -- the process's side --------------------------------------------------------------------------------

    def check_patience(self, now: float) -> None:
        """Who writes knows how long it may be clogged; once it is closed the rest has to leave."""
        if self._outflow is not None and self._outflow.is_stuck(self._transport, now):
            self._transport.abort()

    def drain(self) -> None:
        """Who writes ends it, with a last word."""
