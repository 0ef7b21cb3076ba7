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

RunAtOwner = Callable[[str, Call], None]
"""Runs an operation on a topic at its owner."""
MoveReply = Callable[[Refusal | None], object]
"""Receives None after a successful move, or the refusal."""


class TransferSource(Protocol):
    """The topic that records leave."""

    id: str
    """Producer id, unique to this incarnation of the topic. Its first NUL excludes clients' ids."""

    def has(self, seq: int) -> bool:
        """Return whether the record is still here and to be moved."""
        ...

    def delete(self, seqs: list[int], reply: MoveReply) -> None:
        """Delete these records, synced."""
        ...


class TransferRecord(NamedTuple):
    """A record to transfer, and its meta at the destination."""

    seq: int
    record: RenderedRecord
    meta: bytes

    @property
    def size(self) -> int:
        return len(bytes(self.record.data)) + len(self.meta)


def split_moves(
    records: Sequence[TransferRecord], count_max: int = MOVED_AT_ONCE
) -> Iterator[list[TransferRecord]]:
    """Split records into moves within the bounds."""
    move: list[TransferRecord] = []
    size = 0
    for record in records:
        size += record.size
        if move and (len(move) == count_max or size > MOVE_BYTES):
            yield move
            move, size = [], record.size
        move.append(record)
    if move:
        yield move


class _AppendError(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _AppendErrorBody(msgspec.Struct):
    error: _AppendError


_encode = msgspec.json.Encoder().encode
_decode_error = msgspec.json.Decoder(_AppendErrorBody).decode


class Transfer:
    def __init__(
        self,
        source: TransferSource,
        operation: str,
        run_at_owner: RunAtOwner,
        monotonic: Callable[[], float],
    ) -> None:
        self._source = source
        self._operation = operation
        self._run_at_owner = run_at_owner
        self._monotonic = monotonic
        self._last: dict[str, int | None] = {}
        """Highest seq of the last move to each destination, once none of its records is here."""

    def move(self, destination: str, records: Sequence[TransferRecord], reply: MoveReply) -> None:
        """Move all records, in the order of their seqs, or none. One move at a time."""
        if not records:
            reply(None)
            return
        seqs = [record.seq for record in records]
        move = {"id": self._source.id, "seq": seqs[-1], "after": self._last.get(destination)}
        if len(seqs) > 1:
            move["seqs"] = seqs
        body = _encode({"records": [_append_record(record) for record in records], "producer": move})
        self._append(destination, body, partial(self._on_append, destination, records, reply))

    def reconcile(self, destination: str, reply: MoveReply) -> None:
        """Delete here the records that the last move has written to a former destination.

        No more records are sent to that destination, and no move may be in progress.
        """

        def on_append(refusal: Refusal | None) -> None:
            assert refusal is not None, "no move has the seq -1"
            if refusal.code == PRODUCER_GAP:
                self._delete(destination, *_last_move(refusal), reply)
            else:
                reply(None if refusal.code == TOPIC_NOT_FOUND else refusal)

        move = {"id": self._source.id, "seq": _NO_SEQ, "after": _NO_SEQ}
        self._append(destination, _encode({"records": [], "producer": move, "create": False}), on_append)

    def _append(self, destination: str, body: bytes, reply: MoveReply) -> None:
        call = _AppendCall(destination, "", _FIELDS, body, self._monotonic(), reply=reply)
        self._run_at_owner(self._operation, call)

    def _on_append(
        self,
        destination: str,
        records: Sequence[TransferRecord],
        reply: MoveReply,
        refusal: Refusal | None,
    ) -> None:
        if refusal is None:
            self._delete(destination, records[-1].seq, [record.seq for record in records], reply)
        elif refusal.code == PRODUCER_GAP:
            last, moved_seqs = _last_move(refusal)
            remaining = [record for record in records if record.seq not in moved_seqs]

            def on_delete(failure: Refusal | None) -> None:
                if failure is None:
                    self.move(destination, remaining, reply)
                else:
                    reply(failure)

            self._delete(destination, last, moved_seqs, on_delete)
        else:
            reply(refusal)

    def _delete(self, destination: str, last: int | None, seqs: list[int], reply: MoveReply) -> None:
        """Delete here the records that are at their destination."""

        def on_delete(refusal: Refusal | None) -> None:
            if refusal is None:
                self._last[destination] = last
            reply(refusal)

        live = [seq for seq in seqs if self._source.has(seq)]
        if live:
            self._source.delete(live, on_delete)
        else:
            on_delete(None)


def _last_move(refusal: Refusal) -> tuple[int | None, list[int]]:
    """Return the highest seq of the last move, and all of its seqs."""
    detail: dict[str, Any] = refusal.detail or {}
    last = detail["last_seq"]
    return last, detail.get("last_seqs") or ([] if last is None else [last])


def _append_record(record: TransferRecord) -> dict[str, object]:
    """Return the record as the body of an append has it."""
    rendered = record.record
    body: dict[str, object] = {"data": rendered.data}
    if record.meta:
        body["meta"] = msgspec.Raw(record.meta)
    if rendered.tag:
        body["tag"] = rendered.tag
    if rendered.node:
        body["node"] = rendered.node
    return body


class _AppendCall(Call, kw_only=True, eq=False):
    """The append to the destination, as an internal call."""

    reply: MoveReply

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if status in (200, 201):
            self.reply(None)
            return
        error = _decode_error(b"".join(parts)).error
        self.reply(Refusal(error.code, error.message, error.detail))
