"""A stream on an HTTP/1.1 connection of its own: the response ends with the connection.

Data that the client sends meanwhile is ignored and not kept. Only the transport buffers what was written,
and it reports when that is too much; a final message is still written then. The kernel's buffer is bounded
too: by default it takes 4 MiB for each client that does not read, and reports a slow reader only when a
third of that has been sent, which may be later than any timeout.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shared.http.client_speed import Outflow
from topicsd.http.http1.timeouts import Connections
from topicsd.stream.stream import noop

# The limit of unsent bytes in the transport, and in the kernel.
BUFFER_BYTES_MAX: Final = 64 << 10


def bound_buffers(transport: asyncio.Transport) -> None:
    """Bound the buffers of a transport, for a client that does not read.

    Data that was sent and is not acknowledged does not count.
    """
    transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # A socket that is not TCP has no such option; the kernel then has its own bound.
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BUFFER_BYTES_MAX)


class ConnectionStream(asyncio.Protocol):
    __slots__ = (
        "_connections",
        "_is_lost",
        "_monotonic",
        "_outflow",
        "_transport",
        "is_paused",
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
        """Set by `close`, to check that the rest is still being sent."""
        self._is_lost = False
        self.is_paused = False
        self.on_ready: Callable[[], None] = noop
        self.on_lost: Callable[[], None] = noop
        connections.opened(self)
        bound_buffers(transport)
        transport.set_protocol(self)
        transport.resume_reading()
        transport.write(head)

    # -- calls of the writer -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        # A remote writer learns later that the connection is lost; the transport treats a write after that as
        # an error.
        if not self._is_lost:
            self._transport.write(data)

    def close(self) -> None:
        self.on_lost = self.on_ready = noop
        if self._is_lost:
            return
        self._outflow = Outflow()
        self._outflow.begin(self._transport, self._monotonic())
        self._transport.close()

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> bool:
        """Close the connection: a client that half-closes might still listen, but most are gone."""
        return False

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.on_ready()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._connections.closed(self)
        on_lost, self.on_lost, self.on_ready = self.on_lost, noop, noop
        on_lost()

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_timeouts(self, now: float) -> None:
        """Abort a closed stream whose rest is not being sent.

        While it is open, the writer decides how long it may be paused.
        """
        if self._outflow is not None and self._outflow.is_stuck(self._transport, now):
            self._transport.abort()

    def drain(self) -> None:
        """Do nothing: the writer ends the stream with a final message."""
