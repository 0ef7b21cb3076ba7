"""An HTTP/2 client with prior knowledge, on the server's library, that can send any frame.

Promises: `ask` sends one request on a stream of its own; `start` and `finish` are its two halves, for
concurrent requests. `send_frame` sends what the library would refuse.
`gone_away` and `resets` keep what the server reports about the connection.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings

from shared.http.http2_preface import GO_AWAY_TYPE
from tests.harness.clients.raw_client import (
    JSON_TYPE,
    READ_BYTES,
    Answer,
    ConnectionEnded,
    HttpClient,
    body_bytes,
    connected,
)

Headers = list[tuple[bytes, bytes]]

_FRAME = struct.Struct(">BHBBI")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream_id) + payload


class GoneAway(NamedTuple):
    last_stream_id: int
    error_code: int


class H2Client(HttpClient):
    def __init__(self, port: int, *, buffer_bytes: int | None = None, window: int | None = None) -> None:
        """Connect; `window` limits what is read of each stream until `open_window` is called."""
        self.socket = connected(port, buffer_bytes)
        self.wire = H2Connection(
            H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        )
        self._reads_on = window is None
        self._heads: dict[int, Headers] = {}
        self._bodies: dict[int, bytearray] = {}
        self._ended: set[int] = set()
        self.resets: dict[int, ErrorCodes | int] = {}
        self.gone_away: GoneAway | None = None
        self._unread = b""
        self.is_at_end = self._is_silent = False
        self._next_id = 1
        if window is not None:
            self.wire.local_settings = Settings(
                client=True,
                initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.ENABLE_PUSH: 0},
            )
        self.wire.initiate_connection()
        self.flush()

    # -- sending -------------------------------------------------------------------------------------------

    def send_frame(self, kind: int, flags: int, stream_id: int, payload: bytes = b"") -> None:
        self.socket.sendall(frame(kind, flags, stream_id, payload))

    def flush(self) -> None:
        data = self.wire.data_to_send()
        if data and not self._is_silent:
            self.socket.sendall(data)

    def send_end(self) -> None:
        self._is_silent = True
        self.socket.shutdown(socket.SHUT_WR)

    def start(
        self,
        method: str,
        target: str,
        body: object = None,
        *fields: str,
        content_type: str | None = JSON_TYPE,
        is_chunked: bool = False,
    ) -> int:
        """Send a request; return its stream for `finish`. With `is_chunked` it declares no length."""
        headers = request_headers(method, target)
        for field in fields:
            name, _, value = field.partition(":")
            headers.append((name.lower().encode(), value.strip().encode("latin-1")))
        data = body_bytes(body)
        if data is not None:
            if content_type is not None:
                headers.append((b"content-type", content_type.encode()))
            if not is_chunked:
                headers.append((b"content-length", b"%d" % len(data)))
        stream_id = self.open(headers, ends=not data)
        if data:
            self.send_body(stream_id, data)
        return stream_id

    def open(self, headers: Headers, ends: bool = True) -> int:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self.wire.send_headers(stream_id, headers, end_stream=ends)
        self.flush()
        return stream_id

    def send_body(self, stream_id: int, body: bytes, ends: bool = True) -> None:
        """Send a body as the windows allow, until it is sent or the server rejects the rest."""
        view = memoryview(body)
        while view and stream_id not in self._ended and stream_id not in self.resets:
            room = min(self.wire.local_flow_control_window(stream_id), self.wire.max_outbound_frame_size)
            if room <= 0:
                self.read_some()
                continue
            self.wire.send_data(stream_id, view[:room], end_stream=ends and len(view) <= room)
            view = view[room:]
            self.flush()

    def reset(self, stream_id: int) -> None:
        self.wire.reset_stream(stream_id, ErrorCodes.CANCEL)
        self.flush()

    @property
    def last_id(self) -> int:
        """Return the id of the last stream that was opened."""
        return self._next_id - 2

    def skip_id(self) -> None:
        """Skip a stream id that the test used by itself."""
        self._next_id += 2

    def open_window(self, size: int, stream_id: int | None = None) -> None:
        self.wire.increment_flow_control_window(size, stream_id)
        self.flush()

    # -- reading -------------------------------------------------------------------------------------------

    def finish(self, stream_id: int) -> Answer:
        """Read and return the whole answer of a stream."""
        while stream_id not in self._ended:
            assert stream_id not in self.resets or stream_id in self._ended, (
                f"stream {stream_id} was reset: {self.resets[stream_id]!r}"
            )
            if self.is_at_end:
                raise ConnectionEnded(self._unread)
            self.read_some()
        head = self._heads[stream_id]
        fields = {name.decode(): value.decode() for name, value in head if not name.startswith(b":")}
        assert len(fields) == len(head) - 1, f"a field is sent twice: {head}"
        return Answer(int(dict(head)[b":status"]), "", fields, bytes(self._bodies[stream_id]))

    def received(self, stream_id: int) -> bytes:
        """Return the part of an answer's body that was received so far."""
        return bytes(self._bodies.get(stream_id, b""))

    def has_head(self, stream_id: int) -> bool:
        return stream_id in self._heads

    def read_some(self) -> None:
        """Read from the socket; hide GOAWAY from the library, which takes it for the end."""
        try:
            data = self.socket.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_at_end = True
            return
        self._unread += data
        while len(self._unread) >= 9 and len(self._unread) >= 9 + int.from_bytes(self._unread[:3]):
            whole = self._unread[: 9 + int.from_bytes(self._unread[:3])]
            self._unread = self._unread[len(whole) :]
            if whole[3] == GO_AWAY_TYPE:
                self.gone_away = GoneAway(*struct.unpack_from(">II", whole, 9))
                continue
            for event in self.wire.receive_data(whole):
                self._note(event)
        if self.gone_away is None:
            self.flush()

    def read_to_end(self) -> None:
        """Read until the server closes the connection cleanly."""
        while not self.is_at_end:
            self.read_some()

    def _note(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            self._heads[event.stream_id] = [(bytes(name), bytes(value)) for name, value in event.headers]
            self._bodies[event.stream_id] = bytearray()
        elif isinstance(event, DataReceived):
            self._bodies[event.stream_id] += event.data
            if self._reads_on and event.flow_controlled_length:
                self.wire.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self._ended.add(event.stream_id)
        elif isinstance(event, StreamReset):
            self.resets[event.stream_id] = event.error_code


def request_headers(method: str, target: str) -> Headers:
    return [
        (b":method", method.encode()),
        (b":scheme", b"http"),
        (b":authority", b"localhost"),
        (b":path", target.encode("latin-1")),
    ]
