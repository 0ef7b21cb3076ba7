"""The link: how two processes of one server talk, each asking and each answering, over a Unix socket.

A frame is::

    off  size  field
      0    4   length   of the payload
      4    1   kind     0 is an answer, the others are what is asked (`LinkKind`)
      5    8   call     a number of the asker's, that the answer repeats
     13    L   payload

Frames of one loop turn leave in one write. Addresses are abstract (no file is left behind by a SIGKILL) and
named after the instance; only processes of the same user are let in. What was asked of a peer that dies is
answered with None, once: whether it was done is unknown.

Must not know: what is asked.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import cast

HEADER = struct.Struct("<IBQ")
PAYLOAD_BYTES_MAX = (1 << 30) - 1
FRONT = "front"


class LinkKind(IntEnum):
    ANSWER = 0
    REQUEST = 1
    """An HTTP request for the owner of its topic, or for the front process."""
    LIST_TOPICS = 2


Done = Callable[[bytes | None], None]
"""Called once, with the answer; None when the peer is gone and may have done it, `NEVER_SENT` if not."""

NEVER_SENT = b""
Serve = Callable[[int, bytes, Callable[[bytes], None]], None]
"""Called with kind and payload of what is asked, and with what takes the answer."""


def address_of(instance: str, name: str) -> str:
    """Of the front process (`FRONT`), or of a worker by the number of its shard."""
    return f"\0topicsd/{instance}/{name}"


class Link(asyncio.Protocol):
    """One end of a connection between two processes."""

    def __init__(self, serve: Serve, on_lost: Callable[[Link], None] | None = None) -> None:
        self._serve = serve
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Done] = {}
        self._number = 0
        self._out: list[bytes] = []
        self._scheduled = False
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = HEADER.size

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)
        peer = opened.get_extra_info("socket")
        if peer is not None and _uid_of(peer) != os.getuid():
            opened.abort()
            return
        self._transport = opened

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        calls, self._calls = self._calls, {}
        for done in calls.values():
            done(None)
        if self._on_lost is not None:
            self._on_lost(self)

    def call(self, kind: LinkKind, payload: bytes, done: Done) -> None:
        """Ask; `done` gets the answer, or None when the peer is gone and it is not known what it did."""
        if self._transport is None:
            done(NEVER_SENT)
            return
        self._number += 1
        self._calls[self._number] = done
        self._send(kind, self._number, payload)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        at, size = 0, len(data)
        self._wanted = HEADER.size
        while size - at >= HEADER.size:
            length, kind, number = HEADER.unpack_from(data, at)
            if length > PAYLOAD_BYTES_MAX:
                self.close()
                return
            end = at + HEADER.size + length
            if end > size:
                self._wanted = end - at
                break
            self._take(kind, number, data[at + HEADER.size : end])
            at = end
        if at < size:
            self._pieces.append(data[at:])
            self._held = size - at

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind != LinkKind.ANSWER:
            self._serve(kind, payload, lambda answer: self._send(LinkKind.ANSWER, number, answer))
            return
        done = self._calls.pop(number, None)
        if done is not None:
            done(payload)

    def _send(self, kind: int, number: int, payload: bytes) -> None:
        self._out.append(HEADER.pack(len(payload), kind, number))
        self._out.append(payload)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.writelines(out)


class LinkPool:
    """The links of one process to its peers, opened when they are needed and again when they were lost."""

    def __init__(self, instance: str, serve: Serve) -> None:
        self._instance = instance
        self._serve = serve
        self._links: dict[str, Link] = {}
        self._opening: dict[str, list[tuple[LinkKind, bytes, Done]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Held, because the loop does not."""

    def call(self, name: str, kind: LinkKind, payload: bytes, done: Done) -> None:
        link = self._links.get(name)
        if link is not None and link.is_open:
            link.call(kind, payload, done)
            return
        waiting = self._opening.get(name)
        if waiting is not None:
            waiting.append((kind, payload, done))
            return
        self._opening[name] = [(kind, payload, done)]
        task = asyncio.get_running_loop().create_task(self._open(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def _open(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        # Connected here, at once or not at all: uvloop knows no abstract address.
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(address_of(self._instance, name))
            _, link = await loop.create_unix_connection(lambda: Link(self._serve), sock=peer)
        except OSError:
            peer.close()
            for _, _, done in self._opening.pop(name):
                done(NEVER_SENT)
            return
        if not link.is_open:
            # uvloop has closed the descriptor, and of a link that was refused at once it says nothing.
            peer.detach()
        self._links[name] = link
        for kind, payload, done in self._opening.pop(name):
            link.call(kind, payload, done)


async def serve_links(instance: str, name: str, serve: Serve) -> asyncio.AbstractServer:
    """Take links from the other processes of this instance."""
    return await asyncio.get_running_loop().create_unix_server(
        lambda: Link(serve), address_of(instance, name)
    )


def _uid_of(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
