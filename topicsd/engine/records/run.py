"""A contiguous stretch of a topic's seqs, whatever holds its records, and which of them are not live any
more.

What is not live in the middle is marked in `dead`, a byte a record, which exists once something was. What
went from the front needs no mark: the topic knows where it begins.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

# Records that are this close to each other are looked up without the whole index.
CLOSE_RECORDS: Final = 64


class Source(Protocol):
    """Where frames stand."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes of these positions; fewer when there are no more."""
        ...

    def place_of(self, position: int) -> tuple[str, int]:
        """The file and the offset in it, for a person to look at."""
        ...


class Run:
    __slots__ = ("dead", "first_seq")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.dead: bytearray | None = None

    @property
    def next_seq(self) -> int:
        raise NotImplementedError

    @property
    def lengths(self) -> array[int]:
        """Of the frames, by the place in the run."""
        raise NotImplementedError

    def lengths_of(self, first: int, last: int) -> array[int]:
        """Of the frames from `first` to `last`."""
        return self.lengths[first - self.first_seq : last + 1 - self.first_seq]

    @property
    def stamps(self) -> Sequence[int]:
        raise NotImplementedError

    def first_not_older(self, ts: int) -> int:
        """The first seq whose stamp is at least `ts`; stamps never decrease."""
        raise NotImplementedError

    def take_front(self, first: int, last: int) -> tuple[int, int]:
        """What is alive from `first` to `last`, the front of what is left, goes: count and bytes."""
        raise NotImplementedError

    def find_tag(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Seqs under `below` that carry the tag, or one that begins with it; some may be dead already."""
        raise NotImplementedError

    def all_tags(self) -> dict[bytes, list[int]]:
        """The seqs of each tag, of what was copied to a segment."""
        raise NotImplementedError

    def place_of(self, seq: int, log: Source) -> tuple[str, int]:
        """The file in which a record stands, and the offset in it, for a person to look at."""
        raise NotImplementedError

    def is_dead(self, seq: int) -> bool:
        return self.dead is not None and self.dead[seq - self.first_seq] != 0

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or the end of the run."""
        if self.dead is None or seq >= self.next_seq:
            return seq
        found = self.dead.find(0, seq - self.first_seq)
        return self.next_seq if found < 0 else self.first_seq + found

    def next_dead(self, seq: int) -> int:
        """The first seq at or behind `seq` that is not live, or the end of the run."""
        if self.dead is None:
            return self.next_seq
        found = self.dead.find(1, seq - self.first_seq)
        return self.next_seq if found < 0 else self.first_seq + found

    def last_live(self, first: int, last: int) -> int | None:
        """The highest live seq from `first` to `last`, if there is one."""
        if self.dead is None:
            return last
        found = self.dead.rfind(0, first - self.first_seq, last - self.first_seq + 1)
        return None if found < 0 else self.first_seq + found

    def live_totals(self, first: int, last: int) -> tuple[int, int]:
        """How many live records from `first` to `last`, and their bytes."""
        low, high = first - self.first_seq, last - self.first_seq + 1
        lengths = self.lengths_of(first, last)
        if self.dead is None or not any(dead := self.dead[low:high]):
            return high - low, sum(lengths)
        live = [length for length, is_dead in zip(lengths, dead, strict=True) if not is_dead]
        return len(live), sum(live)

    def mark_all_dead(self, seqs: Iterable[int], first: int) -> tuple[list[int], int]:
        """Take out those of these records, each named once, that are alive and not in front of `first`: which
        they are, and their bytes. A quarter of the work of taking out one by one."""
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
