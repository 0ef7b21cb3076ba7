"""Loss in the middle of a log: ranges of seqs that were given out and whose records are gone.

A floor cannot say it, because what is before the range is alive. The list is short: one range an unclean
end of the machine, and those below the floor are forgotten.
"""

from __future__ import annotations

from typing import NamedTuple


class LostRange(NamedTuple):
    first: int
    last: int
    reason: str


class LostRanges:
    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[LostRange] = []

    def add(self, lost: LostRange) -> None:
        assert not self.ranges or lost.first > self.ranges[-1].last
        self.ranges.append(lost)

    def next_after(self, seq: int) -> LostRange | None:
        """The first range that reaches behind `seq`."""
        for lost in self.ranges:
            if lost.last > seq:
                return lost
        return None

    def forget_below(self, floor: int) -> None:
        while self.ranges and self.ranges[0].last < floor:
            self.ranges.pop(0)
