"""A WebSocket client that sends given frames and parses received ones strictly.

Promises: `say` and `frame` send well-formed frames, masked as the protocol requires of a client; `send` sends
anything else. A received frame that is masked, fragmented, encoded longer than necessary, or not a JSON text
is an error of the test. Pings are answered while a message is awaited.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, NamedTuple

from wsproto.utilities import generate_accept_token

from tests.harness.clients.raw_client import RawClient

NONCE: Final = "AAAAAAAAAAAAAAAAAAAAAA=="
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MASK: Final = b"\x5a\x00\xff\x13"
REQUEST: Final = (
    "GET {target} HTTP/1.1",
    "host: localhost",
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    f"sec-websocket-key: {NONCE}",
)


class Closed(NamedTuple):
    code: int
    reason: str


class NoWebSocket(AssertionError):
    """The server did not accept the upgrade."""

    def __init__(self, head: list[bytes]) -> None:
        super().__init__(head)
        self.head = head


def masked(first: int, payload: bytes) -> bytes:
    """Return a client's frame; `first` is its first byte."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    key = MASK * (size // 4 + 1)
    hidden = int.from_bytes(payload, "big") ^ int.from_bytes(key[:size], "big")
    return head + MASK + hidden.to_bytes(size, "big")


def upgrade_request(target: str = "/v0/ws", *fields: str) -> bytes:
    return "\r\n".join([*REQUEST, *fields, "", ""]).format(target=target).encode()


class WsClient(RawClient):
    def __init__(
        self,
        port: int,
        *fields: str,
        target: str = "/v0/ws",
        before: bytes = b"",
        behind: bytes = b"",
        buffer_bytes: int | None = None,
    ) -> None:
        """Connect; send `before` and `behind` together with the upgrade request.

        The request in `before` has one answer.
        """
        super().__init__(port, buffer_bytes=buffer_bytes)
        self._unread = b""
        self.pongs: list[bytes] = []
        try:
            self._begin(target, fields, before, behind)
        except BaseException:
            self.close()
            raise

    def _begin(self, target: str, fields: tuple[str, ...], before: bytes, behind: bytes) -> None:
        self.send(before + upgrade_request(target, *fields) + behind)
        if before:
            assert self.read_answer().status in (200, 201)
        head = self._read_until(b"\r\n\r\n").split(b"\r\n")
        if head[0] != b"HTTP/1.1 101 Switching Protocols":
            raise NoWebSocket(head)
        answer_fields = dict(line.split(b": ") for line in head[1:])
        assert answer_fields == {
            b"upgrade": b"websocket",
            b"connection": b"upgrade",
            b"sec-websocket-accept": generate_accept_token(NONCE.encode()),
        }

    # -- sending -------------------------------------------------------------------------------------------

    def say(self, op: str, **fields: Any) -> None:
        self.say_raw(json.dumps({"op": op, **fields}).encode())

    def say_raw(self, text: bytes) -> None:
        self.send(masked(0x80 | TEXT, text))

    def send_frame(self, opcode: int, payload: bytes = b"", *, is_last: bool = True) -> None:
        self.send(masked((0x80 if is_last else 0) | opcode, payload))

    # -- reading -------------------------------------------------------------------------------------------

    def read(self) -> Any:
        """Return the next message, or `Closed`."""
        while True:
            opcode, payload = self.read_frame()
            if opcode == TEXT:
                return json.loads(payload)
            if opcode == CLOSE:
                return Closed(int.from_bytes(payload[:2], "big"), payload[2:].decode())
            if opcode == PING:
                self.send_frame(PONG, payload)
            else:
                assert opcode == PONG
                self.pongs.append(payload)

    @property
    def has_more(self) -> bool:
        """Return whether unread bytes were received, at least the beginning of a frame."""
        return bool(self._unread)

    def read_frame(self) -> tuple[int, bytes]:
        first, size = self._read_exactly(2)
        assert first & 0xF0 == 0x80, first
        assert size < 128, "the server masks"
        if size == 126:
            size = int.from_bytes(self._read_exactly(2), "big")
            assert size > 125
        elif size == 127:
            size = int.from_bytes(self._read_exactly(8), "big")
            assert size > 0xFFFF
        return first & 0x0F, self._read_exactly(size)

    def expect(self, kind: str, **fields: Any) -> Any:
        """Read the next message and check its type and fields."""
        message = self.read()
        assert not isinstance(message, Closed), message
        assert message["op"] == kind, message
        for name, value in fields.items():
            assert message.get(name) == value, message
        return message

    def ask(self, op: str, **fields: Any) -> Any:  # type: ignore[override]
        """Send a message and return its answer, which must be the next message."""
        self.say(op, **fields)
        return self.read()

    def expect_close(self, code: int) -> str:
        """Read the close frame, check its code, and return its reason."""
        closed = self.read()
        assert isinstance(closed, Closed), closed
        assert closed.code == code, closed
        self.send_frame(CLOSE, code.to_bytes(2, "big"))
        self.read_end()
        return closed.reason
