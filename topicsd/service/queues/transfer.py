"""Records go from a topic to others, wherever those are, a few at a time, and each is there once.

M1  Records are written at their destination as one move (`producer_write.py`, P4), and deleted here,
    synced, when that was acked in its class. Only then others are written there.
M2  So at most those of the last move there may still be here: its answer was lost, or one of the two was
    killed. The destination names them when another one comes, and they are deleted before what is left of
    that is sent again. The destination keeps that with its producers: without a window.
M3  Nothing of a move is kept here: what is here is still to be moved, or named by its destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from shared.contract.errors import PRODUCER_GAP, TOPIC_NOT_FOUND, Refusal
from shared.http.head import Fields
from topicsd.engine.requests import RenderedRecord
from topicsd.service.call import Call

MOVED_AT_ONCE: Final = 128
MOVE_BYTES: Final = 256 << 10
"""Nor goes much more of data and meta together."""
_NO_SEQ: Final = -1
_FIELDS: Final = Fields(content_type="application/json")

Ask = Callable[[str, Call], None]
"""Have an operation on a topic done by its owner."""
Told = Callable[[Refusal | None], object]
"""Gets None for what is moved."""


class Source(Protocol):
    """The topic that records leave."""

    id: str
    """As long as the topic lives, and no other one's. It begins with a NUL, as no producer's does."""

    def has(self, seq: int) -> bool:
        """Whether the record is still here, and to be moved."""
        ...

    def end(self, seqs: list[int], told: Told) -> None:
        """Delete these, synced."""
        ...


class Letter(NamedTuple):
    """A record, and the meta that it is to have."""

    seq: int
    record: RenderedRecord
    meta: bytes

    @property
    def size(self) -> int:
        return len(bytes(self.record.data)) + len(self.meta)


def at_once(letters: Sequence[Letter], count_max: int = MOVED_AT_ONCE) -> Iterator[list[Letter]]:
    """What may go together."""
    some: list[Letter] = []
    size = 0
    for one in letters:
        size += one.size
        if some and (len(some) == count_max or size > MOVE_BYTES):
            yield some
            some, size = [], one.size
        some.append(one)
    if some:
        yield some


class _Told(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _Refused(msgspec.Struct):
    error: _Told


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Refused).decode


class Moving:
    def __init__(self, source: Source, operation: str, ask: Ask, monotonic: Callable[[], float]) -> None:
        self._source = source
        self._operation = operation
        self._ask = ask
        self._monotonic = monotonic
        self._last: dict[str, int | None] = {}
        """The highest seq of the last move to each destination, once nothing of that is here any more."""

    def move(self, destination: str, letters: Sequence[Letter], told: Told) -> None:
        """In the order of their seqs; all are moved, or none. Nothing else may be on its way."""
        if not letters:
            told(None)
            return
        seqs = [one.seq for one in letters]
        move = {"id": self._source.id, "seq": seqs[-1], "after": self._last.get(destination)}
        if len(seqs) > 1:
            move["seqs"] = seqs
        body = _encode({"records": [_sent(one) for one in letters], "producer": move})
        answered = partial(self._answered, destination, letters, told)
        self._ask(
            self._operation, _Append(destination, "", _FIELDS, body, self._monotonic(), answered=answered)
        )

    def look(self, destination: str, told: Told) -> None:
        """Take out what is there of the last move, as nothing else goes there. Nothing may be on its way."""

        def answered(refusal: Refusal | None) -> None:
            assert refusal is not None, "no move has such numbers"
            if refusal.code == PRODUCER_GAP:
                self._end(destination, *_last_move(refusal), told)
            else:
                told(None if refusal.code == TOPIC_NOT_FOUND else refusal)

        move = {"id": self._source.id, "seq": _NO_SEQ, "after": _NO_SEQ}
        body = _encode({"records": [], "producer": move, "create": False})
        self._ask(
            self._operation, _Append(destination, "", _FIELDS, body, self._monotonic(), answered=answered)
        )

    def _answered(
        self, destination: str, letters: Sequence[Letter], told: Told, refusal: Refusal | None
    ) -> None:
        if refusal is None:
            self._end(destination, letters[-1].seq, [one.seq for one in letters], told)
        elif refusal.code == PRODUCER_GAP:
            last, there = _last_move(refusal)
            left = [one for one in letters if one.seq not in there]

            def ended(failed: Refusal | None) -> None:
                if failed is None:
                    self.move(destination, left, told)
                else:
                    told(failed)

            self._end(destination, last, there, ended)
        else:
            told(refusal)

    def _end(self, destination: str, last: int | None, seqs: list[int], told: Told) -> None:
        """These are at their destination."""

        def ended(refusal: Refusal | None) -> None:
            if refusal is None:
                self._last[destination] = last
            told(refusal)

        here = [seq for seq in seqs if self._source.has(seq)]
        if here:
            self._source.end(here, ended)
        else:
            ended(None)


def _last_move(refusal: Refusal) -> tuple[int | None, list[int]]:
    """Its highest seq, and all of them."""
    detail: dict[str, Any] = refusal.detail or {}
    last = detail["last_seq"]
    return last, detail.get("last_seqs") or ([] if last is None else [last])


def _sent(letter: Letter) -> dict[str, object]:
    record = letter.record
    sent: dict[str, object] = {"data": record.data}
    if letter.meta:
        sent["meta"] = msgspec.Raw(letter.meta)
    if record.tag:
        sent["tag"] = record.tag
    if record.node:
        sent["node"] = record.node
    return sent


class _Append(Call, kw_only=True, eq=False):
    """The append to the destination, as a request of ours."""

    answered: Told

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if status in (200, 201):
            self.answered(None)
            return
        error = _decode(b"".join(parts)).error
        self.answered(Refusal(error.code, error.message, error.detail))
