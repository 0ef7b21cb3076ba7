"""The next fresh job in the order of seqs, and fair turns between claims served together.

A fresh job has no entry of its own: it is any live record from `seq` on without a `Job`. Records there that
have a `Job`, from a delay or from recovery, are kept as ranges, so that skipping a million of them is one
step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TypeVar

from topicsd.engine.queue.job import Records


class FreshJobs:
    """The position of the next fresh job in an unordered queue."""

    __slots__ = ("_job_ranges", "seq")

    def __init__(self) -> None:
        self.seq = 1
        """No fresh job is before it."""
        self._job_ranges: deque[list[int]] = deque()
        """First and last seq of each range of jobs after `seq`, ascending."""

    def next(self, records: Records, jobs: Container[int]) -> int:
        """Return the seq of the first fresh job, or 0."""
        head, rows = records.head, self._job_ranges
        seq = records.next_live(self.seq)
        while seq <= head:
            if rows and rows[0][0] <= seq:
                # The record after the range may be removed too.
                seq = records.next_live(max(seq, rows.popleft()[1] + 1))
            elif seq in jobs:
                seq = records.next_live(seq + 1)
            else:
                break
        self.seq = seq
        return seq if seq <= head else 0

    def note_job(self, seq: int) -> None:
        """Note that the record has a `Job`, until it is removed."""
        rows = self._job_ranges
        if seq <= self.seq:
            self.seq += seq == self.seq
        elif rows and rows[-1][1] == seq - 1:
            rows[-1][1] = seq
        elif not rows or rows[-1][1] < seq:
            rows.append([seq, seq])


T = TypeVar("T")


def serve_in_turn(claims: Sequence[T], take: Callable[[T], bool]) -> None:
    """Serve claims round after round; one that gets no job, or has enough, drops out.

    >>> jobs, leased = [1, 2, 3, 4, 5], {"a": [], "b": []}
    >>> def take(claim):
    ...     leased[claim] += jobs[:1]
    ...     return bool(jobs) and bool(jobs.pop(0)) and len(leased[claim]) < 4
    >>> serve_in_turn(["a", "b"], take)
    >>> leased
    {'a': [1, 3, 5], 'b': [2, 4]}
    """
    unserved = list(claims)
    while unserved:
        unserved = [claim for claim in unserved if take(claim)]
