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


class Marks(msgspec.Struct, frozen=True, gc=False):
    """A set of seqs, iterated in ascending order."""

    first_seq: int
    alive: bytes
    """1 for each record to remove that was live when the marks were made."""
    count: int
    size: int

    def __iter__(self) -> Iterator[int]:
        return compress(range(self.first_seq, self.first_seq + len(self.alive)), self.alive)

    def __len__(self) -> int:
        return self.count

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.alive.rfind(1)


def mark(
    seqs: list[int], first_seq: int, lengths: array[int], dead: bytes | None, earliest_seq: int
) -> Marks:
    """Return marks for these seqs, except for those dead or below `earliest_seq`.

    >>> mark([5, 7, 8], 5, array("I", [10, 20, 30, 40]), bytes([0, 0, 0, 1]), 1)
    Marks(first_seq=5, alive=b'\\x01\\x00\\x01\\x00', count=2, size=40)
    """
    marks = bytearray(len(lengths))
    for seq in seqs:
        marks[seq - first_seq] = 1
    gone = min(max(0, earliest_seq - first_seq), len(marks))
    marks[:gone] = bytes(gone)
    alive = bytes(marks) if dead is None else _without(marks, dead)
    return Marks(first_seq, alive, alive.count(1), _size(lengths, alive))


def take_marked(run: Run, marks: Marks, earliest_seq: int) -> Marks:
    """Remove the marked records from the run; return marks of those that were still live."""
    marks = _still_there(run, marks, earliest_seq)
    low = marks.first_seq - run.first_seq
    high = low + len(marks.alive)
    if run.dead is None:
        run.dead = bytearray(run.next_seq - run.first_seq)
        run.dead[low:high] = marks.alive
    else:
        run.dead[low:high] = _or(run.dead[low:high], marks.alive)
    if isinstance(run, SealedRun):
        run.note_taken(marks.count, marks.size)
    return marks


def _still_there(run: Run, marks: Marks, earliest_seq: int) -> Marks:
    front = min(max(0, earliest_seq - marks.first_seq), len(marks.alive))
    first_seq, alive = marks.first_seq + front, marks.alive[front:]
    low = first_seq - run.first_seq
    dead = b"" if run.dead is None else run.dead[low : low + len(alive)]
    if marks.alive.find(1, 0, front) < 0 and not _any_in_both(alive, dead):
        return Marks(first_seq, alive, marks.count, marks.size)
    if dead:
        alive = _without(alive, dead)
    lengths = run.lengths[low : low + len(alive)]
    return Marks(first_seq, alive, alive.count(1), _size(lengths, alive))


def _size(lengths: array[int], alive: bytes) -> int:
    """Sum the lengths of the live records.

    Summed in parts: a thread inside one `sum` blocks the event loop until it returns.
    """
    size = 0
    for at in range(0, len(alive), SUMMED_AT_ONCE):
        upto = at + SUMMED_AT_ONCE
        size += sum(compress(lengths[at:upto], alive[at:upto]))
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
