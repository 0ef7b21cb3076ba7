"""Which job is next of those that nobody had yet, where they go in the order of seqs.

What was never claimed is not known: it is any live record from `seq` on that is no `Job`. Those that are jobs
already, as they came with a delay or a start found them, are kept as rows, so that a million of them is one
step.

Claims that came within one window, served together: one job each in turn, in the order of coming.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TypeVar

from topicsd.engine.queue.job import Records


class FreshJobs:
    __slots__ = ("_rows", "seq")

    def __init__(self) -> None:
        self.seq = 1
        """In front of it none is left."""
        self._rows: deque[list[int]] = deque()
        """First and last seq of each, behind `seq`, in their order."""

    def next(self, records: Records, jobs: Container[int]) -> int:
        """The first one, 0 when there is none."""
        head, rows = records.head, self._rows
        seq = records.next_live(self.seq)
        while seq <= head:
            if rows and rows[0][0] <= seq:
                # It may have gone as a whole.
                seq = records.next_live(max(seq, rows.popleft()[1] + 1))
            elif seq in jobs:
                seq = records.next_live(seq + 1)
            else:
                break
        self.seq = seq
        return seq if seq <= head else 0

    def is_job(self, seq: int) -> None:
        """From here on, until its record is gone."""
        rows = self._rows
        if seq <= self.seq:
            self.seq += seq == self.seq
        elif rows and rows[-1][1] == seq - 1:
            rows[-1][1] = seq
        elif not rows or rows[-1][1] < seq:
            rows.append([seq, seq])


T = TypeVar("T")


def serve_in_turn(askers: Sequence[T], take: Callable[[T], bool]) -> None:
    """Round after round; who gets nothing, or has all, is left out of the next one.

    >>> jobs, got = [1, 2, 3, 4, 5], {"a": [], "b": []}
    >>> def take(asker):
    ...     got[asker] += jobs[:1]
    ...     return bool(jobs) and bool(jobs.pop(0)) and len(got[asker]) < 4
    >>> serve_in_turn(["a", "b"], take)
    >>> got
    {'a': [1, 3, 5], 'b': [2, 4]}
    """
    hungry = list(askers)
    while hungry:
        hungry = [asker for asker in hungry if take(asker)]
