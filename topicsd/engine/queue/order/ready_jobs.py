"""The ready jobs of one queue, in the order in which they are claimed.

Jobs that have a `Job`, because they were claimed, delayed, or have a priority, are in heaps; entries become
outdated when the job is not ready any more. Fresh jobs of an unordered queue are in none: there the position
of the next one is enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from topicsd.engine.queue.job import READY, Job, Records
from topicsd.engine.queue.order.fair_tags import SEQ_MASK, FairTags, rank_of
from topicsd.engine.queue.order.fresh_jobs import FreshJobs
from topicsd.engine.queue.order.lazy_heap import LazyHeap
from topicsd.engine.queue.order.tag_order import TagOrder


class ReadyJobs:
    """The ready jobs of one queue. In a fair queue, `fair` alone decides which job is next."""

    __slots__ = ("_again", "_fresh", "_jobs", "_order", "_records", "_urgent", "fair", "position")

    def __init__(
        self, records: Records, jobs: Mapping[int, Job], order: TagOrder | None, is_fair: bool
    ) -> None:
        self._records = records
        self._jobs = jobs
        self._order = order
        self._again: LazyHeap[int] = LazyHeap(self._is_ready_again)
        """Jobs with a `Job`."""
        self._fresh: LazyHeap[int] = LazyHeap(self._is_fresh_and_ready)
        """In an ordered queue: fresh jobs."""
        self.position = FreshJobs()
        """In an unordered queue: the position of the next fresh job."""
        self._urgent: LazyHeap[int] | None = None
        """The ranks of jobs with a priority; None until there is one."""
        self.fair = FairTags(self._is_ready) if is_fair else None

    def first(self, again_count: int) -> int:
        """Return the seq of the job to claim next, or 0; `again_count` jobs with a `Job` are ready."""
        if self.fair is not None:
            self._again.tidy(again_count)
            return self.fair.first()
        if again_count:
            if self._urgent is not None and (rank := self._urgent.front()) is not None:
                self._again.tidy(again_count)
                return rank & SEQ_MASK
            if front := self._again.front():
                return front
        if self._order is not None:
            return self._fresh.front() or 0
        return self.position.next(self._records, self._jobs)

    def oldest(self) -> int:
        """Return the lowest seq of all ready jobs, or 0."""
        again = self._again.front()
        if self._order is not None:
            fresh = self._fresh.front() or 0
        else:
            fresh = self.position.next(self._records, self._jobs)
        return min((seq for seq in (again, fresh) if seq), default=0)

    def push(self, seq: int, priority: int) -> None:
        """Add a job with a `Job`."""
        self._again.push(seq)
        if self.fair is not None:
            self.fair.push(seq, priority)
        elif priority:
            if self._urgent is None:
                self._urgent = LazyHeap(self._is_urgent)
            self._urgent.push(rank_of(seq, priority))

    def push_fresh(self, seq: int) -> None:
        """Add a fresh job of an ordered or fair queue."""
        if self._order is not None:
            self._fresh.push(seq)
        if self.fair is not None:
            self.fair.push(seq, 0)

    def take(self, seq: int, is_fresh: bool) -> None:
        """Remove the entry of the job that `first` returned, in an ordered or fair queue."""
        if self.fair is not None:
            self.fair.take(seq)
        elif is_fresh:
            self._fresh.pop()

    def tidy(self, again_count: int) -> None:
        self._again.tidy(again_count)
        if self._urgent is not None:
            self._urgent.tidy(again_count)

    def tidy_fresh(self, fresh_count: int) -> None:
        self._fresh.tidy(fresh_count)

    def _is_ready(self, seq: int) -> bool:
        job = self._jobs.get(seq)
        return self._is_fresh_and_ready(seq) if job is None else job.state == READY and not job.is_ending

    def _is_urgent(self, rank: int) -> bool:
        return self._is_ready_again(rank & SEQ_MASK)

    def _is_ready_again(self, seq: int) -> bool:
        job = self._jobs.get(seq)
        return job is not None and job.state == READY and not job.is_ending

    def _is_fresh_and_ready(self, seq: int) -> bool:
        if seq in self._jobs:
            return False
        lane = None if self._order is None else self._order.lane_of(seq)
        if lane is not None:
            return lane.ready == seq
        return self._records.next_live(seq) == seq if self.fair is None else self.fair.has(seq)
