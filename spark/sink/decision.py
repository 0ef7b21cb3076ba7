"""The decision about a batch: its staged chunks, their order, and a producer number for each.

The first complete attempt at a batch decides. A later attempt, for example after a driver was killed, finds
the decision and continues with it, whatever it has staged itself: its rows may be in another order, in other
partitions, or missing. A number therefore never refers to two different chunks, which is all that a topic's
producer check requires.

A query has one producer for each topic it writes to, and continues the count from batch to batch, so that a
topic remembers one producer for a query however long it runs. The current count is part of the decision.

Everything here is pure except `Decisions`, which keeps the last decision in a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from spark.sink.staging import CONFIG, StagedChunk, delete_before
from spark.view.server_client import ServerClient, ServerRefusal, in_path

# Moves or producers in one record; their JSON stays far below the maximum of a record.
PART_ENTRIES = 2000
HEAD_MISMATCH = "head_mismatch"


class SinkProducer(NamedTuple):
    id: str
    next_seq: int


class ChunkMove(NamedTuple):
    chunk: StagedChunk
    producer_seq: int


class Decision(msgspec.Struct, frozen=True):
    batch: int
    moves: list[ChunkMove]
    producers: dict[str, SinkProducer]
    """The producers by topic after this batch, including those of earlier batches."""


class _Part(msgspec.Struct):
    batch: int
    number: int
    parts: int
    moves: list[ChunkMove]
    producers: dict[str, SinkProducer]


class _PartRecord(msgspec.Struct):
    data: _Part


class _Page(msgspec.Struct):
    records: list[_PartRecord]
    next_from_seq: int
    head_seq: int


def decide(
    batch: int, chunks: Sequence[StagedChunk], previous: Decision | None, new_id: Callable[[], str]
) -> Decision:
    """Assign each chunk its producer and number.

    >>> ids = iter(["p", "q"]).__next__
    >>> staged = [StagedChunk("a", 1, 9), StagedChunk("b", 10, 11), StagedChunk("a", 12, 12)]
    >>> first = decide(4, staged, None, ids)
    >>> [(move.chunk.topic, move.producer_seq) for move in first.moves]
    [('a', 0), ('b', 0), ('a', 1)]
    >>> second = decide(5, [StagedChunk("a", 13, 20)], first, ids)
    >>> second.moves[0].producer_seq, second.producers["a"], second.producers["b"].next_seq
    (2, SinkProducer(id='p', next_seq=3), 1)
    """
    producers = {} if previous is None else dict(previous.producers)
    moves = []
    for chunk in chunks:
        one = producers.get(chunk.topic) or SinkProducer(new_id(), 0)
        moves.append(ChunkMove(chunk, one.next_seq))
        producers[chunk.topic] = one._replace(next_seq=one.next_seq + 1)
    return Decision(batch, moves, producers)


def with_new_producer(decision: Decision, topic: str, new_id: Callable[[], str]) -> Decision:
    """Return the decision with a new producer for a topic that lost earlier batches.

    >>> moves = [ChunkMove(StagedChunk("a", 1, 2), 7), ChunkMove(StagedChunk("b", 3, 4), 0)]
    >>> one = Decision(5, moves, {"a": SinkProducer("p", 8)})
    >>> [move.producer_seq for move in with_new_producer(one, "a", lambda: "q").moves]
    [0, 0]
    """
    chunks = [move.chunk for move in decision.moves if move.chunk.topic == topic]
    fresh = decide(decision.batch, chunks, None, new_id)
    numbers = iter(fresh.moves)
    moves = [next(numbers) if move.chunk.topic == topic else move for move in decision.moves]
    return Decision(decision.batch, moves, {**decision.producers, **fresh.producers})


def without_moves(decision: Decision) -> Decision:
    """Return the decision without moves: everything was moved."""
    return Decision(decision.batch, [], decision.producers)


class Decisions:
    """The last decision of a query, kept in a topic.

    If two drivers decide at once, as when an abandoned one still works, the first wins: an append must match
    the head that was read.
    """

    def __init__(self, client: ServerClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._head = 0

    def last(self) -> Decision | None:
        try:
            newest = self._newest(1)
        except ServerRefusal as refusal:
            if refusal.status != 404:
                raise
            return None
        if not newest:
            return None
        parts = newest if newest[0].parts == 1 else self._newest(newest[0].parts)
        assert [part.number for part in parts] == list(range(len(parts))), parts
        producers = {name: one for part in parts for name, one in part.producers.items()}
        return Decision(parts[0].batch, [move for part in parts for move in part.moves], producers)

    def store(self, decision: Decision) -> Decision:
        """Store the decision whole or not at all; return the one another driver stored since `last`."""
        moves, names = decision.moves, list(decision.producers)
        starts = range(0, max(1, len(moves), len(names)), PART_ENTRIES)
        parts = [
            _Part(
                decision.batch,
                number,
                len(starts),
                moves[at : at + PART_ENTRIES],
                {name: decision.producers[name] for name in names[at : at + PART_ENTRIES]},
            )
            for number, at in enumerate(starts)
        ]
        records = [{"data": part} for part in parts]
        body = {"records": records, "config": CONFIG, "expected_head": self._head}
        try:
            self._client.ask("POST", f"topics/{in_path(self._topic)}", body)
        except ServerRefusal as refusal:
            # It may be our own, if its response was lost.
            if refusal.code != HEAD_MISMATCH:
                raise
            winner = self.last()
            assert winner is not None
            return winner
        if self._head:
            delete_before(self._client, self._topic, self._head + 1)
        self._head += len(parts)
        return decision

    def _newest(self, count: int) -> list[_Part]:
        parts: list[_Part] = []
        position = {"last": count}
        while len(parts) < count:
            answer = self._client.ask(
                "POST", f"topics/{in_path(self._topic)}/diff", {**position, "limit": 1000}
            )
            page = msgspec.json.decode(answer, type=_Page)
            self._head = page.head_seq
            if not page.records:
                break
            parts += [one.data for one in page.records]
            position = {"from_seq": page.next_from_seq}
        return parts
