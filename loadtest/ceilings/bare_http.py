"""The minimal HTTP of a ceiling: split the input into requests, listen, write the port file.

It accepts the requests of the load generator, complete heads with a Content-Length, and no others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from typing import cast


class BareHttp(asyncio.Protocol):
    """A connection that calls `take` with each request; `take` parses only the parts it needs."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        while (head_end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:head_end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = 0
            if at >= 0:
                line_end = head.find(b"\r\n", at + 17)
                length = int(head[at + 17 : line_end if line_end > 0 else None])
            end = head_end + 4 + length
            if len(data) < end:
                break
            self.take(data, head_end + 4, end)
            data = data[end:]
        self._rest = data

    def take(self, data: bytes, body_at: int, end: int) -> None:
        """Answer the request at the start of `data`; its body is `data[body_at:end]`."""
        raise NotImplementedError


def rendered(body: bytes) -> bytes:
    """Return a complete response with status 200."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def parser(about: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about)
    options.add_argument(
        "--port-file",
        default=os.environ.get("TOPICS_PORT_FILE"),
        help="the file to write the port to (default: TOPICS_PORT_FILE, as for the server)",
    )
    return options


async def serve(protocol: Callable[[], asyncio.Protocol], port_file: str) -> None:
    """Listen on a free port, write the port file, and serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=1024)
    write_port_file(port_file, server.sockets[0].getsockname()[1])
    await ended.wait()
    server.close()


def write_port_file(port_file: str, port: int) -> None:
    """Write the port file atomically."""
    with open(f"{port_file}.part", "w", encoding="ascii") as file:
        file.write(f"{port}\n")
    os.replace(f"{port_file}.part", port_file)
