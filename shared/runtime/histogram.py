"""A histogram by powers of two: cheap to count on every request, small on the board.

A number n, rounded down to an integer, is counted in bucket `n.bit_length()`, whose numbers are below
2**bucket. On the hot path that is two statements, inlined at each use::

    histogram.counts[n.bit_length()] += 1
    histogram.total += n
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 30
"""Number of buckets with an upper bound. In microseconds the last bound is nine minutes."""
WORDS: Final = BUCKETS + 2
"""Words on the board: the bounded buckets, the count beyond them, and the total."""
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
        """Return the words for the board.

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
    """Return the exclusive upper bound of each bucket that has one."""
    return [1 << bucket for bucket in range(BUCKETS)]
