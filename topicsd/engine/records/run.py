"""A run: consecutive seqs of one topic whose records are held in one place, with marks of the dead ones.

Dead records in the middle of a run are marked in `dead`, one byte for each record, which exists once a record
of the run is dead. Records removed from the front need no mark: the topic knows its earliest seq.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

# The lengths of records within this many seqs are looked up without loading the whole index.
CLOSE_RECORDS: Final = 64


class FrameSource(Protocol):
    """A place that frames are read from: the log or an active segment."""

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes between two positions; fewer at the end of the source."""
        ...

    def place_of(self, position: int) -> tuple[str, int]:
        """Return the file of a position and the offset in it, for error messages."""
        ...


class Run:
    """The base class of runs."""

    __slots__ = ("dead", "first_seq")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.dead: bytearray | None = None

    @property
    def next_seq(self) -> int:
        raise NotImplementedError

    @property
    def lengths(self) -> array[int]:
        """Return the lengths of all frames, by index in the run."""
        raise NotImplementedError

    def lengths_of(self, first: int, last: int) -> array[int]:
        """Return the lengths of the frames from `first` to `last`."""
        return self.lengths[first - self.first_seq : last + 1 - self.first_seq]

    @property
    def times_ms(self) -> Sequence[int]:
        raise NotImplementedError

    def seq_at_or_after(self, ts: int) -> int:
        """Return the first seq whose time is at least `ts`; times never decrease."""
        raise NotImplementedError

    def take_front(self, first: int, last: int) -> tuple[int, int]:
        """Remove the live records from `first`, the front, to `last`; return their count and bytes."""
        raise NotImplementedError

    def find_tag(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Return the seqs below `below` with the tag, or with a tag that has this prefix.

        Some of them may be dead already.
        """
        raise NotImplementedError

    def all_tags(self) -> dict[bytes, list[int]]:
        """Return the seqs of each tag, of records that were copied to a segment."""
        raise NotImplementedError

    def place_of(self, seq: int, log: FrameSource) -> tuple[str, int]:
        """Return the file of a record and the offset in it, for error messages."""
        raise NotImplementedError

    def is_dead(self, seq: int) -> bool:
        return self.dead is not None and self.dead[seq - self.first_seq] != 0

    def next_live(self, seq: int) -> int:
        """Return the first live seq at or after `seq`, or the end of the run."""
        if self.dead is None or seq >= self.next_seq:
            return seq
        offset = self.dead.find(0, seq - self.first_seq)
        return self.next_seq if offset < 0 else self.first_seq + offset

    def next_dead(self, seq: int) -> int:
        """Return the first dead seq at or after `seq`, or the end of the run."""
        if self.dead is None:
            return self.next_seq
        offset = self.dead.find(1, seq - self.first_seq)
        return self.next_seq if offset < 0 else self.first_seq + offset

    def last_live(self, first: int, last: int) -> int | None:
        """Return the highest live seq from `first` to `last`, or None."""
        if self.dead is None:
            return last
        offset = self.dead.rfind(0, first - self.first_seq, last - self.first_seq + 1)
        return None if offset < 0 else self.first_seq + offset

    def live_totals(self, first: int, last: int) -> tuple[int, int]:
        """Return the number of live records from `first` to `last`, and their bytes."""
        low, high = first - self.first_seq, last - self.first_seq + 1
        lengths = self.lengths_of(first, last)
        if self.dead is None or not any(dead := self.dead[low:high]):
            return high - low, sum(lengths)
        live = [length for length, is_dead in zip(lengths, dead, strict=True) if not is_dead]
        return len(live), sum(live)

    def mark_all_dead(self, seqs: Iterable[int], first: int) -> tuple[list[int], int]:
        """Mark records as dead; return the seqs that were live, and their bytes.

        `seqs` names each record once; seqs before `first` are ignored. This costs a quarter of marking the
        records one by one.
        """
        base, end = self.first_seq, self.next_seq
        dead = bytearray(end - base) if self.dead is None else self.dead
        taken = [seq for seq in seqs if first <= seq < end and not dead[seq - base]]
        if not taken:
            return taken, 0
        low, high = min(taken), max(taken)
        if high - low < CLOSE_RECORDS:
            lengths = self.lengths_of(low, high)
        else:
            lengths, low = self.lengths, base
        size = sum([lengths[seq - low] for seq in taken])
        self.dead = dead
        for seq in taken:
            dead[seq - base] = 1
        return taken, size
