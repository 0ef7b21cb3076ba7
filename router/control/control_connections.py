"""All connections that the front process keeps for itself, from their first request to their end."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from router.accept.placer import Placer
from router.control.control_app import ControlApp
from router.control.control_gate import ControlGate, Place

CROSSING_SECONDS: Final = 0.05


class ControlConnections:
    def __init__(self, app: ControlApp, placer: Placer, place: Place, body_bytes_max: int) -> None:
        self._app = app
        self._placer = placer
        self._place = place
        self._body_bytes_max = body_bytes_max
        self._loop = asyncio.get_running_loop()
        self._gates: set[ControlGate] = set()
        self._adopting: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def count(self) -> int:
        return len(self._gates)

    def adopt(self, connection: socket.socket, data: bytes) -> bool:
        """Take a connection, with what was read of it; there is always room."""
        task = self._loop.create_task(self._adopt(connection, data))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)
        return True

    async def close(self) -> None:
        """End the idle ones now and the others with their answer."""
        self._is_closing = True
        if self._adopting:
            await asyncio.gather(*self._adopting)
        if self._gates:
            # What was sent before the stop is read in the next turns, and answered as the last of its
            # connection. Twice, because a timer that is late fires before the sockets are asked.
            for gate in self._gates:
                gate.is_closing = True
            for _ in range(2):
                await asyncio.sleep(CROSSING_SECONDS)
        for gate in list(self._gates):
            gate.close()

    async def _adopt(self, connection: socket.socket, data: bytes) -> None:
        gate = ControlGate(
            self._app, self._placer, self._place, data, self._body_bytes_max, self._gates.discard
        )
        # A request that is there when the server begins to end is answered, the last one of its connection.
        gate.is_closing = self._is_closing
        self._gates.add(gate)
        try:
            await self._loop.connect_accepted_socket(lambda: gate, connection)
        except OSError:
            self._gates.discard(gate)
            connection.close()
