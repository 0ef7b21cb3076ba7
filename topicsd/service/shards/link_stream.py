"""A stream sent over the link, in parts, from its home shard to the shard of the connection.

The home shard writes to a `LinkStream`. The shard with the connection passes the parts on to a stream of its
own (`StreamRelay`). Credit bounds the bytes in flight, so the home's stream is paused when the client's is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.ipc.link import LinkCall, LinkReply
from topicsd.stream.stream import Stream, noop

IN_FLIGHT_BYTES_MAX: Final = 256 << 10

OpenStream = Callable[[bytes], Stream]


class LinkStream:
    """The stream at the home shard. Its first part is the header fields; its answer is empty."""

    __slots__ = ("_in_flight", "_reply", "is_paused", "on_lost", "on_ready")

    def __init__(self, reply: LinkReply, fields: bytes) -> None:
        self._reply = reply
        self._in_flight = 0
        self.is_paused = False
        self.on_ready: Callable[[], None] = noop
        self.on_lost: Callable[[], None] = noop
        reply.on_credit = self._credit
        reply.cancel_wait = self._on_lost
        reply.send_part(fields)

    def write(self, data: bytes) -> None:
        self._in_flight += len(data)
        self.is_paused = self._in_flight >= IN_FLIGHT_BYTES_MAX
        self._reply.send_part(data)

    def close(self) -> None:
        self.on_lost = self.on_ready = noop
        self._reply(b"")

    def _credit(self, size_bytes: int) -> None:
        self._in_flight -= size_bytes
        if self.is_paused and self._in_flight * 2 < IN_FLIGHT_BYTES_MAX:
            self.is_paused = False
            self.on_ready()

    def _on_lost(self) -> None:
        """Close after the client or the link was lost."""
        on_lost = self.on_lost
        self.close()
        on_lost()


class StreamRelay:
    """The stream at the shard with the connection."""

    __slots__ = ("_call", "_open", "_stream", "_uncredited")

    def __init__(self, call: LinkCall, open_stream: OpenStream) -> None:
        self._call = call
        self._open = open_stream
        self._stream: Stream | None = None
        self._uncredited = 0
        call.on_part = self._on_part

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def close(self) -> None:
        """Close after the home shard ended the stream or was lost."""
        if self._stream is not None:
            self._stream.close()

    def _on_part(self, data: bytes) -> None:
        if self._stream is None:
            if self._call.is_wait_cancelled:
                # The client is gone or about to be closed; the home shard ends the stream.
                return
            self._stream = self._open(data)
            self._stream.on_ready = self._send_credit
            self._stream.on_lost = self._call.cancel_wait
            return
        self._stream.write(data)
        self._uncredited += len(data)
        if not self._stream.is_paused:
            self._send_credit()

    def _send_credit(self) -> None:
        size_bytes, self._uncredited = self._uncredited, 0
        if size_bytes:
            self._call.credit(size_bytes)
