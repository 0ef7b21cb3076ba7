"""What is ready to be served, and who comes next: five bands in weighted rounds, and nobody waits for ever.

R1  What is marked comes out once, however often it was marked meanwhile.
R2  In a round each band has as many turns as its weight, as long as there is something in it; what it does
    not use is gone with the round. So the highest band is served first, and the lowest in every round.
R3  Whoever waits rises: to a higher band as its priority grows, and after `WAIT_SECONDS_MAX` to the highest.
    Rising is looked at each `AGEING_SECONDS`.
R4  While there is a pause, what is of negative priority by itself is held back, but never past R3.

Each band is a heap by the moment at which one of it will rise, so that a look at ageing costs as much as
rises and not as much as waits; that is also their order within a band. In the highest it is first come, first
served. The recency in a base is that of the marking: it would sink by at most 12 a second, while waiting adds
100.
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
    """When it became ready, and what it is worth without waiting."""

    at: float
    base: float

    def band(self, now: float) -> int:
        waited = now - self.at
        return TOP if waited >= WAIT_SECONDS_MAX else band_of(effective_priority(self.base, waited))

    def rises_at(self, band: int) -> float:
        """When it leaves this band, which is not the highest."""
        return self.at + min((FLOORS[band] - self.base) / GAIN_PER_SECOND, WAIT_SECONDS_MAX)


class ReadySet(Generic[T]):
    def __init__(self) -> None:
        self._marks: dict[T, Mark] = {}
        self._bands: list[list[tuple[float, int, T]]] = [[] for _ in WEIGHTS]
        """By when one rises, and in the highest by when it came there; then by the order of coming."""
        self._held: dict[T, None] = {}
        """Held back by a pause, oldest first."""
        self._turns = [*WEIGHTS]
        """What each band has left of this round."""
        self._count = 0
        self._look_at = 0.0
        self.pauses = False

    def __len__(self) -> int:
        """How many may be taken now."""
        return len(self._marks) - len(self._held)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def mark(self, one: T, base: float, now: float) -> None:
        """It is ready, since now unless it was before."""
        if one in self._marks:
            return
        self._marks[one] = mark = Mark(now, base)
        if self.pauses and base < 0:
            self._held[one] = None
        else:
            self._enter(one, mark, band_of(base), now)

    def take(self, now: float) -> tuple[T, float] | None:
        """Whose turn it is, and since when it was ready; None when nobody's."""
        if now >= self._look_at:
            self.age(now)
        if not len(self):
            return None
        while True:
            for band in range(TOP, -1, -1):
                queue = self._bands[band]
                if queue and self._turns[band]:
                    self._turns[band] -= 1
                    one = heappop(queue)[2]
                    return one, self._marks.pop(one).at
            self._turns = [*WEIGHTS]

    def age(self, now: float) -> None:
        """Have everybody rise who is due (R3)."""
        self._look_at = now + AGEING_SECONDS
        for band in range(TOP):
            queue = self._bands[band]
            while queue and queue[0][0] <= now:
                one = heappop(queue)[2]
                mark = self._marks[one]
                # By rounding its priority may be a hair short of the band that it is due in.
                self._enter(one, mark, max(band + 1, mark.band(now)), now)
        while self._held and now - self._marks[oldest := next(iter(self._held))].at >= WAIT_SECONDS_MAX:
            del self._held[oldest]
            self._enter(oldest, self._marks[oldest], TOP, now)

    def pause(self, is_on: bool, now: float) -> None:
        """Hold back what is of negative priority, or let it go (R4). What has risen since it came goes on."""
        if is_on == self.pauses:
            return
        self.pauses = is_on
        if is_on:
            lowest = [one for _, _, one in self._bands[0]]
            self._bands[0].clear()
            self._held = dict.fromkeys(sorted(lowest, key=lambda one: self._marks[one].at))
        else:
            held, self._held = self._held, {}
            for one in held:
                mark = self._marks[one]
                self._enter(one, mark, mark.band(now), now)

    def waited_seconds(self, one: T, now: float) -> float:
        """For how long it has been ready; 0 when it is not."""
        mark = self._marks.get(one)
        return 0.0 if mark is None else now - mark.at

    def _enter(self, one: T, mark: Mark, band: int, now: float) -> None:
        self._count += 1
        key = now if band == TOP else mark.rises_at(band)
        heappush(self._bands[band], (key, self._count, one))
