"""Records go from a topic to others, wherever those are, one at a time, and each is there once.

M1  A record is written at its destination as a move (`engine/producer_write.py`, P4), and deleted here,
    synced, when that was acked in its class.
M2  So at most the last one that was written there may still be here: its answer was lost, or one of the two
    was killed. The destination names it when another one comes, and it is deleted before that is sent again.
    The destination keeps that with its producers: without a window.
M3  Nothing of a move is kept here: what is here is still to be moved, or named by its destination.

Must not know: why something is moved, how another shard is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from shared.errors import PRODUCER_GAP, Refusal
from shared.http_head import Fields
from topicsd.engine.requests import RenderedRecord
from topicsd.http.call import Call

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

    def end(self, seq: int, told: Told) -> None:
        """Delete it, synced."""
        ...


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
        """What each destination has of here at last."""

    def move(self, destination: str, seq: int, record: RenderedRecord, meta: bytes, told: Told) -> None:
        """Nothing else may be on its way."""
        sent: dict[str, object] = {"data": record.data}
        if meta:
            sent["meta"] = msgspec.Raw(meta)
        if record.tag:
            sent["tag"] = record.tag
        if record.node:
            sent["node"] = record.node
        self._send(destination, seq, sent, told)

    def _send(self, destination: str, seq: int, record: dict[str, object], told: Told) -> None:
        move = {"id": self._source.id, "seq": seq, "after": self._last.get(destination)}
        body = _encode({"records": [record], "producer": move})
        answered = partial(self._answered, destination, seq, record, told)
        self._ask(
            self._operation, _Append(destination, "", _FIELDS, body, self._monotonic(), answered=answered)
        )

    def _answered(
        self, destination: str, seq: int, record: dict[str, object], told: Told, refusal: Refusal | None
    ) -> None:
        if refusal is None:
            self._last[destination] = seq
            self._end(seq, told)
        elif refusal.code == PRODUCER_GAP:
            detail: dict[str, Any] = refusal.detail or {}
            self._last[destination] = last = detail["last_seq"]
            again = partial(self._send, destination, seq, record, told)
            self._end(last, lambda failed: again() if failed is None else told(failed))
        else:
            told(refusal)

    def _end(self, seq: int | None, told: Told) -> None:
        if seq is not None and self._source.has(seq):
            self._source.end(seq, told)
        else:
            told(None)


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
