"""A stream whose client has its connection at another shard: its answer goes over the link, in pieces.

The home of the stream writes to a `LinkStream`; the shard with the connection passes on what comes to a
stream of its own (`PassedOn`). What is under way is bounded by credit: the home is clogged when the client
is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shared.ipc.link import Asked, Question
from topicsd.stream.stream import Stream, do_nothing

UNDER_WAY_BYTES_MAX: Final = 256 << 10

OpenStream = Callable[[bytes], Stream]


class LinkStream:
    """At the home. The first piece is the fields of the head; the answer behind all of them is empty."""

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
        """The client has left, or the link is lost."""
        on_lost = self.on_lost
        self.close()
        on_lost()


class PassedOn:
    """Where the connection is."""

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
        """The home has ended it, or is gone."""
        if self._stream is not None:
            self._stream.close()

    def _piece(self, data: bytes) -> None:
        if self._stream is None:
            if self._question.is_hurried:
                # Nobody is there any more, or not for long: the home ends it.
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
