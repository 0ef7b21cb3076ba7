"""A contiguous run of records and where they stand in the log: the index of a topic's tail.

The seq is the place in the arrays, so a record costs 20 bytes here and is found without a search. Its bytes
stay in the WAL file; only an ephemeral topic, which has none, keeps its frames here.

What is not live any more in the middle is marked in `dead`, which exists once something was. What went
from the front is forgotten a large piece at a time.

Must not know: why a record is gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, repeat

# Dropping the front of the arrays moves the rest; done when it is at least this much and half of all.
TRIM_RECORDS = 4096


class TailRun:
    __slots__ = ("dead", "first_seq", "frames", "lengths", "positions", "stamps")

    def __init__(self, first_seq: int, in_memory: bool = False) -> None:
        self.first_seq = first_seq
        self.positions = array("Q")
        self.lengths = array("I")
        self.stamps = array("Q")
        self.dead: bytearray | None = None
        self.frames: list[bytes] | None = [] if in_memory else None

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.lengths)

    def extend(self, position: int, lengths: list[int], ts: int) -> None:
        """Take in the records of one request, whose frames stand one behind the other from `position`."""
        if len(lengths) == 1:
            self.positions.append(position)
            self.lengths.append(lengths[0])
            self.stamps.append(ts)
        else:
            starts = accumulate(lengths, initial=position)
            self.positions.extend(start for start, _ in zip(starts, lengths, strict=False))
            self.lengths.extend(lengths)
            self.stamps.extend(repeat(ts, len(lengths)))
        if self.dead is not None:
            self.dead.extend(bytes(len(lengths)))

    def is_dead(self, seq: int) -> bool:
        return self.dead is not None and self.dead[seq - self.first_seq] != 0

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or the end of the run."""
        at = seq - self.first_seq
        if self.dead is None or at >= len(self.lengths):
            return seq
        found = self.dead.find(0, at)
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
        lengths: Iterable[int] = self.lengths[low:high]
        if self.dead is None or not any(dead := self.dead[low:high]):
            return high - low, sum(lengths)
        live = [length for length, is_dead in zip(lengths, dead, strict=True) if not is_dead]
        return len(live), sum(live)

    def mark_dead(self, seq: int) -> int:
        """Take one live record out; its bytes."""
        if self.dead is None:
            self.dead = bytearray(len(self.lengths))
        at = seq - self.first_seq
        assert not self.dead[at]
        self.dead[at] = 1
        return self.lengths[at]

    def first_not_older(self, ts: int) -> int:
        """The first seq whose stamp is at least `ts`; stamps never decrease."""
        return self.first_seq + bisect_left(self.stamps, ts)

    def forget_before(self, seq: int) -> bool:
        """Let go of the index below `seq` if it is worth the move; whether it was."""
        count = seq - self.first_seq
        if count < TRIM_RECORDS or count * 2 < len(self.lengths):
            return False
        for column in (self.positions, self.lengths, self.stamps):
            del column[:count]
        if self.dead is not None:
            del self.dead[:count]
        if self.frames is not None:
            del self.frames[:count]
        self.first_seq = seq
        return True
