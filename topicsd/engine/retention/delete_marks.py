"""Marks for removing very many records of one run: found on a thread, applied in one step of the event loop.

A mark is one byte per record, so combining two rows of marks is one operation on two large numbers: a
hundredth of the cost of a loop over the records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress
from typing import Final

import msgspec

from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun

SUMMED_AT_ONCE: Final = 8192
_OPPOSITE: Final = bytes([1, 0, *range(2, 256)])


class DeleteMarks(msgspec.Struct, frozen=True, gc=False):
    """A set of seqs, iterated in ascending order."""

    first_seq: int
    live: bytes
    """1 for each record to remove that was live when the marks were made."""
    count: int
    size: int

    def __iter__(self) -> Iterator[int]:
        return compress(range(self.first_seq, self.first_seq + len(self.live)), self.live)

    def __contains__(self, seq: object) -> bool:
        return (
            isinstance(seq, int)
            and 0 <= (index := seq - self.first_seq) < len(self.live)
            and self.live[index] == 1
        )

    def __len__(self) -> int:
        return self.count

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.live.rfind(1)


def mark_records(
    seqs: list[int], first_seq: int, lengths: array[int], dead: bytes | None, earliest_seq: int
) -> DeleteMarks:
    """Return marks for these seqs, except for those dead or below `earliest_seq`.

    >>> mark_records([5, 7, 8], 5, array("I", [10, 20, 30, 40]), bytes([0, 0, 0, 1]), 1)
    DeleteMarks(first_seq=5, live=b'\\x01\\x00\\x01\\x00', count=2, size=40)
    """
    marks = bytearray(len(lengths))
    for seq in seqs:
        marks[seq - first_seq] = 1
    front = min(max(0, earliest_seq - first_seq), len(marks))
    marks[:front] = bytes(front)
    live = bytes(marks) if dead is None else _without(marks, dead)
    return DeleteMarks(first_seq, live, live.count(1), _size(lengths, live))


def mark_range(run: Run, first: int, last: int) -> DeleteMarks:
    """Return marks for the live records of a run from `first` to `last`, none of which was evicted.

    The index of a sealed run is needed only for a part of it.
    """
    low, high = first - run.first_seq, last + 1 - run.first_seq
    live = b"\1" * (high - low) if run.dead is None else run.dead[low:high].translate(_OPPOSITE)
    if isinstance(run, SealedRun) and first == run.first_seq and last == run.next_seq - 1:
        return DeleteMarks(first, bytes(live), run.live_count, run.live_bytes)
    return DeleteMarks(first, bytes(live), live.count(1), _size(run.lengths_of(first, last), live))


def take_marked(run: Run, marks: DeleteMarks, earliest_seq: int) -> DeleteMarks:
    """Remove the marked records from the run; return marks of those that were still live."""
    marks = _without_removed(run, marks, earliest_seq)
    low = marks.first_seq - run.first_seq
    high = low + len(marks.live)
    if run.dead is None:
        run.dead = bytearray(run.next_seq - run.first_seq)
        run.dead[low:high] = marks.live
    else:
        run.dead[low:high] = _or(run.dead[low:high], marks.live)
    if isinstance(run, SealedRun):
        run.count_dead(marks.count, marks.size)
    return marks


def _without_removed(run: Run, marks: DeleteMarks, earliest_seq: int) -> DeleteMarks:
    front = min(max(0, earliest_seq - marks.first_seq), len(marks.live))
    first_seq, live = marks.first_seq + front, marks.live[front:]
    low = first_seq - run.first_seq
    dead = b"" if run.dead is None else run.dead[low : low + len(live)]
    if marks.live.find(1, 0, front) < 0 and not _any_in_both(live, dead):
        return DeleteMarks(first_seq, live, marks.count, marks.size)
    if dead:
        live = _without(live, dead)
    lengths = run.lengths[low : low + len(live)]
    return DeleteMarks(first_seq, live, live.count(1), _size(lengths, live))


def _size(lengths: array[int], live: bytes | bytearray) -> int:
    """Sum the lengths of the live records.

    Summed in parts: a thread inside one `sum` blocks the event loop until it returns.
    """
    size = 0
    for start in range(0, len(live), SUMMED_AT_ONCE):
        end = start + SUMMED_AT_ONCE
        size += sum(compress(lengths[start:end], live[start:end]))
    return size


def _any_in_both(some: bytes, others: bytes | bytearray) -> bool:
    return bool(_number(some) & _number(others))


def _number(marks: bytes | bytearray) -> int:
    return int.from_bytes(marks, "little")


def _without(marks: bytes | bytearray, others: bytes | bytearray) -> bytes:
    number = _number(marks)
    return (number ^ (number & _number(others))).to_bytes(len(marks), "little")


def _or(marks: bytes | bytearray, others: bytes) -> bytes:
    return (_number(marks) | _number(others)).to_bytes(len(marks), "little")
