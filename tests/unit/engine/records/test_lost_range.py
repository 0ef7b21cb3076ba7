from __future__ import annotations

import pytest

from topicsd.engine.records.lost_range import LostRange, LostRanges

FIRST, SECOND = LostRange(11, 20, "crash"), LostRange(41, 41, "source_trim")


def ranges() -> LostRanges:
    lost = LostRanges()
    lost.add(FIRST)
    lost.add(SECOND)
    return lost


@pytest.mark.parametrize(
    ("seq", "expected"),
    [(0, FIRST), (10, FIRST), (19, FIRST), (20, SECOND), (40, SECOND), (41, None), (99, None)],
)
def test_the_next_range_is_the_first_that_reaches_behind_a_seq(seq: int, expected: LostRange | None) -> None:
    assert ranges().next_after(seq) == expected


@pytest.mark.parametrize(
    ("floor", "left"),
    [(1, [FIRST, SECOND]), (20, [FIRST, SECOND]), (21, [SECOND]), (41, [SECOND]), (42, []), (99, [])],
)
def test_a_range_wholly_below_the_floor_is_forgotten(floor: int, left: list[LostRange]) -> None:
    lost = ranges()
    lost.forget_below(floor)
    assert lost.ranges == left


def test_ranges_come_in_order() -> None:
    with pytest.raises(AssertionError):
        ranges().add(LostRange(41, 50, "crash"))
