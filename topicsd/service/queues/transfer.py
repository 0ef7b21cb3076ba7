"""Transfers: records move from a topic to others, a few at a time, each exactly once.

The other topics may be on any shard.

M1  Records are written to their destination as one move (`producer_write.py`, P4). After the acknowledgement
    in the destination's durability class they are deleted here, synced. Only then others are written there.
M2  So at most the records of the last move may be both there and here: its answer was lost, or one of the two
    shards was killed. The destination names them in its answer to the next move, and they are deleted here
    before the rest of that move is sent again. The destination remembers moves with its producers, without
    a time window.
M3  The source stores no state of a move: a record here is still to be moved, or named by its destination.
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
"""Approximate maximum of data and meta in one move."""
_NO_SEQ: Final = -1
_FIELDS: Final = Fields(content_type="application/json")

Ask = Callable[[str, Call], None]
"""Runs an operation on a topic at its owner."""
Told = Callable[[Refusal | None], object]
"""Receives None after a successful move, or the refusal."""


class Source(Protocol):
    """The topic that records leave."""

    id: str
    """Producer id, unique to this incarnation of the topic. Its first NUL excludes clients' ids."""

    def has(self, seq: int) -> bool:
        """Return whether the record is still here and to be moved."""
        ...

    def end(self, seqs: list[int], told: Told) -> None:
        """Delete these records, synced."""
        ...


class Letter(NamedTuple):
    """A record to transfer, and its meta at the destination."""

    seq: int
    record: RenderedRecord
    meta: bytes

    @property
    def size(self) -> int:
        return len(bytes(self.record.data)) + len(self.meta)


def at_once(letters: Sequence[Letter], count_max: int = MOVED_AT_ONCE) -> Iterator[list[Letter]]:
    """Split records into moves within the bounds."""
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
        """Highest seq of the last move to each destination, once none of its records is here."""

    def move(self, destination: str, letters: Sequence[Letter], told: Told) -> None:
        """Move all records, in the order of their seqs, or none. One move at a time."""
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
        """Delete here the records that the last move has written to a former destination.

        No more records are sent to that destination, and no move may be in progress.
        """

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
        """Delete here the records that are at their destination."""

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
    """Return the highest seq of the last move, and all of its seqs."""
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
    """The append to the destination, as an internal call."""

    answered: Told

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if status in (200, 201):
            self.answered(None)
            return
        error = _decode(b"".join(parts)).error
        self.answered(Refusal(error.code, error.message, error.detail))
