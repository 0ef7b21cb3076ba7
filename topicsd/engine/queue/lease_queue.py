"""The jobs of one queue: their states, leases and deadlines. Pure: times are arguments, no I/O.

A job that was never claimed and has no delay has no entry here: every live record without a `Job` is such a
fresh job. A claim or a delay creates a `Job`, which exists until its record is removed. So waiting jobs cost
nothing, and a call costs only what it touches.

L1  Each live record is exactly one of ready, in flight, delayed, blocked, parked; `ready` is what the others
    leave.
L2  A job is claimed only while it has no holder, and each time under another lease number. So of two nodes
    that name a job, at most one has the current number.
L3  Jobs that were claimed before are handed out first, in the order of seqs; fresh jobs follow. Jobs with a
    priority are before both, the highest first. A fair queue chooses the tag first (`order/fair_tags.py`).
L4  An expired lease or delay takes effect at the next `collect`, which handles a bounded number per call.
    Until another node claims the job, its last holder may still end it: the work is done, and is not done
    twice. It may also keep the job, unless an earlier job of the tag blocks it by then (L7). With a back-off
    the job is delayed from the end of its lease on.
L5  `max_deliveries` is checked when a job would be delivered again: then the job is parked.
L6  A job whose end is on its way to the log is *ending*: it cannot be claimed, and is counted in its old
    state.
L7  In a queue ordered by tag (`order/tag_order.py`), a job is *blocked* until all earlier jobs of its tag are
    removed or parked. A delayed job blocks the later ones of its tag too.
L8  A parked job that may be in the dead-letter topic already is *sent*, and never claimed again.
L9  When very many records are removed at once, their jobs are removed a few at a time (`remove_some`). Until
    that is over, no job is claimed, no job without a record can be ended, and the counts are not final.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, KeysView
from itertools import islice
from typing import Final

from topicsd.engine.queue.job import (
    ASIDE,
    BLOCKED,
    DELAYED,
    IN_FLIGHT,
    PARKED,
    READY,
    SENT,
    ClaimedJob,
    Counts,
    Job,
    JobState,
    Outcomes,
    Records,
    last_reason,
)
from topicsd.engine.queue.order.lazy_heap import LazyHeap
from topicsd.engine.queue.order.ready_jobs import ReadyJobs
from topicsd.engine.queue.order.tag_order import Lane, TagOrder

# The most expired jobs per call: a million may expire in one moment.
COLLECTED_MAX: Final = 100
# The most outdated heap entries that one call skips.
STEPPED_OVER_MAX: Final = 1000
# Seqs of removed records per step.
REMOVED_AT_ONCE: Final = 250
_EVERY_SEQ: Final = 1 << 64


class LeaseQueue:
    """The jobs of one queue."""

    __slots__ = (
        "_blocked_fresh",
        "_counts",
        "_due",
        "_fair",
        "_ready",
        "_records",
        "_removals",
        "dead_lettered",
        "former_dead_letters",
        "known_jobs",
        "needs_tags",
        "order",
        "outcomes",
        "parked",
    )

    def __init__(self, records: Records, is_by_tag: bool = False, is_fair: bool = False) -> None:
        self._records = records
        self.order = TagOrder() if is_by_tag else None
        """Set for an ordered queue."""
        self.needs_tags = is_by_tag or is_fair
        """Whether `add_record` has to be called for each new record."""
        self._blocked_fresh = 0
        """In an ordered queue: the number of fresh jobs that are blocked."""
        self.known_jobs: dict[int, Job] = {}
        self._ready = ReadyJobs(records, self.known_jobs, self.order, is_fair)
        self._fair = self._ready.fair
        self._counts = [0, 0, 0, 0, 0, 0]
        """The number of `known_jobs` in each state."""
        self._due = LazyHeap(self._is_due)
        """Pairs of deadline and seq. May contain outdated entries."""
        self.parked: OrderedDict[int, None] = OrderedDict()
        """Jobs delivered too often, in the order of parking. An OrderedDict, since they leave from the front,
        which a plain dict finds only by a search."""
        self.former_dead_letters: dict[str, None] = {}
        """Previous dead-letter topics that may hold a copy of a parked job."""
        self.dead_lettered = 0
        self.outcomes = Outcomes()
        self._removals: deque[tuple[Iterator[int], Container[int]]] = deque()
        """Seqs whose jobs may still be here, and which of them are of removed records (L9)."""

    # -- queries -----------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Return the counts by state as of the last `collect`."""
        again, in_flight, delayed, parked, blocked, sent = self._counts
        ready = self._fresh_ready_count() + again
        blocked += self._blocked_fresh
        # Jobs whose removal is pending (L9) are no longer live records, but still have entries.
        return Counts(max(0, ready), in_flight, delayed, parked + sent, self.dead_lettered, blocked)

    def oldest_ready(self) -> int:
        """Return the seq of the oldest ready job, or 0 if none is ready or a removal is under way."""
        return 0 if self.is_removing else self._ready.oldest()

    def ready_since(self, seq: int) -> int:
        """Return when the delay of a fresh job ended, or 0 if it had none."""
        job = self.known_jobs.get(seq)
        return 0 if job is None or job.deliveries else job.deadline

    def blocked_by(self, seq: int) -> int:
        """Return the seq of the job of the same tag that blocks `seq`, or 0."""
        lane = None if self.order is None else self.order.lane_of(seq)
        if self.order is None or lane is None or lane.ready == seq:
            return 0
        front = self.order.front(lane)
        if front != seq:
            return front
        # A parked job was freed while a later job of its tag was in flight.
        jobs = self.known_jobs
        return next((one for one in self.order.seqs_in(lane) if _is_in_flight(jobs.get(one))), 0)

    def next_due(self) -> int | None:
        """Return the time of the next lease expiry or end of a delay, or an earlier time, or None."""
        due = self._due
        for _ in range(STEPPED_OVER_MAX):
            entry = due.lowest()
            if entry is None or self._is_due(entry):
                break
            due.pop()
        return None if entry is None else entry[0]

    def is_held(self, seq: int, node: str, lease: int | None, is_extend: bool = False) -> bool:
        """Return whether `node` may end this lease (None: any), or extend it with `is_extend` (L4)."""
        job = self.known_jobs.get(seq)
        return (
            job is not None
            and (job.state in (IN_FLIGHT, READY, DELAYED) or (job.state == BLOCKED and not is_extend))
            and not job.is_ending
            and job.lease != 0
            and job.node == node
            and (lease is None or lease == job.lease)
            and (not self._removals or self._records.next_live(seq) == seq)
        )

    @property
    def is_removing(self) -> bool:
        """Return whether a removal of jobs is under way (L9)."""
        return bool(self._removals)

    # -- changes -------------------------------------------------------------------------------------------

    def add_record(self, seq: int, tag: bytes) -> None:
        """Enter a record that was written, or found by recovery. Calls are in the order of seqs."""
        order, fair = self.order, self._fair
        if fair is not None:
            fair.add(seq, tag)
        if order is not None and tag:
            lane = order.add(seq, tag)
            self._blocked_fresh += 1
            if not lane.ready:
                self._update_lane(lane)
        elif self.needs_tags:
            self._ready.push_fresh(seq)
        if order is not None:
            self._ready.tidy_fresh(self._fresh_ready_count())

    def delay(self, seqs: Iterable[int], due: int) -> None:
        """Delay these new jobs until `due`."""
        for seq in seqs:
            self._change_state(seq, self._create_job(seq), DELAYED, due)

    def prioritize(self, seqs: Iterable[int], priority: int) -> None:
        """Set the priority of these jobs."""
        for seq in seqs:
            job = self.known_jobs.get(seq) or self._create_job(seq)
            job.priority = priority
            self._change_state(seq, job, READY if job.state == BLOCKED else job.state, job.deadline)

    def collect_job(self, seq: int, now: int) -> None:
        """Collect this job, even if very many others are due."""
        job = self.known_jobs.get(seq)
        while job is not None and job.deadline <= now and self._is_due((job.deadline, seq)):
            self._end_wait(seq, job, job.deadline)

    def _end_wait(self, seq: int, job: Job, deadline: int) -> None:
        """End a delay or a lease; the back-off of an expired lease begins at its end."""
        wait_ms = self._records.retry_wait_ms(job.deliveries) if job.state == IN_FLIGHT else 0
        self._change_state(seq, job, DELAYED if wait_ms else READY, deadline + wait_ms)

    def collect(self, now: int, count_max: int = COLLECTED_MAX) -> bool:
        """End the leases and delays that are due; return whether there were any."""
        due, count, stepped_over = self._due, 0, 0
        while count < count_max and stepped_over < STEPPED_OVER_MAX:
            entry = due.lowest()
            if entry is None or entry[0] > now:
                break
            due.pop()
            if self._is_due(entry):
                deadline, seq = entry
                self._end_wait(seq, self.known_jobs[seq], deadline)
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
    ) -> list[ClaimedJob]:
        """Lease up to `count` jobs until one does not fit; lease numbers start at `first_lease`.

        Jobs delivered too often are parked on the way, until `parked_max` jobs are parked.
        """
        claimed: list[ClaimedJob] = []
        if self.is_removing:
            return claimed
        ready, jobs, counts = self._ready, self.known_jobs, self._counts
        while len(claimed) < count:
            seq = ready.first(counts[READY])
            if not seq:
                break
            job = jobs.get(seq)
            if deliveries_max and job is not None and job.deliveries >= deliveries_max:
                if len(self.parked) >= parked_max:
                    break
                self.park(seq)
                continue
            if not fits(seq):
                break
            if self.needs_tags:
                ready.take(seq, job is None)
            if job is None:
                job = self._create_job(seq)
            job.deliveries += 1
            job.lease = first_lease + len(claimed)
            job.node = node
            if self.order is None:
                self._set_state(seq, job, IN_FLIGHT, deadline)
            else:
                self._change_state(seq, job, IN_FLIGHT, deadline)
            claimed.append(ClaimedJob(seq, job.lease, job.deliveries))
        return claimed

    def extend(self, seq: int, deadline: int) -> None:
        self._change_state(seq, self.known_jobs[seq], IN_FLIGHT, deadline)

    def return_job(self, seq: int, due: int, reason: str = "") -> None:
        """End the lease of a job and make it ready at `due`, or at once if that is 0."""
        job = self.known_jobs[seq]
        job.lease, job.node, job.reason = 0, "", reason or job.reason
        self._change_state(seq, job, DELAYED if due else READY, due)

    def park(self, seq: int) -> None:
        job = self.known_jobs[seq]
        job.reason = last_reason(job)
        job.lease, job.node = 0, ""
        self._change_state(seq, job, PARKED)

    def mark_sent(self, seqs: Iterable[int]) -> None:
        """Mark parked jobs as sent: the dead-letter topic may have them from now on (L8)."""
        for seq in seqs:
            self._change_state(seq, self.known_jobs[seq], SENT)

    def unpark(self, seqs: Iterable[int], deliveries_max: int) -> None:
        """Make those of these parked jobs ready that have fewer than `deliveries_max` deliveries."""
        seqs_to_unpark = [
            seq
            for seq in seqs
            if (job := self.known_jobs[seq]).state == PARKED
            and not job.is_ending
            and (not deliveries_max or job.deliveries < deliveries_max)
        ]
        for seq in seqs_to_unpark:
            self._change_state(seq, self.known_jobs[seq], READY)

    def mark_ending(self, seqs: Iterable[int]) -> None:
        """Mark jobs whose end is on its way to the log (L6)."""
        for seq in seqs:
            self.known_jobs[seq].is_ending = True

    def unmark_ending(self, seqs: Iterable[int]) -> None:
        """Undo `mark_ending`: the jobs have not ended."""
        for seq in seqs:
            job = self.known_jobs.get(seq)
            if job is not None:
                job.is_ending = False
                self._change_state(seq, job, job.state, job.deadline)

    def job_state(self, seq: int) -> JobState:
        job = self.known_jobs[seq]
        return JobState(seq, job.state, job.deliveries, job.lease, job.deadline, job.node, job.reason)

    def restore(self, state: JobState) -> None:
        """Set a job to a state recorded in the log, in a snapshot, or before an undone change."""
        job = self.known_jobs.get(state.seq) or self._create_job(state.seq)
        job.deliveries, job.lease, job.node, job.reason = (
            state.deliveries,
            state.lease,
            state.node,
            state.reason,
        )
        self._change_state(state.seq, job, READY if state.state == BLOCKED else state.state, state.deadline)

    # -- removed records -----------------------------------------------------------------------------------

    def remove(self, seq: int) -> None:
        """Drop the job of a removed record, whatever removed it."""
        lane = self._remove_job(seq)
        if lane is not None:
            self._update_lane(lane)

    def remove_range(self, first: int, last: int) -> None:
        """Drop the jobs of the removed records `first` to `last`; no earlier record is left."""
        known: list[KeysView[int]] = [self.known_jobs.keys()]
        if self.order is not None:
            known.append(self.order.seqs())
        if self._fair is not None:
            known.append(self._fair.seqs())
        count = sum(map(len, known))
        if not count:
            return
        if last - first < REMOVED_AT_ONCE:
            self._remove_all(range(first, last + 1))
        elif count <= last - first:
            self._remove_later([seq for seqs in known for seq in seqs], range(last + 1))
        else:
            self.remove_many(range(first, last + 1))

    def remove_many(self, seqs: Collection[int]) -> None:
        """Drop the jobs of the removed records `seqs`; there may be very many (L9)."""
        has_few_jobs = not self.needs_tags and len(self.known_jobs) < len(seqs)
        self._remove_later(list(self.known_jobs) if has_few_jobs else seqs, seqs)

    def _remove_later(self, seqs: Collection[int], removed: Container[int]) -> None:
        if seqs:
            self._removals.append((iter(seqs), removed))
            self._records.schedule_removal()

    def remove_some(self) -> bool:
        """Drop some jobs whose records are removed; return whether there are more."""
        left = REMOVED_AT_ONCE
        while self._removals and left:
            seqs, removed = self._removals[0]
            seq_group = list(islice(seqs, left))
            self._remove_all([seq for seq in seq_group if seq in removed])
            left -= len(seq_group)
            if left:
                self._removals.popleft()
        return self.is_removing

    def _remove_all(self, seqs: Iterable[int]) -> None:
        lanes = {lane for seq in seqs if (lane := self._remove_job(seq)) is not None}
        for lane in lanes:
            self._update_lane(lane)

    def _remove_job(self, seq: int) -> Lane | None:
        """Remove a job; return the lane that it was in."""
        job = self.known_jobs.pop(seq, None)
        counts = self._counts
        if job is not None:
            state = job.state
            counts[state] -= 1
            if state == IN_FLIGHT:
                self._records.totals.leases_in_flight -= 1
            elif state in ASIDE:
                del self.parked[seq]
            if state == READY:
                self._ready.tidy(counts[READY])
            elif state in (IN_FLIGHT, DELAYED):
                self._due.tidy(counts[IN_FLIGHT] + counts[DELAYED])
        if self._fair is not None:
            self._fair.remove(seq, job is not None and job.state == IN_FLIGHT)
        lane = None if self.order is None else self.order.remove(seq)
        if lane is not None:
            if job is None:
                self._blocked_fresh -= lane.ready != seq
            else:
                lane.in_flight_count -= job.state == IN_FLIGHT
            if lane.ready == seq:
                lane.ready = 0
        if self.order is not None and job is None:
            self._ready.tidy_fresh(self._fresh_ready_count())
        return lane

    # -- order ---------------------------------------------------------------------------------------------

    def _is_due(self, entry: tuple[int, int]) -> bool:
        deadline, seq = entry
        job = self.known_jobs.get(seq)
        return (
            job is not None
            and job.deadline == deadline
            and job.state in (IN_FLIGHT, DELAYED)
            and not job.is_ending
        )

    def _fresh_ready_count(self) -> int:
        return self._records.live_count - len(self.known_jobs) - self._blocked_fresh

    def _create_job(self, seq: int) -> Job:
        job = self.known_jobs[seq] = Job()
        self._counts[READY] += 1
        if self.order is not None:
            lane = self.order.lane_of(seq)
            if lane is not None and lane.ready != seq:
                self._blocked_fresh -= 1
        if not self.needs_tags:
            self._ready.position.note_job(seq)
        return job

    def _change_state(self, seq: int, job: Job, state: int, deadline: int = 0) -> None:
        order = self.order
        if order is None:
            self._set_state(seq, job, state, deadline)
            return
        if state in ASIDE:
            lane = order.set_aside(seq)
        elif job.state in ASIDE:
            lane = order.put_back(seq)
        else:
            lane = order.lane_of(seq)
        if lane is None:
            self._set_state(seq, job, state, deadline)
            return
        lane.in_flight_count += (state == IN_FLIGHT) - (job.state == IN_FLIGHT)
        if lane.ready == seq:
            lane.ready = 0
        self._set_state(seq, job, BLOCKED if state == READY else state, deadline)
        self._update_lane(lane)

    def _update_lane(self, lane: Lane) -> None:
        """Update which job of a lane is ready, if any (L7)."""
        assert self.order is not None
        front = 0 if lane.in_flight_count else self.order.front(lane)
        if lane.ready and lane.ready != front:
            job = self.known_jobs.get(lane.ready)
            if job is None:
                self._blocked_fresh += 1
            else:
                self._set_state(lane.ready, job, BLOCKED, job.deadline)
            lane.ready = 0
        if not front or lane.ready:
            return
        job = self.known_jobs.get(front)
        if job is None:
            lane.ready = front
            self._blocked_fresh -= 1
            self._ready.push_fresh(front)
        elif job.state == BLOCKED:
            lane.ready = front
            self._set_state(front, job, READY, job.deadline)

    def _set_state(self, seq: int, job: Job, state: int, deadline: int) -> None:
        counts = self._counts
        counts[job.state] -= 1
        counts[state] += 1
        if job.state != state and IN_FLIGHT in (job.state, state):
            change = 1 if state == IN_FLIGHT else -1
            self._records.totals.leases_in_flight += change
            if self._fair is not None:
                self._fair.change_in_flight(seq, change)
        if state in ASIDE:
            self.parked[seq] = None
        elif job.state in ASIDE:
            del self.parked[seq]
        was_due = job.state in (IN_FLIGHT, DELAYED)
        job.state, job.deadline = state, deadline
        if was_due:
            self._due.tidy(counts[IN_FLIGHT] + counts[DELAYED])
        if state == READY:
            self._ready.push(seq, job.priority)
        elif state in (IN_FLIGHT, DELAYED):
            self._due.push((deadline, seq))


def _is_in_flight(job: Job | None) -> bool:
    return job is not None and job.state == IN_FLIGHT
