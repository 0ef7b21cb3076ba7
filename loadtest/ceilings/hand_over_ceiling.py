"""The ceiling of a new connection: one process accepts it and hands it to another.

The accepting process reads, sends the descriptor and the bytes over a Unix socket, and forgets the connection
with `abort`: the kernel has another descriptor of it by then. The worker ends when the accepting process has
ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

import uvloop

from loadtest.ceilings.bare_http import BareHttp, parser, rendered, serve

REQUEST_BYTES_MAX = 65536
ANSWER = rendered(b'{"performance":{"server_total_ms":0.05}}')


class HandOverWorker(BareHttp):
    def take(self, data: bytes, body_at: int, end: int) -> None:
        self.transport.write(ANSWER)


class HandOverAcceptor(asyncio.Protocol):
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        socket.send_fds(self._worker, [data], [self._transport.get_extra_info("socket").fileno()])
        self._transport.abort()


async def work(acceptor: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    acceptor.setblocking(False)
    ended = asyncio.Event()
    receiving: set[asyncio.Task[None]] = set()

    async def receive(fd: int, data: bytes) -> None:
        connection = socket.socket(fileno=fd)
        connection.setblocking(False)
        _, protocol = await loop.connect_accepted_socket(HandOverWorker, connection)
        protocol.data_received(data)

    def on_readable() -> None:
        while not ended.is_set():
            try:
                data, descriptors, _, _ = socket.recv_fds(acceptor, REQUEST_BYTES_MAX, 1)
            except BlockingIOError:
                return
            if not descriptors:
                loop.remove_reader(acceptor.fileno())
                ended.set()
                return
            task = loop.create_task(receive(descriptors[0], data))
            receiving.add(task)
            task.add_done_callback(receiving.discard)

    loop.add_reader(acceptor.fileno(), on_readable)
    await ended.wait()


def main(port_file: str) -> None:
    acceptor, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        worker.close()
        uvloop.run(work(acceptor))
        return
    acceptor.close()
    uvloop.run(serve(lambda: HandOverAcceptor(worker), port_file))
    worker.close()
    os.wait()


if __name__ == "__main__":
    main(parser(__doc__).parse_args().port_file)
