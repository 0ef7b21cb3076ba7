"""Options that accepted connections inherit from the listening socket."""

from __future__ import annotations

import asyncio
import socket

from router.accept.accept_loop import UNACKNOWLEDGED_MS_MAX, AcceptLoop


def test_a_connection_of_a_dead_machine_ends_after_a_minute() -> None:
    async def accept() -> socket.socket:
        accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        accepting = AcceptLoop(accepted.set_result)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepting.open([listener])
            with socket.create_connection(listener.getsockname()):
                connection = await asyncio.wait_for(accepted, 10)
            await accepting.close(is_last=False)
        return connection

    with asyncio.run(accept()) as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS_MAX
