"""The connections that the supervisor answers itself, from their first request to their end."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from router.accept.placer import Placer
from router.control.control_app import ControlApp
from router.control.control_gate import ControlGate, PlaceConnection

IN_TRANSIT_SECONDS: Final = 0.05


class ControlConnections:
    def __init__(self, app: ControlApp, placer: Placer, place: PlaceConnection, body_bytes_max: int) -> None:
        self._app = app
        self._placer = placer
        self._place = place
        self._body_bytes_max = body_bytes_max
        self._loop = asyncio.get_running_loop()
        self._gates: set[ControlGate] = set()
        self._receiving: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def count(self) -> int:
        return len(self._gates)

    def receive(self, connection: socket.socket, data: bytes) -> bool:
        """Take a connection and the bytes read from it; return True, as there is always room."""
        task = self._loop.create_task(self._receive(connection, data))
        self._receiving.add(task)
        task.add_done_callback(self._receiving.discard)
        return True

    async def close(self) -> None:
        """Close idle connections now, and the others after their responses."""
        self._is_closing = True
        if self._receiving:
            await asyncio.gather(*self._receiving)
        if self._gates:
            # A request sent before the stop is read in the next turns, and answered as the last of its
            # connection. Two waits, because a late timer fires before the sockets are polled.
            for gate in self._gates:
                gate.is_closing = True
            for _ in range(2):
                await asyncio.sleep(IN_TRANSIT_SECONDS)
        for gate in list(self._gates):
            gate.close()

    async def _receive(self, connection: socket.socket, data: bytes) -> None:
        gate = ControlGate(
            self._app, self._placer, self._place, data, self._body_bytes_max, self._gates.discard
        )
        # A request that has arrived when the shutdown begins is answered, as the last of its connection.
        gate.is_closing = self._is_closing
        self._gates.add(gate)
        try:
            await self._loop.connect_accepted_socket(lambda: gate, connection)
        except OSError:
            self._gates.discard(gate)
            connection.close()
