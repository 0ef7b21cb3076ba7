"""Lost ranges: seqs in the middle of a topic that were given out and whose records are lost.

A floor cannot express such a loss, because records before the range are live. The list is short: each unclean
stop of the machine adds one range, and ranges below the floor are removed.
"""

from __future__ import annotations

from typing import NamedTuple


class LostRange(NamedTuple):
    """The lost seqs from `first` to `last`."""

    first: int
    last: int
    reason: str


class LostRanges:
    """The lost ranges of one topic, in seq order."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[LostRange] = []

    def add(self, lost: LostRange) -> None:
        assert not self.ranges or lost.first > self.ranges[-1].last
        self.ranges.append(lost)

    def next_after(self, seq: int) -> LostRange | None:
        """Return the first range that ends after `seq`."""
        for lost in self.ranges:
            if lost.last > seq:
                return lost
        return None

    def forget_below(self, floor: int) -> None:
        while self.ranges and self.ranges[0].last < floor:
            self.ranges.pop(0)
