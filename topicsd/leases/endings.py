"""What became of jobs that are gone: whoever was not deleted on purpose and is no dead letter was acked.

So an ack costs nothing here, and only what is rare is remembered, up to `ENDED_MAX`. Of what lies in front of
`known_from` nobody knows it any more.

Must not know: what took a job out, which jobs are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ENDED_MAX: Final = 10_000

ACKED: Final = "acked"
DEAD: Final = "dead"
DELETED: Final = "deleted"
UNKNOWN: Final = "gone"


class Taken:
    """What a delete takes out: which, unless that is so much that nobody keeps it."""

    __slots__ = ("count", "last_seq", "seqs")

    def __init__(self, *seqs: int) -> None:
        self.count = 0
        self.last_seq = 0
        self.seqs: list[int] = []
        self.add(seqs, len(seqs), max(seqs, default=0))

    def add(self, seqs: Iterable[int], count: int, last_seq: int) -> None:
        self.count += count
        self.last_seq = max(self.last_seq, last_seq)
        if self.count <= ENDED_MAX:
            self.seqs += seqs


class Endings:
    """
    >>> endings = Endings()
    >>> endings.note_dead([3])
    >>> endings.note_deleted(Taken(5))
    >>> endings.forget_to(2)
    >>> [endings.of(seq) for seq in (2, 3, 4, 5)]
    ['gone', 'dead', 'acked', 'deleted']
    """

    __slots__ = ("dead", "deleted", "known_from")

    def __init__(self, dead: Iterable[int] = (), deleted: Iterable[int] = (), known_from: int = 1) -> None:
        self.dead = set(dead)
        self.deleted = set(deleted)
        self.known_from = known_from

    def of(self, seq: int) -> str:
        """Of one that is gone."""
        if seq < self.known_from:
            return UNKNOWN
        return DEAD if seq in self.dead else DELETED if seq in self.deleted else ACKED

    def note_dead(self, seqs: Iterable[int]) -> None:
        self.dead.update(seqs)
        self._forget_old()

    def note_deleted(self, taken: Taken) -> None:
        if taken.count > ENDED_MAX:
            self.forget_to(taken.last_seq)
        else:
            self.deleted.update(taken.seqs)
            self._forget_old()

    def forget_to(self, last: int) -> None:
        """So many are gone at once that nobody keeps which."""
        self.known_from = max(self.known_from, last + 1)
        self.dead = {seq for seq in self.dead if seq > last}
        self.deleted = {seq for seq in self.deleted if seq > last}

    def _forget_old(self) -> None:
        count = len(self.dead) + len(self.deleted)
        if count > ENDED_MAX:
            self.forget_to(sorted(self.dead | self.deleted)[count - ENDED_MAX // 2 - 1])
