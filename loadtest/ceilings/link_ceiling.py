"""The ceiling of a remote request: one process reads it, another answers over a Unix link.

A link frame is the length of the data (4 bytes), the number of the request (8), and the bytes of the request
or its response; the frames of one turn of the event loop leave in one write. With `--direct` the first
process answers itself: the two figures together give the cost of a remote request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import cast

import uvloop

from loadtest.ceilings.bare_http import BareHttp, parser, rendered, serve

_FRAME = struct.Struct("<IQ")
ANSWER = rendered(
    b'{"topic":"x","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1,"created":false,'
    b'"deduped":false,"durability":"disk","performance":{"server_total_ms":0.05}}'
)


class CeilingLink(asyncio.Protocol):
    """One end of a link; it calls `on_frame` with the number and the bytes of each frame."""

    def __init__(self, on_frame: Callable[[CeilingLink, int, bytes], None], ended: asyncio.Event) -> None:
        self._on_frame = on_frame
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._frames: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()

    def send(self, number: int, data: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(_FRAME.pack(len(data), number))
        self._frames.append(data)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        self._transport.writelines(frames)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at = 0
        while len(data) - at >= _FRAME.size:
            length, number = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + length
            if len(data) < end:
                break
            self._on_frame(self, number, data[at + _FRAME.size : end])
            at = end
        self._rest = data[at:]


class Direct(BareHttp):
    def take(self, data: bytes, body_at: int, end: int) -> None:
        self.transport.write(ANSWER)


class RemoteRequests:
    """The requests that were sent to the owner and are not answered yet."""

    def __init__(self) -> None:
        self.link: CeilingLink | None = None
        self._number = 0
        self._waiting: dict[int, asyncio.Transport] = {}

    def send(self, request: bytes, client: asyncio.Transport) -> None:
        assert self.link is not None
        self._number += 1
        self._waiting[self._number] = client
        self.link.send(self._number, request)

    def on_answered(self, link: CeilingLink, number: int, answer: bytes) -> None:
        self._waiting.pop(number).write(answer)


class RemoteHttp(BareHttp):
    def __init__(self, requests: RemoteRequests) -> None:
        super().__init__()
        self._requests = requests

    def take(self, data: bytes, body_at: int, end: int) -> None:
        self._requests.send(data[:end], self.transport)


async def take(port_file: str, owner: socket.socket, is_direct: bool) -> None:
    requests = RemoteRequests()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    _, link = await loop.create_unix_connection(lambda: CeilingLink(requests.on_answered, ended), sock=owner)
    requests.link = link
    await serve(Direct if is_direct else lambda: RemoteHttp(requests), port_file)


async def own(taker: socket.socket) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(
        lambda: CeilingLink(lambda link, number, request: link.send(number, ANSWER), ended), sock=taker
    )
    await ended.wait()


def main(port_file: str, is_direct: bool) -> None:
    taker, owner = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.fork() == 0:
        owner.close()
        uvloop.run(own(taker))
        return
    taker.close()
    uvloop.run(take(port_file, owner, is_direct))
    os.wait()


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--direct", action="store_true", help="respond without the second process")
    given = options.parse_args()
    main(given.port_file, given.direct)
