from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from topicsd.engine.wakeups.priority import TOP, WEIGHTS
from topicsd.engine.wakeups.ready_set import AGEING_SECONDS, WAIT_SECONDS_MAX, Mark, ReadySet

# Something in each band, the lowest first.
BASES = (-500.0, 100.0, 300.0, 600.0, 900.0)


def taken(ready: ReadySet[str], now: float) -> list[str]:
    taken_keys = []
    while (one := ready.take(now)) is not None:
        taken_keys.append(one[0])
    return taken_keys


def test_what_is_marked_comes_out_once_and_says_since_when() -> None:
    ready: ReadySet[str] = ReadySet()
    for at in (1.0, 2.0, 3.0):
        ready.mark("a", 0.0, at)
    assert (len(ready), ready.waited_seconds("a", 4.0), ready.waited_seconds("b", 4.0)) == (1, 3.0, 0.0)
    assert ready.take(4.0) == ("a", 1.0)
    assert ready.take(4.0) is None
    ready.mark("a", 0.0, 5.0)
    assert ready.take(5.0) == ("a", 5.0)


def test_the_highest_band_comes_first_and_first_come_is_first_served_in_it() -> None:
    ready: ReadySet[str] = ReadySet()
    for name, base in (("low", -1.0), ("none", 0.0), ("x", 800.0), ("y", 1000.0), ("z", 760.0)):
        ready.mark(name, base, 0.0)
    assert taken(ready, 0.0) == ["x", "y", "z", "none", "low"]


def test_the_weights_hold_as_long_as_all_bands_have_something() -> None:
    ready: ReadySet[tuple[int, int]] = ReadySet()
    for band, base in enumerate(BASES):
        for number in range(10):
            ready.mark((band, number), base, 0.0)
    came: Counter[int] = Counter()
    for _ in range(100 * sum(WEIGHTS)):
        one = ready.take(0.0)
        assert one is not None
        (band, number), _ = one
        came[band] += 1
        ready.mark((band, number), BASES[band], 0.0)
    assert [came[band] for band in range(len(WEIGHTS))] == [100 * weight for weight in WEIGHTS]


def test_what_a_band_does_not_use_is_not_saved_up() -> None:
    ready: ReadySet[str] = ReadySet()
    for number in range(50):
        ready.mark(f"low{number}", -10.0, 0.0)
    for _ in range(40):
        ready.take(0.0)
    for number in range(30):
        ready.mark(f"top{number}", 900.0, 0.0)
    came = [name[:3] for name in taken(ready, 0.0)]
    # At most a round and the rest of the one before without the lowest in between.
    assert came[:18].count("low") >= 1
    assert came[:9].count("top") >= 8


@pytest.mark.parametrize(
    ("base", "bands"),
    [
        # By seconds waited: 0, 2, 4, 8, 9.9 and 10, when any waiter is in the highest band.
        (-1000.0, [0, 0, 0, 0, 0, 4]),
        (-300.0, [0, 0, 1, 3, 3, 4]),
        (0.0, [1, 1, 2, 4, 4, 4]),
        (400.0, [2, 3, 4, 4, 4, 4]),
        (1000.0, [4, 4, 4, 4, 4, 4]),
    ],
)
def test_a_waiter_rises_with_its_wait(base: float, bands: list[int]) -> None:
    mark = Mark(100.0, base)
    assert [mark.band(100.0 + waited) for waited in (0, 2, 4, 8, 9.9, 10)] == bands
    assert all(mark.band(mark.rises_at(band) + 1e-6) > band for band in range(mark.band(100.0), TOP))


def test_the_lowest_is_in_the_highest_band_after_ten_seconds_of_others_before_it() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.mark("low", -1000.0, 0.0)
    for number in range(3):
        ready.mark(f"early{number}", 1000.0, WAIT_SECONDS_MAX)
    now = WAIT_SECONDS_MAX + AGEING_SECONDS
    ready.age(now)
    for number in range(3):
        ready.mark(f"late{number}", 1000.0, now)
    assert taken(ready, now) == ["early0", "early1", "early2", "low", "late0", "late1", "late2"]


def test_a_pause_holds_negative_priorities_until_it_ends() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.mark("old", -200.0, 0.0)
    ready.pause(True, 1.0)
    ready.mark("new", -1.0, 1.0)
    ready.mark("other", 0.0, 1.0)
    assert (len(ready), ready.held_count) == (1, 2)
    assert taken(ready, 5.0) == ["other"]
    ready.mark("new", -1.0, 5.0)
    ready.pause(True, 5.0)
    assert ready.held_count == 2
    ready.pause(False, 5.0)
    # One has waited for five seconds, the other for four.
    assert (len(ready), ready.held_count) == (2, 0)
    assert ready.take(5.0) == ("new", 1.0)
    assert ready.take(5.0) == ("old", 0.0)


def test_a_pause_holds_no_waiter_for_longer_than_ten_seconds() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.mark("low", -200.0, 0.0)
    ready.pause(True, 1.0)
    ready.mark("later", -1.0, 2.0)
    assert taken(ready, 9.9) == []
    ready.mark("other", 600.0, 10.0)
    assert taken(ready, 10.0) == ["low", "other"]
    assert taken(ready, 11.9) == []
    assert taken(ready, 12.0) == ["later"]


class Oracle:
    """The same from the rules, one look at everything at a time."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[float, float]] = {}
        self.turns = list(WEIGHTS)

    def band(self, one: int, now: float) -> int:
        at, base = self.waiting[one]
        priority = min(1000.0, base + 100 * (now - at))
        if now - at >= 10:
            return 4
        return sum(priority >= floor for floor in (0, 250, 500, 750))

    def next_band(self, now: float) -> int:
        filled = {self.band(one, now) for one in self.waiting}
        if not any(self.turns[band] for band in filled):
            self.turns = list(WEIGHTS)
        band = max(band for band in filled if self.turns[band])
        self.turns[band] -= 1
        return band


@pytest.mark.parametrize("seed", range(8))
def test_any_run_keeps_the_rules(seed: int) -> None:
    rng = Random(seed)
    ready: ReadySet[int] = ReadySet()
    oracle = Oracle()
    now = 1000.0
    overdue: dict[int, int] = {}
    busy = rng.choice((0.4, 0.55, 0.9))
    for _ in range(4000):
        if rng.random() < busy:
            one, base = rng.randrange(400), rng.uniform(-1000, 1000)
            ready.mark(one, base, now)
            oracle.waiting.setdefault(one, (now, base))
        elif oracle.waiting:
            # Never less, so that each look is one at ageing too.
            now += AGEING_SECONDS + rng.random() * 0.1
            for other, (at, _) in oracle.waiting.items():
                if now - at >= WAIT_SECONDS_MAX:
                    overdue.setdefault(other, 2 * len(oracle.waiting) + sum(WEIGHTS))
            band = oracle.next_band(now)
            next_ready = ready.take(now)
            assert next_ready is not None
            one, since = next_ready
            assert (oracle.band(one, now), since) == (band, oracle.waiting[one][0])
            del oracle.waiting[one]
            overdue.pop(one, None)
            overdue = {other: left - 1 for other, left in overdue.items()}
            assert all(left > 0 for left in overdue.values())
        assert len(ready) == len(oracle.waiting)
    now += WAIT_SECONDS_MAX
    rest = []
    while (next_ready := ready.take(now)) is not None:
        rest.append(next_ready[0])
    assert sorted(rest) == sorted(oracle.waiting)
