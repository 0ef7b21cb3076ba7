"""Claims that came within one window, served together: one job each in turn, in the order of coming.

Must not know: time, what a job is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

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
