"""The jobs of one queue: which are ready, who holds which and until when. Pure: the log, a number, the time.

A job that was never claimed is not known here: it is any live record at or behind `fresh_seq`. One that was
claimed is a `Job` until its record is gone. So a waiting job costs nothing, and a call costs what it touches.

L1  Each live record is exactly one of ready, in flight, delayed, parked; `ready` is what the others leave.
L2  A job is handed out only when nobody holds it, and each time under another number. So of two who name a
    job at most one has the number that counts.
L3  What was claimed before goes first, in the order of seqs, then what was never claimed.
L4  A lease that ran out is seen by whoever looks next (`collect`). Until another one has the job, the one
    who had it last may still end it: it is done, and nobody does it twice.
L5  Whether a job was delivered too often is asked when it would be delivered again: then it is parked.
L6  A job that is leaving, as its end is on its way to the log, is nobody's to take; it counts as what it was.

Must not know: disk, asyncio, the engine, what a job says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

READY: Final = 0
IN_FLIGHT: Final = 1
DELAYED: Final = 2
PARKED: Final = 3

# Deadlines of jobs that are gone are thrown away once there are this many more of them than jobs.
STALE_MAX: Final = 64


class Totals(Protocol):
    """Of all queues together."""

    leases_in_flight: int


class Records(Protocol):
    """The log of the queue."""

    head: int
    earliest_seq: int
    live_count: int

    @property
    def totals(self) -> Totals: ...

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or one behind the head."""
        ...


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


class LeaseQueue:
    __slots__ = ("_again", "_counts", "_due", "_records", "dead_lettered", "fresh_seq", "jobs", "parked")

    def __init__(self, records: Records) -> None:
        self._records = records
        self.fresh_seq = 1
        """What is behind it and no `Job` was never handed out."""
        self.jobs: dict[int, Job] = {}
        self._counts = [0, 0, 0, 0]
        """Of `jobs`, by state."""
        self._again: list[int] = []
        """A heap of those that are ready once more; some may be so no longer."""
        self._due: list[tuple[int, int]] = []
        """A heap of deadlines and seqs; some may count no more."""
        self.parked: dict[int, None] = {}
        """Delivered too often, in the order in which that was found."""
        self.dead_lettered = 0

    # -- what can be asked -------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """As it was at the last `collect`."""
        again, in_flight, delayed, parked = self._counts
        ready = self._records.live_count - len(self.jobs) + again
        return Counts(ready, in_flight, delayed, parked, self.dead_lettered)

    def oldest_ready(self) -> int:
        """The seq of the oldest job that is ready, 0 when none is."""
        again, fresh = self._next_again(), self._next_fresh()
        return min((seq for seq in (again, fresh) if seq), default=0)

    def next_due(self) -> int | None:
        """When the next lease runs out or the next delay is over."""
        due = self._due
        while due and not self._is_due(*due[0]):
            heapq.heappop(due)
        return due[0][0] if due else None

    def is_held(self, seq: int, node: str, lease: int | None) -> bool:
        """Whether the node may end the lease, by its number when it says one (L4)."""
        job = self.jobs.get(seq)
        return (
            job is not None
            and job.state in (IN_FLIGHT, READY)
            and not job.is_leaving
            and job.lease != 0
            and job.node == node
            and (lease is None or lease == job.lease)
        )

    # -- what changes --------------------------------------------------------------------------------------

    def collect(self, now: int) -> bool:
        """See what ran out: such jobs are ready once more. Whether there are some."""
        due, is_found = self._due, False
        while due and due[0][0] <= now:
            deadline, seq = heapq.heappop(due)
            if self._is_due(deadline, seq):
                self._set(seq, self.jobs[seq], READY)
                is_found = True
        return is_found

    def claim(
        self,
        node: str,
        count: int,
        deadline: int,
        deliveries_max: int,
        first_lease: int,
        fits: Callable[[int], bool] = lambda seq: True,
    ) -> list[Claimed]:
        """Hand out up to so many jobs, under numbers from `first_lease` on: the first one, and those behind
        it that fit. What was delivered too often is parked on the way."""
        claimed: list[Claimed] = []
        while len(claimed) < count:
            seq = self._next_again()
            if seq:
                job = self.jobs[seq]
                if deliveries_max and job.deliveries >= deliveries_max:
                    heapq.heappop(self._again)
                    self.park(seq)
                    continue
                if not fits(seq) and claimed:
                    break
                heapq.heappop(self._again)
            else:
                seq = self._next_fresh()
                if not seq or (not fits(seq) and claimed):
                    break
                self.fresh_seq = seq + 1
                job = self._make(seq)
            job.deliveries += 1
            job.lease = first_lease + len(claimed)
            job.node = node
            self._set(seq, job, IN_FLIGHT, deadline)
            claimed.append(Claimed(seq, job.lease, job.deliveries))
        return claimed

    def extend(self, seq: int, deadline: int) -> None:
        self._set(seq, self.jobs[seq], IN_FLIGHT, deadline)

    def give_back(self, seq: int, due: int, reason: str = "") -> None:
        """Its lease is over; it is ready at `due`, at once when that is 0."""
        job = self.jobs[seq]
        job.lease, job.node, job.reason = 0, "", reason or job.reason
        self._set(seq, job, DELAYED if due else READY, due)

    def park(self, seq: int) -> None:
        job = self.jobs[seq]
        job.lease, job.node = 0, ""
        self._set(seq, job, PARKED)

    def leave(self, seqs: Iterable[int]) -> None:
        """Their end is on its way (L6)."""
        for seq in seqs:
            self.jobs[seq].is_leaving = True

    def stay(self, seqs: Iterable[int]) -> None:
        """It did not come to that."""
        for seq in seqs:
            job = self.jobs.get(seq)
            if job is not None:
                job.is_leaving = False
                self._set(seq, job, job.state, job.deadline)

    def held(self, seq: int) -> Held:
        job = self.jobs[seq]
        return Held(seq, job.state, job.deliveries, job.lease, job.deadline, job.node, job.reason)

    def put(self, held: Held) -> None:
        """Make a job what somebody noted of it: the log, a snapshot, or who takes back a change."""
        job = self.jobs.get(held.seq) or self._make(held.seq)
        job.deliveries, job.lease, job.node, job.reason = held.deliveries, held.lease, held.node, held.reason
        self._set(held.seq, job, held.state, held.deadline)

    # -- records that are gone -----------------------------------------------------------------------------

    def gone(self, seq: int) -> None:
        """The record is gone, whoever took it out."""
        job = self.jobs.pop(seq, None)
        if job is not None:
            self._counts[job.state] -= 1
            if job.state == IN_FLIGHT:
                self._records.totals.leases_in_flight -= 1
            self.parked.pop(seq, None)
            # A job's stale deadlines are dropped with those of others.
            if len(self._due) > STALE_MAX + 2 * (self._counts[IN_FLIGHT] + self._counts[DELAYED]):
                self._due = [one for one in set(self._due) if self._is_due(*one)]
                heapq.heapify(self._due)

    def gone_to(self, first: int, last: int) -> None:
        """All records from `first` to `last` are gone."""
        jobs = self.jobs
        if not jobs:
            return
        seqs: Iterable[int] = range(first, last + 1)
        if last - first >= len(jobs):
            seqs = [seq for seq in jobs if seq <= last]
        for seq in seqs:
            self.gone(seq)

    # -- the order -----------------------------------------------------------------------------------------

    def _next_again(self) -> int:
        again, jobs = self._again, self.jobs
        while again:
            job = jobs.get(again[0])
            if job is not None and job.state == READY and not job.is_leaving:
                return again[0]
            heapq.heappop(again)
        return 0

    def _next_fresh(self) -> int:
        records, jobs = self._records, self.jobs
        head = records.head
        seq = records.next_live(self.fresh_seq)
        while seq <= head and seq in jobs:
            seq = records.next_live(seq + 1)
        # What was stepped over need not be looked at again.
        self.fresh_seq = seq
        return seq if seq <= head else 0

    def _is_due(self, deadline: int, seq: int) -> bool:
        job = self.jobs.get(seq)
        return (
            job is not None
            and job.deadline == deadline
            and job.state in (IN_FLIGHT, DELAYED)
            and not job.is_leaving
        )

    def _make(self, seq: int) -> Job:
        job = self.jobs[seq] = Job()
        self._counts[READY] += 1
        return job

    def _set(self, seq: int, job: Job, state: int, deadline: int = 0) -> None:
        counts = self._counts
        counts[job.state] -= 1
        counts[state] += 1
        if job.state != state and IN_FLIGHT in (job.state, state):
            self._records.totals.leases_in_flight += 1 if state == IN_FLIGHT else -1
        if job.state == PARKED != state:
            del self.parked[seq]
        job.state, job.deadline = state, deadline
        if state == READY:
            heapq.heappush(self._again, seq)
        elif state == PARKED:
            self.parked[seq] = None
        else:
            heapq.heappush(self._due, (deadline, seq))
