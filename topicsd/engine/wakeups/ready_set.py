"""The ready set: the items to serve, and their order in weighted rounds of five bands, without starvation.

R1  A marked item is taken once, however often it was marked since.
R2  In a round each band has as many turns as its weight while it holds an item; unused turns end with the
    round. So the highest band is served first, and the lowest is served in every round.
R3  A waiting item rises: to a higher band as its priority grows, and after `WAIT_SECONDS_MAX` to the highest
    band. Items rise every `AGEING_SECONDS`.
R4  During a pause, items with a negative base priority are held back, but no longer than R3 allows.

Each band is a heap ordered by the time at which its items will rise, so that ageing costs as much as the
items that rise, not as the items that wait; items of a band are also served in this order. The highest band
is first in, first out. The base priority is taken when the item is marked: its recency part would fall by at
most 12 per second, while waiting adds 100.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from topicsd.engine.wakeups.priority import (
    FLOORS,
    GAIN_PER_SECOND,
    TOP,
    WEIGHTS,
    band_of,
    effective_priority,
)

AGEING_SECONDS: Final = 0.05
WAIT_SECONDS_MAX: Final = 10.0

T = TypeVar("T")


class Mark(NamedTuple):
    """The time at which an item became ready, and its base priority."""

    at: float
    base: float

    def band(self, now: float) -> int:
        waited = now - self.at
        return TOP if waited >= WAIT_SECONDS_MAX else band_of(effective_priority(self.base, waited))

    def rises_at(self, band: int) -> float:
        """Return when the item leaves this band, which must not be the highest."""
        return self.at + min((FLOORS[band] - self.base) / GAIN_PER_SECOND, WAIT_SECONDS_MAX)


class ReadySet(Generic[T]):
    """The items that are ready to be served."""

    def __init__(self) -> None:
        self._marks: dict[T, Mark] = {}
        self._bands: list[list[tuple[float, int, T]]] = [[] for _ in WEIGHTS]
        """A heap for each band, by rise time, in the highest band by arrival time; ties by arrival order."""
        self._paused: dict[T, None] = {}
        """The items that a pause holds back, oldest first."""
        self._turns = [*WEIGHTS]
        """The turns that each band has left in this round."""
        self._count = 0
        self._age_at = 0.0
        self.is_paused = False

    def __len__(self) -> int:
        """Return the number of items that can be taken now."""
        return len(self._marks) - len(self._paused)

    @property
    def held_count(self) -> int:
        return len(self._paused)

    def mark(self, item: T, base: float, now: float) -> None:
        """Mark an item as ready since `now`; an item that is ready already keeps its time."""
        if item in self._marks:
            return
        self._marks[item] = mark = Mark(now, base)
        if self.is_paused and base < 0:
            self._paused[item] = None
        else:
            self._enter(item, mark, band_of(base), now)

    def take(self, now: float) -> tuple[T, float] | None:
        """Remove the next item; return it and the time since which it was ready, or None."""
        if now >= self._age_at:
            self.age(now)
        if not len(self):
            return None
        while True:
            for band in range(TOP, -1, -1):
                queue = self._bands[band]
                if queue and self._turns[band]:
                    self._turns[band] -= 1
                    item = heappop(queue)[2]
                    return item, self._marks.pop(item).at
            self._turns = [*WEIGHTS]

    def age(self, now: float) -> None:
        """Move all items that are due to a higher band (R3)."""
        self._age_at = now + AGEING_SECONDS
        for band in range(TOP):
            queue = self._bands[band]
            while queue and queue[0][0] <= now:
                item = heappop(queue)[2]
                mark = self._marks[item]
                # By a rounding error the priority may be just below the floor of the next band.
                self._enter(item, mark, max(band + 1, mark.band(now)), now)
        while self._paused and now - self._marks[oldest := next(iter(self._paused))].at >= WAIT_SECONDS_MAX:
            del self._paused[oldest]
            self._enter(oldest, self._marks[oldest], TOP, now)

    def pause(self, is_on: bool, now: float) -> None:
        """Begin or end a pause (R4). Items that have risen from the lowest band are not held."""
        if is_on == self.is_paused:
            return
        self.is_paused = is_on
        if is_on:
            lowest = [item for _, _, item in self._bands[0]]
            self._bands[0].clear()
            self._paused = dict.fromkeys(sorted(lowest, key=lambda item: self._marks[item].at))
        else:
            paused, self._paused = self._paused, {}
            for item in paused:
                mark = self._marks[item]
                self._enter(item, mark, mark.band(now), now)

    def waited_seconds(self, item: T, now: float) -> float:
        """Return for how long an item has been ready; 0 if it is not."""
        mark = self._marks.get(item)
        return 0.0 if mark is None else now - mark.at

    def _enter(self, item: T, mark: Mark, band: int, now: float) -> None:
        self._count += 1
        key = now if band == TOP else mark.rises_at(band)
        heappush(self._bands[band], (key, self._count, item))
