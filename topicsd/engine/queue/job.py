"""One job of a queue that somebody had or that came with a delay: what is known of it, and its state.

What became of jobs that are gone: whoever was not deleted on purpose and is no dead letter was acked.

So an ack costs nothing here, and only what is rare is remembered, up to `ENDED_MAX`. Of what lies in front of
`known_from` nobody knows it any more.

What the jobs of a queue ask of the log that their records stand in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

READY: Final = 0
IN_FLIGHT: Final = 1
DELAYED: Final = 2
PARKED: Final = 3
BLOCKED: Final = 4
SENT: Final = 5
ASIDE: Final = (PARKED, SENT)


class Job:
    __slots__ = ("deadline", "deliveries", "is_leaving", "lease", "node", "reason", "state")

    def __init__(self) -> None:
        self.state = READY
        self.deliveries = 0
        self.lease = 0
        """The number under which it was handed out last, 0 when that counts no more."""
        self.deadline = 0
        """When a lease runs out or a delay is over."""
        self.node = ""
        self.reason = ""
        """Why it was given back."""
        self.is_leaving = False


class Held(NamedTuple):
    """What a job was, to put it back."""

    seq: int
    state: int
    deliveries: int
    lease: int
    deadline: int
    node: str
    reason: str


class Claimed(NamedTuple):
    seq: int
    lease: int
    deliveries: int


class Counts(NamedTuple):
    ready: int
    in_flight: int
    delayed: int
    parked: int
    dead_lettered: int
    blocked: int = 0


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


class Totals(Protocol):
    """Of all queues together."""

    leases_in_flight: int


class Records(Protocol):
    head: int
    earliest_seq: int
    live_count: int

    @property
    def totals(self) -> Totals: ...

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or one behind the head."""
        ...
