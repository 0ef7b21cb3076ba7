"""An HTTP/1.1 client that sends given bytes unchanged and parses answers strictly.

Promises: nothing is sent that the test did not write; a body that is not bytes is sent as JSON. A malformed
header, a body of another length than announced, or an extra byte is an error of the test.

`HttpClient` is the part that the client of HTTP/2 shares: whole requests, bodies and answers as JSON.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

ANSWER_SECONDS: Final = 20.0
READ_BYTES: Final = 1 << 20
JSON_TYPE: Final = "application/json"

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ([ -~]+)")
_FIELD = re.compile(rb"([a-z-]+): ([ -~]*)")


class ConnectionEnded(ConnectionError):
    """The server closed the connection, after bytes that are no whole answer or event."""

    def __init__(self, unread: bytes) -> None:
        super().__init__(f"the server closed the connection after {unread!r}")
        self.unread = unread


class Answer(NamedTuple):
    status: int
    reason: str
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.fields["content-type"] == JSON_TYPE
        body = gzip.decompress(self.body) if self.fields.get("content-encoding") == "gzip" else self.body
        assert body.endswith(b"}\n"), "a JSON answer ends with a newline"
        value = json.loads(body)
        assert ("error" in value) != ("performance" in value), "an answer has its time, an error has none"
        return value

    @property
    def succeeded(self) -> Any:
        """Return the JSON of an answer that must be a success."""
        assert 200 <= self.status < 300, self
        return self.json

    @property
    def code(self) -> str:
        """Return the code of an error."""
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])

    @property
    def length(self) -> int:
        """The length of the body, as announced."""
        return int(self.fields["content-length"])

    @property
    def closes(self) -> bool:
        return self.fields.get("connection") == "close"

    @property
    def shape(self) -> tuple[int, dict[str, str], Any]:
        """Return the whole answer except times."""
        body = dict(self.json)
        body["performance"] = sorted(body.get("performance", ()))
        fields = {name: value for name, value in self.fields.items() if name != "content-length"}
        return self.status, fields, body


def connected(port: int, buffer_bytes: int | None, host: str = "127.0.0.1") -> socket.socket:
    """Connect; with `buffer_bytes` the kernel buffers about that much for a slow reader."""
    client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    client.settimeout(ANSWER_SECONDS)
    if buffer_bytes is not None:
        # Before connecting: the window is announced then.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    try:
        client.connect((host, port))
    except OSError:
        client.close()
        raise
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def body_bytes(body: object) -> bytes | None:
    """Return a body as it is sent: bytes and None unchanged, anything else as JSON."""
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


class HttpClient(ABC):
    """A connection for whole requests, over HTTP/1.1 or HTTP/2."""

    socket: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @abstractmethod
    def start(
        self,
        method: str,
        target: str,
        body: object = None,
        *fields: str,
        content_type: str | None = JSON_TYPE,
        is_chunked: bool = False,
    ) -> Any:
        """Send a request; return the argument for `finish`."""

    @abstractmethod
    def finish(self, begun: Any) -> Answer:
        """Read the answer of a request that `start` sent."""

    def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        *fields: str,
        content_type: str | None = JSON_TYPE,
    ) -> Answer:
        """Send a request and return its answer, whatever its status."""
        return self.finish(self.start(method, target, body, *fields, content_type=content_type))

    def ask_json(self, method: str, target: str, body: object = None, *fields: str) -> Any:
        """Send a request that must succeed; return the JSON of its answer."""
        return self.ask(method, target, body, *fields).succeeded


class RawClient(HttpClient):
    def __init__(self, port: int, *, buffer_bytes: int | None = None, host: str = "127.0.0.1") -> None:
        self.socket = connected(port, buffer_bytes, host)
        self._unread = b""

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # -- sending -------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_in_parts(self, parts: Iterable[bytes], pause_seconds: float = 0.0005) -> None:
        """Send each part in a TCP segment of its own, so that the server reads them one by one."""
        for part in parts:
            self.socket.sendall(part)
            time.sleep(pause_seconds)

    def send_end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    # -- reading -------------------------------------------------------------------------------------------

    def read_answer(self, method: str = "GET") -> Answer:
        """Read the next final answer; an answer to HEAD has no body."""
        answer = parse_head(self._read_until(b"\r\n\r\n"))
        has_body = method != "HEAD" and answer.status != 100
        return answer._replace(body=self._read_exactly(answer.length)) if has_body else answer

    def read_end(self) -> None:
        """Check that the server closes the connection cleanly, without another byte."""
        assert self.is_at_end(), self._unread

    def is_at_end(self) -> bool:
        """Wait for more bytes; return whether the server has closed the connection cleanly instead."""
        if not self._unread:
            self._unread = self.socket.recv(READ_BYTES)
        return not self._unread

    def start(
        self,
        method: str,
        target: str,
        body: object = None,
        *fields: str,
        content_type: str | None = JSON_TYPE,
        is_chunked: bool = False,
    ) -> str:
        """Send a request; return the argument for `finish`, to be called in request order."""
        self.send(
            request_bytes(
                method, target, body_bytes(body), *fields, content_type=content_type, is_chunked=is_chunked
            )
        )
        return method

    def finish(self, begun: str) -> Answer:
        return self.read_answer(begun)

    def _read_until(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            self._read_more()
        text, _, self._unread = self._unread.partition(mark)
        return text

    def _read_exactly(self, length: int) -> bytes:
        chunks, missing = [self._unread], length - len(self._unread)
        while missing > 0:
            chunks.append(self._recv())
            missing -= len(chunks[-1])
        data = b"".join(chunks)
        self._unread = data[length:]
        return data[:length]

    def _read_more(self) -> None:
        self._unread += self._recv()

    def _recv(self) -> bytes:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionEnded(self._unread)
        return data


def parse_head(head: bytes) -> Answer:
    """Return the answer that begins with this head, still without a body."""
    status_line, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(status_line)
    assert match is not None, head
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        assert field is not None, line
        name = field[1].decode()
        assert name not in fields, f"{name} is sent twice"
        fields[name] = field[2].decode()
    return Answer(int(match[1]), match[2].decode(), fields, b"")


def request_bytes(
    method: str,
    target: str,
    body: bytes | None = None,
    *fields: str,
    content_type: str | None = JSON_TYPE,
    is_chunked: bool = False,
) -> bytes:
    """Return a well-formed request."""
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", *fields]
    if body is None:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    if content_type is not None:
        lines.append(f"content-type: {content_type}")
    lines.append("transfer-encoding: chunked" if is_chunked else f"content-length: {len(body)}")
    framed = chunks_of(body) if is_chunked else body
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + framed


def chunks_of(body: bytes, *, size: int = 1 << 16) -> bytes:
    """Return the body in chunks of that size, with the last chunk."""
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


class LastingClient:
    """A client that connects again after its connection ended, as long-lived programs do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: RawClient | None = None

    def ask(self, method: str, target: str, body: object = None, *, leaves: bool = False) -> Answer | None:
        """Send a request; return None if the connection ended before the answer, or the client `leaves`."""
        try:
            if self._client is None:
                self._client = RawClient(self._port)
            request = self._client.start(method, target, body)
            answer = None if leaves else self._client.finish(request)
        except ConnectionError:
            answer = None
        if answer is None or answer.closes:
            self.close()
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
