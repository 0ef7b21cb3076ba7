"""What a batch is, decided once: which staged chunks, in which order, and under which number of a producer
each goes to its topic.

The first whole attempt at a batch decides. Whoever runs the batch again, after a driver was killed say, finds
the decision and goes on with it, whatever the new attempt has staged: rows may have come in another order, in
other partitions, or be gone by then. So no number ever stands for two different chunks, which is all that the
producer of a topic asks for.

A query has one producer for each topic that it writes to, and goes on counting from batch to batch, so
that a topic remembers one producer for a query however long that runs. Where the count stands is part of
the decision.

Pure but for `Decisions`, which keeps the last one in a topic. Must not know: Spark, how chunks are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from spark.sink.staging import CONFIG, Staged, forget
from spark.view.server_client import ServerClient, ServerRefusal, in_path

# Of moves or producers in a record; their JSON stays far below the bound of a record.
PART_ENTRIES = 2000
HEAD_MISMATCH = "head_mismatch"


class Producer(NamedTuple):
    id: str
    next_seq: int


class Move(NamedTuple):
    chunk: Staged
    producer_seq: int


class Decision(msgspec.Struct, frozen=True):
    batch: int
    moves: list[Move]
    producers: dict[str, Producer]
    """By topic, as they are behind this batch; also those of earlier ones."""


class _Part(msgspec.Struct):
    batch: int
    number: int
    parts: int
    moves: list[Move]
    producers: dict[str, Producer]


class _Record(msgspec.Struct):
    data: _Part


class _Page(msgspec.Struct):
    records: list[_Record]
    next_from_seq: int
    head_seq: int


def decide(
    batch: int, chunks: Sequence[Staged], before: Decision | None, new_id: Callable[[], str]
) -> Decision:
    """
    >>> ids = iter(["p", "q"]).__next__
    >>> first = decide(4, [Staged("a", 1, 9), Staged("b", 10, 11), Staged("a", 12, 12)], None, ids)
    >>> [(move.chunk.topic, move.producer_seq) for move in first.moves]
    [('a', 0), ('b', 0), ('a', 1)]
    >>> second = decide(5, [Staged("a", 13, 20)], first, ids)
    >>> second.moves[0].producer_seq, second.producers["a"], second.producers["b"].next_seq
    (2, Producer(id='p', next_seq=3), 1)
    """
    producers = {} if before is None else dict(before.producers)
    moves = []
    for chunk in chunks:
        one = producers.get(chunk.topic) or Producer(new_id(), 0)
        moves.append(Move(chunk, one.next_seq))
        producers[chunk.topic] = one._replace(next_seq=one.next_seq + 1)
    return Decision(batch, moves, producers)


def begun_anew(decision: Decision, topic: str, new_id: Callable[[], str]) -> Decision:
    """The same, with another producer for a topic that has forgotten what it took in earlier batches.

    >>> one = Decision(5, [Move(Staged("a", 1, 2), 7), Move(Staged("b", 3, 4), 0)], {"a": Producer("p", 8)})
    >>> [move.producer_seq for move in begun_anew(one, "a", lambda: "q").moves]
    [0, 0]
    """
    mine = [move.chunk for move in decision.moves if move.chunk.topic == topic]
    fresh = decide(decision.batch, mine, None, new_id)
    numbers = iter(fresh.moves)
    moves = [next(numbers) if move.chunk.topic == topic else move for move in decision.moves]
    return Decision(decision.batch, moves, {**decision.producers, **fresh.producers})


def done(decision: Decision) -> Decision:
    """There is nothing left to move."""
    return Decision(decision.batch, [], decision.producers)


class Decisions:
    """The last decision of a query, in a topic. Of two drivers that decide at a time, as when one that was
    given up still works, the first one does: an append has to meet the head that was looked at."""

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

    def keep(self, decision: Decision) -> Decision:
        """All of it or nothing; or the one that somebody else has kept since `last`."""
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
            # It may be our own, whose answer was lost.
            if refusal.code != HEAD_MISMATCH:
                raise
            found = self.last()
            assert found is not None
            return found
        if self._head:
            forget(self._client, self._topic, self._head + 1)
        self._head += len(parts)
        return decision

    def _newest(self, count: int) -> list[_Part]:
        parts: list[_Part] = []
        place = {"last": count}
        while len(parts) < count:
            answer = self._client.ask("POST", f"topics/{in_path(self._topic)}/diff", {**place, "limit": 1000})
            page = msgspec.json.decode(answer, type=_Page)
            self._head = page.head_seq
            if not page.records:
                break
            parts += [one.data for one in page.records]
            place = {"from_seq": page.next_from_seq}
        return parts
