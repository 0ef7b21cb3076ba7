"""A move: the message that carries records of a transfer to their destination, and its append there.

The owner of the destination answers with None when the records are in its log, in the durability class of the
destination, or with a `Refusal`. A move without records has a seq that no move has, so its answer always is a
refusal that names the last move (P4 of `producer_write.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal
from shared.contract.names import refuse_topic_name
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.requests import (
    NO_META,
    AppendAnswer,
    AppendRequest,
    BytesRecord,
    NewRecord,
    RenderedRecord,
    Reply,
    StampedAppend,
    TransferSeq,
)
from topicsd.engine.state import ShardState

NO_SEQ: Final = -1


class MovedRecord(NamedTuple):
    """A record to move: its seq at the source, and its content at the destination."""

    seq: int
    data: bytes
    tag: str
    node: str
    meta: bytes
    is_bytes: bool = False

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta)


def moved_record(record: RenderedRecord, meta: bytes) -> MovedRecord:
    """Return a record of the source with its meta at the destination."""
    return MovedRecord(record.seq, record.content, record.tag, record.node, meta, record.is_bytes)


class Move(msgspec.Struct, array_like=True, frozen=True):
    """The request to append records to their destination, once."""

    destination: str
    source: str
    """Producer id of the topic that the records leave."""
    after: int | None
    """The highest seq of the previous move."""
    records: list[MovedRecord]
    creates: bool
    """Whether a missing destination is created."""
    needs_queue: bool
    """Whether the destination must be a queue."""

    @property
    def size(self) -> int:
        return sum(record.size for record in self.records)


MoveReply = Callable[[Refusal | None], object]
"""Receives None after a successful move, or the refusal."""
SendMove = Callable[[Move, MoveReply], object]
"""Sends a move to the owner of its destination."""
CappedAppend = Callable[[str, AppendRequest, int, Reply[AppendAnswer]], None]
"""Appends to a topic of this shard within the caps, given the approximate bytes of the records."""

encode_move = msgspec.msgpack.Encoder().encode
decode_move = msgspec.msgpack.Decoder(Move).decode
encode_move_answer: Callable[[Refusal | None], bytes] = msgspec.msgpack.Encoder().encode
decode_move_answer = msgspec.msgpack.Decoder(Refusal | None).decode


def append_move(shard: ShardState, append: CappedAppend, move: Move, reply: MoveReply) -> None:
    """Append the records of a move to a topic of this shard."""
    name = move.destination
    # The stamp of a dead letter may be forged.
    refusal = None if name in shard.topics else refuse_topic_name(name)
    if refusal is None and move.needs_queue:
        queue = queue_of(shard, name)
        refusal = queue if isinstance(queue, Refusal) else None
    if refusal is not None:
        reply(refusal)
        return

    def on_append(answer: AppendAnswer | Refusal) -> None:
        reply(answer if isinstance(answer, Refusal) else None)

    seqs = [record.seq for record in move.records]
    producer = TransferSeq(move.source, seqs[-1] if seqs else NO_SEQ, move.after, seqs)
    records = [_new_record(record) for record in move.records]
    append(name, StampedAppend(records, producer=producer, create=move.creates), move.size, on_append)


def _new_record(record: MovedRecord) -> NewRecord:
    meta = msgspec.Raw(record.meta) if record.meta else NO_META
    kind = BytesRecord if record.is_bytes else NewRecord
    return kind(msgspec.Raw(record.data), record.tag or None, record.node or None, meta)


class LastMove(msgspec.Struct, frozen=True):
    """The last move that a destination knows, as the detail of its refusal."""

    last_seq: int | None
    """The highest seq of the move, or None if the destination knows no move."""
    last_seqs: list[int] = []

    @property
    def seqs(self) -> list[int]:
        """Return all seqs of the move."""
        return self.last_seqs or ([] if self.last_seq is None else [self.last_seq])


def last_move(refusal: Refusal) -> LastMove:
    return msgspec.convert(refusal.detail, LastMove)
