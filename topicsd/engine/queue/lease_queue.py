"""The jobs of one queue: which are ready, who holds which and until when. Pure: the log, a number, the time.

A job that was never claimed is not known here: it is any live record that is no `Job`. One that was
claimed, or came with a delay, is a `Job` until its record is gone. So one that only waits costs nothing, and
a call costs what it touches.

L1  Each live record is exactly one of ready, in flight, delayed, blocked, parked; `ready` is what the others
    leave.
L2  A job is handed out only when nobody holds it, and each time under another number. So of two who name a
    job at most one has the number that counts.
L3  What was claimed before goes first, in the order of seqs, then what was never claimed.
L4  A lease that ran out, or a delay, is seen by whoever looks next (`collect`), at most so many at a time, as
    the others can wait for the next look. Until another one has the job, the one who had it last may still
    end it: it is done, and nobody does it twice. Or keep it, unless it stands behind another by then (L7).
L5  Whether a job was delivered too often is asked when it would be delivered again: then it is parked.
L6  A job that is leaving, as its end is on its way to the log, is nobody's to take; it counts as what it was.
L7  Where jobs go in the order of their tags (`tag_order.py`), a job waits, *blocked*, for those of its tag in
    front of it to be gone or parked; a delay of one in front keeps it waiting too.
L8  What is parked and may be in the dead-letter topic already is *sent*, and never handed out again.
L9  When very many records go at once their jobs leave a few at a time (`see_gone`). Until then nothing is
    handed out, nobody ends a job whose record is gone, and the counts are on their way to what they will be.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from topicsd.engine.queue.fresh_jobs import FreshJobs
from topicsd.engine.queue.job import (
    ASIDE,
    BLOCKED,
    DELAYED,
    IN_FLIGHT,
    PARKED,
    READY,
    SENT,
    Claimed,
    Counts,
    Endings,
    Held,
    Job,
    Records,
)
from topicsd.engine.queue.lazy_heap import LazyHeap
from topicsd.engine.queue.tag_order import Lane, TagOrder

# Of a million jobs that are due in one moment nobody has to see all at once.
COLLECTED_MAX: Final = 100
# Deadlines that count no more, which one call may have to step over.
STEPPED_OVER_MAX: Final = 1000
# Seqs that are looked at in one step, of records that are gone.
GONE_AT_ONCE: Final = 250
_EVERY_SEQ: Final = 1 << 64


class LeaseQueue:
    __slots__ = (
        "_again",
        "_blocked_fresh",
        "_by_seq",
        "_counts",
        "_due",
        "_fresh",
        "_going",
        "_records",
        "dead_lettered",
        "endings",
        "former",
        "jobs",
        "later",
        "order",
        "parked",
    )

    def __init__(self, records: Records, is_by_tag: bool = False) -> None:
        self._records = records
        self.order = TagOrder() if is_by_tag else None
        """With it the queue has to be told what comes (`came`)."""
        self._fresh = LazyHeap(self._is_fresh_and_ready)
        """With an order: those that nobody had yet and that are ready; some may be so no longer."""
        self._blocked_fresh = 0
        """With an order: how many that nobody had yet are blocked."""
        self._by_seq = FreshJobs()
        """Without one."""
        self.jobs: dict[int, Job] = {}
        self._counts = [0, 0, 0, 0, 0, 0]
        """Of `jobs`, by state."""
        self._again = LazyHeap(self._is_ready_again)
        """Those that are ready once more; some may be so no longer."""
        self._due = LazyHeap(self._is_due)
        """Deadlines and seqs; some may count no more."""
        self.parked: OrderedDict[int, None] = OrderedDict()
        """Delivered too often, in the order in which that was found. They leave from the front, which a plain
        dict would search for."""
        self.former: dict[str, None] = {}
        """Dead-letter topics that were named before, where one of those that are parked may be."""
        self.dead_lettered = 0
        self.endings = Endings()
        self._going: deque[tuple[Iterator[int], int]] = deque()
        """Records that are gone and whose jobs may be here, in rows, and what of a row is meant (L9)."""
        self.later: Callable[[], object] | None = None
        """Has `see_gone` called until that says that it is over; without it all is done at once."""

    # -- what can be asked -------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """As it was at the last `collect`."""
        again, in_flight, delayed, parked, blocked, sent = self._counts
        ready = self._fresh_ready_count() + again
        blocked += self._blocked_fresh
        # What has not left yet (L9) is no record any more, and a job still.
        return Counts(max(0, ready), in_flight, delayed, parked + sent, self.dead_lettered, blocked)

    def oldest_ready(self) -> int:
        """The seq of the oldest job that is ready, 0 when none is, or it is not known yet."""
        if self.is_going:
            return 0
        again, fresh = self._again.front(), self._next_fresh()
        return min((seq for seq in (again, fresh) if seq), default=0)

    def ready_since(self, seq: int) -> int:
        """When the delay of one that nobody had yet was over, 0 when it had none."""
        job = self.jobs.get(seq)
        return 0 if job is None or job.deliveries else job.deadline

    def blocked_by(self, seq: int) -> int:
        """The job of its tag that it waits for, 0 when that is none."""
        lane = None if self.order is None else self.order.lane_of(seq)
        if self.order is None or lane is None or lane.ready == seq:
            return 0
        front = self.order.front(lane)
        if front != seq:
            return front
        # It was freed when one behind it was on its way.
        jobs = self.jobs
        return next((one for one in self.order.standing(lane) if _is_in_flight(jobs.get(one))), 0)

    def next_due(self) -> int | None:
        """When the next lease runs out or the next delay is over; or earlier, for who looks again then."""
        due = self._due
        for _ in range(STEPPED_OVER_MAX):
            entry = due.lowest()
            if entry is None or self._is_due(entry):
                break
            due.pop()
        return None if entry is None else entry[0]

    def is_held(self, seq: int, node: str, lease: int | None, is_kept: bool = False) -> bool:
        """Whether the node may end the lease, by its number when it says one, or keep it (L4)."""
        job = self.jobs.get(seq)
        return (
            job is not None
            and (job.state in (IN_FLIGHT, READY) or (job.state == BLOCKED and not is_kept))
            and not job.is_leaving
            and job.lease != 0
            and job.node == node
            and (lease is None or lease == job.lease)
            and (not self._going or self._records.next_live(seq) == seq)
        )

    @property
    def is_going(self) -> bool:
        """Jobs are leaving (L9)."""
        return bool(self._going)

    # -- what changes --------------------------------------------------------------------------------------

    def came(self, seq: int, tag: bytes) -> None:
        """A record is there, or with a start was found; they come in the order of seqs."""
        order = self.order
        if order is None:
            return
        if tag:
            lane = order.came(seq, tag)
            self._blocked_fresh += 1
            if not lane.ready:
                self._turn(lane)
        else:
            self._fresh.push(seq)
        self._fresh.tidy(self._fresh_ready_count())

    def delay(self, seqs: Iterable[int], due: int) -> None:
        """These that have just come are ready then."""
        for seq in seqs:
            self._set(seq, self._make(seq), DELAYED, due)

    def see(self, seq: int, now: int) -> None:
        """Collect this one, also where very many are due."""
        job = self.jobs.get(seq)
        if job is not None and job.deadline <= now and self._is_due((job.deadline, seq)):
            self._set(seq, job, READY, job.deadline)

    def collect(self, now: int, count_max: int = COLLECTED_MAX) -> bool:
        """See what ran out: such jobs are ready once more. Whether there are some."""
        due, count, stepped_over = self._due, 0, 0
        while count < count_max and stepped_over < STEPPED_OVER_MAX:
            entry = due.lowest()
            if entry is None or entry[0] > now:
                break
            due.pop()
            if self._is_due(entry):
                deadline, seq = entry
                self._set(seq, self.jobs[seq], READY, deadline)
                count += 1
            else:
                stepped_over += 1
        return count > 0

    def claim(
        self,
        node: str,
        count: int,
        deadline: int,
        deliveries_max: int,
        first_lease: int,
        fits: Callable[[int], bool] = lambda seq: True,
        parked_max: int = _EVERY_SEQ,
    ) -> list[Claimed]:
        """Hand out up to so many jobs, under numbers from `first_lease` on, until one does not fit. What was
        delivered too often is parked on the way, until so many are."""
        claimed: list[Claimed] = []
        if self.is_going:
            return claimed
        again = self._again
        while len(claimed) < count:
            seq = again.front() if self._counts[READY] else None
            if seq is not None:
                job = self.jobs[seq]
                if deliveries_max and job.deliveries >= deliveries_max:
                    if len(self.parked) >= parked_max:
                        break
                    again.pop()
                    self.park(seq)
                    continue
                if not fits(seq):
                    break
                again.pop()
            else:
                seq = self._next_fresh()
                if not seq or not fits(seq):
                    break
                if self.order is not None:
                    self._fresh.pop()
                job = self._make(seq)
            job.deliveries += 1
            job.lease = first_lease + len(claimed)
            job.node = node
            if self.order is None:
                self._enter(seq, job, IN_FLIGHT, deadline)
            else:
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

    def send(self, seqs: Iterable[int]) -> None:
        """These that are parked may be in the dead-letter topic from now on (L8)."""
        for seq in seqs:
            self._set(seq, self.jobs[seq], SENT)

    def free(self, seqs: Iterable[int], deliveries_max: int) -> None:
        """What of these is parked and was not delivered too often by this measure is ready again."""
        freed = [
            seq
            for seq in seqs
            if (job := self.jobs[seq]).state == PARKED
            and not job.is_leaving
            and (not deliveries_max or job.deliveries < deliveries_max)
        ]
        for seq in freed:
            self._set(seq, self.jobs[seq], READY)

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
        self._set(held.seq, job, READY if held.state == BLOCKED else held.state, held.deadline)

    # -- records that are gone -----------------------------------------------------------------------------

    def gone(self, seq: int) -> None:
        """The record is gone, whoever took it out."""
        lane = self._take_out(seq)
        if lane is not None:
            self._turn(lane)

    def gone_to(self, first: int, last: int) -> None:
        """All records from `first` to `last` are gone, and none in front of them is left."""
        known = [self.jobs.keys()] if self.order is None else [self.jobs.keys(), self.order.seqs()]
        count = sum(map(len, known))
        if not count:
            return
        if last - first < GONE_AT_ONCE:
            self._leave(range(first, last + 1))
        elif count <= last - first:
            self.all_gone([seq for seqs in known for seq in seqs], last)
        else:
            self.all_gone(range(first, last + 1))

    def all_gone(self, seqs: Iterable[int], last: int = _EVERY_SEQ) -> None:
        """These are gone, as far as they are not behind `last`, and there may be very many (L9)."""
        self._going.append((iter(seqs), last))
        if self.later is not None:
            self.later()
            return
        while self.see_gone():
            pass

    def see_gone(self) -> bool:
        """Let some of the jobs leave whose records are gone; whether there are more."""
        left = GONE_AT_ONCE
        while self._going and left:
            seqs, last = self._going[0]
            here = list(islice(seqs, left))
            self._leave([seq for seq in here if seq <= last])
            left -= len(here)
            if left:
                self._going.popleft()
        return self.is_going

    def _leave(self, seqs: Iterable[int]) -> None:
        lanes = {lane for seq in seqs if (lane := self._take_out(seq)) is not None}
        for lane in lanes:
            self._turn(lane)

    def _take_out(self, seq: int) -> Lane | None:
        """The lane that it stood in."""
        job = self.jobs.pop(seq, None)
        counts = self._counts
        if job is not None:
            state = job.state
            counts[state] -= 1
            if state == IN_FLIGHT:
                self._records.totals.leases_in_flight -= 1
            elif state in ASIDE:
                del self.parked[seq]
            if state == READY:
                self._again.tidy(counts[READY])
            elif state in (IN_FLIGHT, DELAYED):
                self._due.tidy(counts[IN_FLIGHT] + counts[DELAYED])
        lane = None if self.order is None else self.order.gone(seq)
        if lane is not None:
            if job is None:
                self._blocked_fresh -= lane.ready != seq
            else:
                lane.held -= job.state == IN_FLIGHT
            if lane.ready == seq:
                lane.ready = 0
        if self.order is not None and job is None:
            self._fresh.tidy(self._fresh_ready_count())
        return lane

    # -- the order -----------------------------------------------------------------------------------------

    def _is_ready_again(self, seq: int) -> bool:
        job = self.jobs.get(seq)
        return job is not None and job.state == READY and not job.is_leaving

    def _next_fresh(self) -> int:
        if self.order is not None:
            return self._fresh.front() or 0
        return self._by_seq.next(self._records, self.jobs)

    def _is_due(self, entry: tuple[int, int]) -> bool:
        deadline, seq = entry
        job = self.jobs.get(seq)
        return (
            job is not None
            and job.deadline == deadline
            and job.state in (IN_FLIGHT, DELAYED)
            and not job.is_leaving
        )

    def _fresh_ready_count(self) -> int:
        return self._records.live_count - len(self.jobs) - self._blocked_fresh

    def _is_fresh_and_ready(self, seq: int) -> bool:
        if seq in self.jobs:
            return False
        lane = None if self.order is None else self.order.lane_of(seq)
        return self._records.next_live(seq) == seq if lane is None else lane.ready == seq

    def _make(self, seq: int) -> Job:
        job = self.jobs[seq] = Job()
        self._counts[READY] += 1
        if self.order is not None:
            lane = self.order.lane_of(seq)
            if lane is not None and lane.ready != seq:
                self._blocked_fresh -= 1
        else:
            self._by_seq.is_job(seq)
        return job

    def _set(self, seq: int, job: Job, state: int, deadline: int = 0) -> None:
        order = self.order
        if order is None:
            self._enter(seq, job, state, deadline)
            return
        if state in ASIDE:
            lane = order.set_aside(seq)
        elif job.state in ASIDE:
            lane = order.put_back(seq)
        else:
            lane = order.lane_of(seq)
        if lane is None:
            self._enter(seq, job, state, deadline)
            return
        lane.held += (state == IN_FLIGHT) - (job.state == IN_FLIGHT)
        if lane.ready == seq:
            lane.ready = 0
        self._enter(seq, job, BLOCKED if state == READY else state, deadline)
        self._turn(lane)

    def _turn(self, lane: Lane) -> None:
        """See whose turn it is in a lane (L7)."""
        assert self.order is not None
        front = 0 if lane.held else self.order.front(lane)
        if lane.ready and lane.ready != front:
            job = self.jobs.get(lane.ready)
            if job is None:
                self._blocked_fresh += 1
            else:
                self._enter(lane.ready, job, BLOCKED, job.deadline)
            lane.ready = 0
        if not front or lane.ready:
            return
        job = self.jobs.get(front)
        if job is None:
            lane.ready = front
            self._blocked_fresh -= 1
            self._fresh.push(front)
        elif job.state == BLOCKED:
            lane.ready = front
            self._enter(front, job, READY, job.deadline)

    def _enter(self, seq: int, job: Job, state: int, deadline: int) -> None:
        counts = self._counts
        counts[job.state] -= 1
        counts[state] += 1
        if job.state != state and IN_FLIGHT in (job.state, state):
            self._records.totals.leases_in_flight += 1 if state == IN_FLIGHT else -1
        if state in ASIDE:
            self.parked[seq] = None
        elif job.state in ASIDE:
            del self.parked[seq]
        was_due = job.state in (IN_FLIGHT, DELAYED)
        job.state, job.deadline = state, deadline
        if was_due:
            self._due.tidy(counts[IN_FLIGHT] + counts[DELAYED])
        if state == READY:
            self._again.push(seq)
        elif state in (IN_FLIGHT, DELAYED):
            self._due.push((deadline, seq))


def _is_in_flight(job: Job | None) -> bool:
    return job is not None and job.state == IN_FLIGHT
