"""A stream sent over the link, in parts, from its home shard to the shard of the connection.

The home shard writes to a `LinkStream`. The shard with the connection passes the parts on to a stream of its
own (`PassedOn`). Credit bounds the bytes in flight, so the home's stream is paused when the client's is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.ipc.link import Asked, Question
from topicsd.stream.stream import Stream, do_nothing

UNDER_WAY_BYTES_MAX: Final = 256 << 10

OpenStream = Callable[[bytes], Stream]


class LinkStream:
    """The stream at the home shard. Its first part is the header fields; its answer is empty."""

    __slots__ = ("_asked", "_under_way", "is_clogged", "on_lost", "on_ready")

    def __init__(self, asked: Asked, fields: bytes) -> None:
        self._asked = asked
        self._under_way = 0
        self.is_clogged = False
        self.on_ready: Callable[[], None] = do_nothing
        self.on_lost: Callable[[], None] = do_nothing
        asked.credit = self._credit
        asked.hurry = self._lost
        asked.piece(fields)

    def write(self, data: bytes) -> None:
        self._under_way += len(data)
        self.is_clogged = self._under_way >= UNDER_WAY_BYTES_MAX
        self._asked.piece(data)

    def close(self) -> None:
        self.on_lost = self.on_ready = do_nothing
        self._asked(b"")

    def _credit(self, size_bytes: int) -> None:
        self._under_way -= size_bytes
        if self.is_clogged and self._under_way * 2 < UNDER_WAY_BYTES_MAX:
            self.is_clogged = False
            self.on_ready()

    def _lost(self) -> None:
        """Close after the client or the link was lost."""
        on_lost = self.on_lost
        self.close()
        on_lost()


class PassedOn:
    """The stream at the shard with the connection."""

    __slots__ = ("_open", "_question", "_stream", "_unpaid")

    def __init__(self, question: Question, open_stream: OpenStream) -> None:
        self._question = question
        self._open = open_stream
        self._stream: Stream | None = None
        self._unpaid = 0
        question.piece = self._piece

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def close(self) -> None:
        """Close after the home shard ended the stream or was lost."""
        if self._stream is not None:
            self._stream.close()

    def _piece(self, data: bytes) -> None:
        if self._stream is None:
            if self._question.is_hurried:
                # The client is gone or about to be closed; the home shard ends the stream.
                return
            self._stream = self._open(data)
            self._stream.on_ready = self._pay
            self._stream.on_lost = self._question.hurry
            return
        self._stream.write(data)
        self._unpaid += len(data)
        if not self._stream.is_clogged:
            self._pay()

    def _pay(self) -> None:
        unpaid, self._unpaid = self._unpaid, 0
        if unpaid:
            self._question.credit(unpaid)
