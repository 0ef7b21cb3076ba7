"""Connections to the nodes: HTTP/1.1 with keep-alive, one request at a time on each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

LIMIT_BYTES = 1 << 20


class NodeAnswer(NamedTuple):
    status: int
    body: bytes


class NoAnswer(Exception):
    """The connection failed or the time ran out; whether the request was served is unknown."""


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Clients:
    """The connections to the nodes of a cluster, kept between requests."""

    def __init__(self, ports: Mapping[str, int], timeout_seconds: float) -> None:
        self._ports = ports
        self._timeout = timeout_seconds
        self._idle: dict[str, list[_Connection]] = {node: [] for node in ports}

    async def post(self, node: str, path: str, body: bytes) -> NodeAnswer:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return await self._send(node, head.encode() + body)

    async def get(self, node: str, path: str) -> NodeAnswer:
        return await self._send(node, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def put(self, node: str, path: str, body: bytes) -> NodeAnswer:
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return await self._send(node, head.encode() + body)

    async def _send(self, node: str, request: bytes) -> NodeAnswer:
        connection = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = await self._connected(node)
                connection.writer.write(request)
                answer, keeps = await _read_answer(connection.reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            # TimeoutError is an OSError.
            if connection is not None:
                connection.writer.close()
            raise NoAnswer(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        except asyncio.CancelledError:
            if connection is not None:
                connection.writer.close()
            raise
        if keeps:
            self._idle[node].append(connection)
        else:
            connection.writer.close()
        return answer

    async def _connected(self, node: str) -> _Connection:
        idle = self._idle[node]
        while idle:
            connection = idle.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return connection
            connection.writer.close()
        return _Connection(*await asyncio.open_connection("127.0.0.1", self._ports[node], limit=LIMIT_BYTES))

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[NodeAnswer, bool]:
    """Return a response, and whether the connection is usable for another request."""
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    status = int(head[0].split(b" ", 2)[1])
    fields = {}
    for line in head[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip().lower()
    if b"content-length" in fields:
        body = await reader.readexactly(int(fields[b"content-length"]))
    elif fields.get(b"transfer-encoding") == b"chunked":
        body = await _read_chunks(reader)
    else:
        raise ValueError("response without a length")
    return NodeAnswer(status, body), fields.get(b"connection") != b"close"


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(chunks)
