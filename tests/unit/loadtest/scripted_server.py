"""A server with one thread that answers each request with exactly the parts that a script returns.

The script is called with each request, which has its number and that of its connection, and returns the parts
to send; the part `CLOSE` closes the connection. The server waits a moment between parts, so that each arrives
in its own packet.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

CLOSE = b"--close--"
GAP_SECONDS = 0.001
TIMEOUT_SECONDS = 30.0


class Request(NamedTuple):
    connection: int
    number: int
    path: str
    head: bytes
    body: bytes


Script = Callable[[Request], Sequence[bytes]]


def answer(body: bytes = b"{}", status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


class Scripted:
    def __init__(self, script: Script, gap_seconds: float) -> None:
        self.requests: list[Request] = []
        self._script = script
        self._gap_seconds = gap_seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ended, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._rest: dict[socket.socket, tuple[int, bytes]] = {}
        self._connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._end.close()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        for one in (self._listener, self._ended):
            self._selector.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(TIMEOUT_SECONDS):
                if key.fileobj is self._ended:
                    for one in (self._listener, self._ended, *self._rest):
                        one.close()
                    self._selector.close()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        self._rest[connection] = (self._connections, b"")
        self._connections += 1

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._rest[connection]
        connection.close()

    def _read(self, connection: socket.socket) -> None:
        number, data = self._rest[connection]
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            self._drop(connection)
            return
        data += more
        while (head_end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:head_end]
            _, has_length, length = head.lower().partition(b"content-length:")
            end = head_end + 4 + (int(length.split(b"\r\n")[0]) if has_length else 0)
            if len(data) < end:
                break
            path = head.split(b" ")[1].decode()
            request = Request(number, len(self.requests), path, head, data[head_end + 4 : end])
            self.requests.append(request)
            data = data[end:]
            if not self._send(connection, self._script(request)):
                return
        self._rest[connection] = (number, data)

    def _send(self, connection: socket.socket, parts: Sequence[bytes]) -> bool:
        for at, part in enumerate(parts):
            if at:
                threading.Event().wait(self._gap_seconds)
            try:
                if part is CLOSE:
                    self._drop(connection)
                    return False
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                self._drop(connection)
                return False
        return True


@contextmanager
def scripted(script: Script, gap_seconds: float = GAP_SECONDS) -> Iterator[Scripted]:
    server = Scripted(script, gap_seconds)
    try:
        yield server
    finally:
        server.close()
