"""A heap whose entries become outdated without notice: a predicate decides when an entry is looked at.

No call pays for very many outdated entries: each call drops a few. When far more entries are outdated than
valid, the heap is moved into a new one a few entries per call: a heap without its last entry is still a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T", bound=Any)

# A heap is moved once it has this many entries more than twice the valid ones.
STALE_MAX: Final = 64
MOVED_AT_ONCE: Final = 4


class LazyHeap(Generic[T]):
    """A heap that drops outdated entries when it meets them.

    >>> alive = {3, 4}
    >>> heap = LazyHeap(alive.__contains__)
    >>> for number in (4, 1, 3):
    ...     heap.push(number)
    >>> heap.lowest(), heap.front(), heap.pop(), heap.front(), len(heap)
    (1, 3, 3, 4, 1)
    """

    __slots__ = ("_heap", "_is_valid", "_outgoing")

    def __init__(self, is_valid: Callable[[T], bool]) -> None:
        self._is_valid = is_valid
        self._heap: list[T] = []
        self._outgoing: list[T] = []
        """The heap that is being moved, itself a valid heap."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._outgoing)

    def __iter__(self) -> Iterator[T]:
        yield from self._heap
        yield from self._outgoing

    def push(self, entry: T) -> None:
        heapq.heappush(self._heap, entry)
        if self._outgoing:
            self._move()

    def lowest(self) -> T | None:
        """Return the lowest entry, which may be outdated, or None."""
        heap = self._first()
        return heap[0] if heap else None

    def front(self) -> T | None:
        """Return the lowest valid entry, or None."""
        while heap := self._first():
            if self._is_valid(heap[0]):
                return heap[0]
            heapq.heappop(heap)
        return None

    def pop(self) -> T:
        """Remove and return the lowest entry."""
        return heapq.heappop(self._first())

    def replace_lowest(self, entry: T) -> None:
        """Replace the lowest entry by a higher one."""
        heapq.heapreplace(self._first(), entry)

    def tidy(self, count: int) -> None:
        """Drop an outdated entry if it is the lowest; at most `count` entries are valid."""
        heap = self._heap
        if self._outgoing:
            self._move()
            heap = self._first()
        elif len(heap) > STALE_MAX + 2 * count:
            self._outgoing, self._heap = heap, []
        if heap and not self._is_valid(heap[0]):
            heapq.heappop(heap)

    def _first(self) -> list[T]:
        heap, old = self._heap, self._outgoing
        if not old:
            return heap
        return old if not heap or old[0] < heap[0] else heap

    def _move(self) -> None:
        old = self._outgoing
        for _ in range(min(MOVED_AT_ONCE, len(old))):
            entry = old.pop()
            if self._is_valid(entry):
                heapq.heappush(self._heap, entry)
