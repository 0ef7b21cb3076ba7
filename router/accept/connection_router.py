"""Connections between accept and hand-over: read until the request line is complete.

F1  Nothing is written to a connection that is handed over, so this process can close its own descriptor of
    it.
F2  The bytes already read are handed over too: a worker begins with the first byte that the client sent.
F3  A connection that cannot be placed is answered and never reset: 503 while its shard is down, 408 when the
    request line is incomplete at the timeout, and on HTTP/2 a GOAWAY that names no processed stream. A
    connection on which the client sent nothing is closed without a response at the timeout.
F4  Bounded: the number of waiting connections, the bytes of each (one line and one read) and their total
    bytes. While a channel is full, its connections wait in order, until their deadlines.
F5  Some descriptors are reserved for other uses than connections, so a dead worker can be restarted during a
    connection flood. The kernel assigns the lowest free descriptor, so the number of a new one shows how many
    are in use.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from router.accept.lingering_close import BUSY, LingeringClose
from router.accept.placer import ANY_BROKER, ANY_WORKER, CONTROL, Placer, refusal_of
from shared.contract.errors import REQUEST_TIMEOUT, Refusal, shutting_down
from shared.http.answer import closing_refusal
from shared.http.cors import Origins
from shared.http.http2_preface import REJECTION, is_http2
from shared.ipc.handoff import DATA_BYTES_MAX, HandoffMessage, first_reserved_descriptor
from shared.runtime.clock import Clock

logger = logging.getLogger(__name__)

HEAD_SECONDS: Final = 10.0
CONNECTIONS_MAX: Final = 10_000
QUEUED_BYTES_MAX: Final = 64 << 20
DESCRIPTORS_RESERVED_MAX: Final = 64
READ_BYTES: Final = 32 << 10
RETRY_SECONDS: Final = 0.005
SWEEP_SECONDS: Final = 0.25
TLS_LOG_SECONDS: Final = 60.0
# The start of a TLS handshake record of any version, and the fatal alert `protocol_version`.
TLS_HELLO: Final = b"\x16\x03"
TLS_ALERT: Final = b"\x15\x03\x01\x00\x02\x02\x46"

NO_ORIGINS: Final = Origins()

_TIMEOUT: Final = closing_refusal(Refusal(REQUEST_TIMEOUT, "the request line was not complete in time"))
_STOPPING: Final = closing_refusal(shutting_down())


class ShardChannels(Protocol):
    """The workers, as `router/accept/worker_channels.py` presents them."""

    def refusal(self, owner: int) -> Refusal | None: ...
    def returned_refusal(self, owner: int) -> Refusal: ...
    def is_retired(self, owner: int) -> bool: ...
    def any_ready(self) -> int | None: ...
    def any_broker(self) -> int | None: ...
    def none_ready(self, is_broker: bool) -> Refusal: ...
    def send(self, owner: int, fd: int, data: bytes) -> bool: ...


class _WaitingConnection:
    """A connection that waits for its request line or for room in a channel."""

    __slots__ = ("connection", "data", "deadline")

    def __init__(self, connection: socket.socket, data: bytes, deadline: float) -> None:
        self.connection = connection
        self.data = data
        self.deadline = deadline


class ConnectionRouter:
    """The connections of this process between accept and placement.

    `on_control` takes a connection whose first request no worker answers, or returns False when it has no
    room now.
    """

    def __init__(
        self,
        shards: ShardChannels,
        clock: Clock,
        on_control: Callable[[socket.socket, bytes], bool],
        placer: Placer,
        origins: Origins = NO_ORIGINS,
        head_seconds: float = HEAD_SECONDS,
        connections_max: int = CONNECTIONS_MAX,
        queued_bytes_max: int = QUEUED_BYTES_MAX,
        descriptors_max: int | None = None,
    ) -> None:
        assert READ_BYTES * 2 <= DATA_BYTES_MAX + 1
        self._shards = shards
        self._clock = clock
        self._on_control = on_control
        self._head_seconds = head_seconds
        self._connections_max = connections_max
        self._queued_bytes_max = queued_bytes_max
        if descriptors_max is None:
            descriptors_max = first_reserved_descriptor(DESCRIPTORS_RESERVED_MAX)
        self._descriptors_max = descriptors_max
        self._loop = asyncio.get_running_loop()
        self._placer = placer
        self._origins = origins
        self._lingering = LingeringClose()
        # In the order of arrival, which is the order of the deadlines.
        self._reading: dict[int, _WaitingConnection] = {}
        self._queues: dict[int, deque[_WaitingConnection]] = {}
        """By owner number, and at `CONTROL` the connections that no worker answers."""
        self._queued_count = 0
        self._queued_bytes = 0
        self._retry: asyncio.TimerHandle | None = None
        self._sweep_timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self._tls_quiet_until = 0.0
        self.handed_over_count = 0
        self.refused_count = 0

    @property
    def waiting_count(self) -> int:
        return len(self._reading) + self._queued_count

    def accepted(self, connection: socket.socket) -> None:
        """Take a non-blocking connection from the accept loop; this object owns it from now on."""
        if connection.fileno() >= self._descriptors_max:
            self._refuse(connection, b"", BUSY, is_lingering=False)
            return
        if self.waiting_count >= self._connections_max:
            self._refuse(connection, b"", BUSY)
            return
        waiting = _WaitingConnection(connection, b"", self._clock.monotonic() + self._head_seconds)
        if not self._read(waiting):
            self._reading[connection.fileno()] = waiting
            self._loop.add_reader(connection.fileno(), self._read, waiting)

    def place(self, connection: socket.socket, data: bytes, placement: int) -> None:
        """Hand over a connection whose request line is in `data`."""
        self._place(
            _WaitingConnection(connection, data, self._clock.monotonic() + self._head_seconds), placement
        )

    def refuse_returned(self, owner: int, handed: list[HandoffMessage]) -> None:
        """Refuse connections that were handed over to a worker which will not receive them.

        Those for a worker that was retired are placed again.
        """
        answer = closing_refusal(self._shards.returned_refusal(owner))
        for one in handed:
            connection = socket.socket(fileno=one.fd)
            connection.setblocking(False)
            self.handed_over_count -= 1
            placement = self._placer.place(one.data) if self._shards.is_retired(owner) else None
            if placement is None:
                self._refuse(connection, one.data, answer)
            else:
                self.place(connection, one.data, placement)

    def stop(self) -> None:
        """Place what can be placed now and refuse the rest. Call it after accepting has stopped."""
        for waiting in list(self._reading.values()):
            self._read(waiting)
        for waiting in list(self._reading.values()):
            self._stop_reading(waiting)
            # A connection that sent nothing is refused too: its request may be in transit and must receive a
            # response.
            self._refuse_waiting(waiting, _STOPPING)
        for queue in self._queues.values():
            while queue:
                self._refuse_waiting(self._next_queued(queue), _STOPPING)

    async def flush(self) -> None:
        """Wait until the refused clients have read their responses, or the time for that has passed."""
        await self._lingering.wait_closed()

    def close(self) -> None:
        self._sweep_timer.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._lingering.close()

    # -- reading the first line ----------------------------------------------------------------------------

    def _read(self, waiting: _WaitingConnection) -> bool:
        """Read from the connection; return True when it needs no more: placed or closed."""
        try:
            data = waiting.connection.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading(waiting)
            waiting.connection.close()
            return True
        waiting.data += data
        if waiting.data.startswith(TLS_HELLO):
            self._stop_reading(waiting)
            self._refuse_tls(waiting)
            return True
        placement = self._placer.place(waiting.data)
        if placement is None:
            return False
        self._stop_reading(waiting)
        self._place(waiting, placement)
        return True

    def _stop_reading(self, waiting: _WaitingConnection) -> None:
        fd = waiting.connection.fileno()
        if self._reading.get(fd) is waiting:
            del self._reading[fd]
            self._loop.remove_reader(fd)

    # -- placing -------------------------------------------------------------------------------------------

    def _place(self, waiting: _WaitingConnection, placement: int) -> None:
        if placement in (ANY_WORKER, ANY_BROKER):
            is_broker = placement == ANY_BROKER
            ready = self._shards.any_broker() if is_broker else self._shards.any_ready()
            if ready is None:
                none_ready = self._shards.none_ready(is_broker)
                self._refuse_waiting(waiting, closing_refusal(refusal_of(waiting.data, none_ready)))
                return
            placement = ready
        target = placement
        refusal = self._refusal(target)
        if refusal is not None:
            self._refuse_waiting(waiting, closing_refusal(refusal))
            return
        queue = self._queues.get(target)
        if queue is None:
            queue = self._queues[target] = deque()
        if queue or not self._send(target, waiting):
            if self._queued_bytes + len(waiting.data) > self._queued_bytes_max:
                self._refuse_waiting(waiting, BUSY)
                return
            queue.append(waiting)
            self._queued_count += 1
            self._queued_bytes += len(waiting.data)
            if self._retry is None:
                self._retry = self._loop.call_later(RETRY_SECONDS, self._retry_queues)

    def _next_queued(self, queue: deque[_WaitingConnection]) -> _WaitingConnection:
        waiting = queue.popleft()
        self._queued_count -= 1
        self._queued_bytes -= len(waiting.data)
        return waiting

    def _refusal(self, target: int) -> Refusal | None:
        return None if target == CONTROL else self._shards.refusal(target)

    def _send(self, target: int, waiting: _WaitingConnection) -> bool:
        if target == CONTROL:
            return self._on_control(waiting.connection, waiting.data)
        if not self._shards.send(target, waiting.connection.fileno(), waiting.data):
            return False
        waiting.connection.close()
        self.handed_over_count += 1
        return True

    def _retry_queues(self) -> None:
        self._retry = None
        for target, queue in self._queues.items():
            if not queue:
                continue
            refusal = self._refusal(target)
            while queue and (refusal is not None or self._send(target, queue[0])):
                waiting = self._next_queued(queue)
                if refusal is not None:
                    self._refuse_waiting(waiting, closing_refusal(refusal))
        if self._queued_count:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._retry_queues)

    # -- turning away --------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        while self._reading:
            waiting = next(iter(self._reading.values()))
            if waiting.deadline > now:
                break
            self._stop_reading(waiting)
            self._give_up(waiting, _TIMEOUT)
        for queue in self._queues.values():
            while queue and queue[0].deadline <= now:
                self._give_up(self._next_queued(queue), BUSY)
        self._sweep_timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _give_up(self, waiting: _WaitingConnection, answer: bytes) -> None:
        if waiting.data:
            self._refuse_waiting(waiting, answer)
        else:
            waiting.connection.close()

    def _refuse_waiting(self, waiting: _WaitingConnection, answer: bytes) -> None:
        self._refuse(waiting.connection, waiting.data, answer)

    def _refuse_tls(self, waiting: _WaitingConnection) -> None:
        now = self._clock.monotonic()
        if now >= self._tls_quiet_until:
            self._tls_quiet_until = now + TLS_LOG_SECONDS
            logger.warning(
                "connection: refused: the client sent TLS to a plain HTTP port; use http://, or put a proxy "
                "that terminates TLS in front"
            )
        self._refuse_waiting(waiting, TLS_ALERT)

    def _refuse(
        self, connection: socket.socket, data: bytes, answer: bytes, is_lingering: bool = True
    ) -> None:
        """Refuse a connection; `data`, read from it, decides between HTTP/1.1 and HTTP/2."""
        self.refused_count += 1
        answer = REJECTION if is_http2(data) else self._origins.answered(data, answer)
        self._lingering.answer_and_close(connection, answer, is_lingering)
