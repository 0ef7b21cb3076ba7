"""Counts by powers of two: cheap enough to count every request, and coarse enough to lie on the board.

A number n, floored to an integer, is counted in bucket `n.bit_length()`, which holds what is below
2**bucket. On the hot path that is two statements, written out where they are needed::

    histogram.counts[n.bit_length()] += 1
    histogram.total += n
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 30
"""With a bound. In microseconds the last one ends at nine minutes."""
WORDS: Final = BUCKETS + 2
"""On the board: the buckets, what is beyond them, and the total."""
_COUNTS: Final = 65


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _COUNTS
        self.total = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def words(self) -> list[int]:
        """As the board has it.

        >>> one = Histogram()
        >>> for n in (0, 1, 2, 3, 1 << 40):
        ...     one.counts[n.bit_length()] += 1
        ...     one.total += n
        >>> one.words()[:4], one.words()[-2:] == [1, (1 << 40) + 6]
        ([1, 1, 2, 0], True)
        """
        counts = self.counts
        return [*counts[:BUCKETS], sum(counts[BUCKETS:]), self.total]


def bounds() -> list[int]:
    """The upper bound of each bucket that has one; numbers in it are smaller."""
    return [1 << bucket for bucket in range(BUCKETS)]
