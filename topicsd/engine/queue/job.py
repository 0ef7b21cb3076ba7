"""One job that was claimed or delayed, its states, and the outcomes of jobs that no longer exist.

A job that no longer exists was acked unless it was deleted or became a dead letter. So an ack costs nothing
here: only the rare outcomes are remembered, up to `ENDED_MAX`. Outcomes before `known_from` are unknown.

`Records` is what a queue needs from the topic that stores its records.
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
    """The state of one job that was claimed or delayed."""

    __slots__ = ("deadline", "deliveries", "is_ending", "lease", "node", "priority", "reason", "state")

    def __init__(self) -> None:
        self.state = READY
        self.deliveries = 0
        self.lease = 0
        """The number of the last lease, 0 once it is not valid."""
        self.deadline = 0
        """When the lease or the delay ends."""
        self.node = ""
        self.reason = ""
        """Why the job was returned."""
        self.is_ending = False
        self.priority = 0


class JobState(NamedTuple):
    """The recorded state of a job, as stored in frames and snapshots and used to undo a change."""

    seq: int
    state: int
    deliveries: int
    lease: int
    deadline: int
    node: str
    reason: str


def last_reason(job: Job | JobState) -> str:
    """Return why the last delivery did not end a job, as far as it is known.

    >>> last_reason(JobState(7, READY, 2, 19, 0, "w", "earlier nack"))
    'lease expired at node w, 2 deliveries'
    """
    if not job.lease or job.state == IN_FLIGHT:
        return job.reason
    unit = "delivery" if job.deliveries == 1 else "deliveries"
    return f"lease expired at node {job.node}, {job.deliveries} {unit}"


class ClaimedJob(NamedTuple):
    """One job of a claim, with the lease that it got."""

    seq: int
    lease: int
    deliveries: int


class Counts(NamedTuple):
    """The number of jobs in each state, and of those moved to the dead-letter topic."""

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


class DeletedSeqs:
    """The seqs that a delete removes, or only their number when there are more than `ENDED_MAX`."""

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


class Outcomes:
    """The outcomes of jobs that no longer exist.

    >>> outcomes = Outcomes()
    >>> outcomes.note_dead([3])
    >>> outcomes.note_deleted(DeletedSeqs(5))
    >>> outcomes.forget_to(2)
    >>> [outcomes.of(seq) for seq in (2, 3, 4, 5)]
    ['gone', 'dead', 'acked', 'deleted']
    """

    __slots__ = ("dead", "deleted", "known_from")

    def __init__(self, dead: Iterable[int] = (), deleted: Iterable[int] = (), known_from: int = 1) -> None:
        self.dead = set(dead)
        self.deleted = set(deleted)
        self.known_from = known_from

    def of(self, seq: int) -> str:
        """Return the outcome of a job that no longer exists."""
        if seq < self.known_from:
            return UNKNOWN
        return DEAD if seq in self.dead else DELETED if seq in self.deleted else ACKED

    def note_dead(self, seqs: Iterable[int]) -> None:
        self.dead.update(seqs)
        self._forget_old()

    def note_deleted(self, taken: DeletedSeqs) -> None:
        if taken.count > ENDED_MAX:
            self.forget_to(taken.last_seq)
        else:
            self.deleted.update(taken.seqs)
            self._forget_old()

    def forget_to(self, last: int) -> None:
        """Forget outcomes up to `last`: too many jobs ended at once to remember each."""
        self.known_from = max(self.known_from, last + 1)
        self.dead = {seq for seq in self.dead if seq > last}
        self.deleted = {seq for seq in self.deleted if seq > last}

    def _forget_old(self) -> None:
        count = len(self.dead) + len(self.deleted)
        if count > ENDED_MAX:
            self.forget_to(sorted(self.dead | self.deleted)[count - ENDED_MAX // 2 - 1])


class LeaseTotals(Protocol):
    """Counters over all queues of a shard."""

    leases_in_flight: int


class Records(Protocol):
    """The records of a queue, as its jobs need to know them."""

    head: int
    earliest_seq: int
    live_count: int

    @property
    def totals(self) -> LeaseTotals: ...

    def schedule_removal(self) -> None:
        """Call `LeaseQueue.remove_some` until it returns False, now or later."""
        ...

    def next_live(self, seq: int) -> int:
        """Return the first live seq at or after `seq`, or head + 1."""
        ...

    def retry_wait_ms(self, deliveries: int) -> int:
        """Return how long a job that was not done waits after so many deliveries."""
        ...
