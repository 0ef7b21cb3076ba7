from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from topicsd.engine.queue.order.lazy_heap import MOVED_AT_ONCE, STALE_MAX, LazyHeap

LOOKS_MAX = MOVED_AT_ONCE + 1


class Looks:
    """The live entries, and the number of lookups."""

    def __init__(self, *entries: int) -> None:
        self.alive = set(entries)
        self.count = 0

    def __call__(self, entry: int) -> bool:
        self.count += 1
        return entry in self.alive

    def during(self, work: Callable[[], object]) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_that_counts_comes_first_whatever_left_meanwhile(seed: int) -> None:
    random = Random(seed)
    looks = Looks()
    heap = LazyHeap(looks)
    for _ in range(3000):
        if random.random() < 0.4:
            entry = random.randrange(1 << 30)
            looks.alive.add(entry)
            assert looks.during(lambda: heap.push(entry)) <= LOOKS_MAX  # noqa: B023
        elif looks.alive and random.random() < 0.9:
            looks.alive.discard(random.choice(sorted(looks.alive)))
            assert looks.during(lambda: heap.tidy(len(looks.alive))) <= LOOKS_MAX
        assert heap.front() == min(looks.alive, default=None)
        if looks.alive and random.random() < 0.1:
            looks.alive.discard(heap.pop())


@pytest.mark.parametrize("from_the_front", [True, False])
def test_when_all_stop_counting_no_call_looks_at_many_and_none_stays(from_the_front: bool) -> None:
    looks = Looks(*range(50_000))
    heap = LazyHeap(looks)
    for entry in range(50_000):
        heap.push(entry)
    for entry in range(50_000) if from_the_front else reversed(range(50_000)):
        looks.alive.discard(entry)
        assert looks.during(lambda: heap.tidy(len(looks.alive))) <= LOOKS_MAX
    assert len(heap) <= STALE_MAX + 1
    assert heap.front() is None
    assert heap.lowest() is None
