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

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from shared.contract.errors import PRODUCER_GAP, TOPIC_NOT_FOUND, Refusal
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.topic import Topic
from topicsd.engine.transfer.move import NO_SEQ, Move, MovedRecord, SendMove, last_move

MOVED_AT_ONCE: Final = 128
MOVE_BYTES: Final = 256 << 10
"""Approximate maximum of data and meta in one move."""
FROZEN_POLL_SECONDS: Final = 0.05


class TransferSource(Protocol):
    """The topic that records leave."""

    id: str
    """Producer id, unique to this incarnation of the topic. Its first NUL excludes clients' ids."""

    def has(self, seq: int) -> bool:
        """Return whether the record is still here and to be moved."""
        ...

    def delete(self, seqs: list[int]) -> BackgroundJob[Refusal | None]:
        """Delete these records, synced."""
        ...


def wait_while_frozen(topic: Topic) -> BackgroundJob[None]:
    """Wait until a topic that is being moved accepts changes again, or has left the shard."""
    while topic.is_frozen:
        yield FROZEN_POLL_SECONDS


def split_moves(
    records: Sequence[MovedRecord], count_max: int = MOVED_AT_ONCE
) -> Iterator[list[MovedRecord]]:
    """Split records into moves within the bounds."""
    move: list[MovedRecord] = []
    size = 0
    for record in records:
        size += record.size
        if move and (len(move) == count_max or size > MOVE_BYTES):
            yield move
            move, size = [], record.size
        move.append(record)
    if move:
        yield move


class Transfer:
    """The moves from one topic; a redrive moves only into queues that exist."""

    def __init__(self, source: TransferSource, send: SendMove, *, is_redrive: bool) -> None:
        self._source = source
        self._send = send
        self._is_redrive = is_redrive
        self._last: dict[str, int | None] = {}
        """Highest seq of the last move to each destination, once none of its records is here."""

    def move(self, destination: str, records: list[MovedRecord]) -> BackgroundJob[Refusal | None]:
        """Move all records, in the order of their seqs, or none. One move at a time."""
        while records:
            after, is_redrive = self._last.get(destination), self._is_redrive
            move = Move(destination, self._source.id, after, records, not is_redrive, is_redrive)
            refusal: Refusal | None = yield from operation(partial(self._send, move))
            if refusal is None:
                seqs = [record.seq for record in records]
                return (yield from self._delete(destination, seqs[-1], seqs))
            if refusal.code != PRODUCER_GAP:
                return refusal
            last = last_move(refusal)
            refusal = yield from self._delete(destination, last.last_seq, last.seqs)
            if refusal is not None:
                return refusal
            records = [record for record in records if record.seq not in last.seqs]
        return None

    def reconcile(self, destination: str) -> BackgroundJob[Refusal | None]:
        """Delete here the records that the last move has written to a former destination.

        No more records are sent to that destination, and no move may be in progress.
        """
        look = Move(destination, self._source.id, NO_SEQ, [], creates=False, needs_queue=False)
        refusal: Refusal | None = yield from operation(partial(self._send, look))
        assert refusal is not None, "no move has the seq -1"
        if refusal.code == PRODUCER_GAP:
            last = last_move(refusal)
            return (yield from self._delete(destination, last.last_seq, last.seqs))
        return None if refusal.code == TOPIC_NOT_FOUND else refusal

    def _delete(self, destination: str, last: int | None, seqs: list[int]) -> BackgroundJob[Refusal | None]:
        """Delete here the records that are at their destination."""
        live = [seq for seq in seqs if self._source.has(seq)]
        refusal = (yield from self._source.delete(live)) if live else None
        if refusal is None:
            self._last[destination] = last
        return refusal
