from __future__ import annotations

import pytest

from topicsd.engine.wakeups.priority import band_of, base_priority, effective_priority, one_band_lower


@pytest.mark.parametrize(
    ("priority", "is_auto", "idle_ms", "base"),
    [
        (None, True, 0, 500.0),
        (None, True, 30_000, 250.0),
        (None, True, 60_000, 125.0),
        (None, True, 299_999, pytest.approx(0.488, abs=0.001)),
        (None, True, 300_000, 0.0),
        (None, True, 1_700_000_000_000, 0.0),
        # The clock was set back behind the last consumption.
        (None, True, -5_000, 500.0),
        (None, False, 0, 0.0),
        (0, True, 0, 0.0),
        (700, True, 0, 700.0),
        (-700, False, 0, -700.0),
        (5000, True, 0, 1000.0),
        (-5000, True, 0, -1000.0),
    ],
)
def test_the_base_is_what_was_given_or_how_recently_it_was_used(
    priority: int | None, is_auto: bool, idle_ms: float, base: float
) -> None:
    assert base_priority(priority, is_auto, idle_ms) == base


def test_waiting_adds_a_hundred_a_second_up_to_the_most_there_is() -> None:
    assert [effective_priority(-1000.0, waited) for waited in (0, 0.5, 10, 20, 60)] == [
        -1000.0,
        -950.0,
        0.0,
        1000.0,
        1000.0,
    ]


def test_each_band_begins_at_its_floor() -> None:
    priorities = (-1000, -0.01, 0, 249.9, 250, 499.9, 500, 749.9, 750, 1000)
    assert [band_of(one) for one in priorities] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_what_stands_back_is_one_band_lower_wherever_it_was() -> None:
    for priority in range(-1000, 1001):
        lower = one_band_lower(priority)
        assert band_of(lower) == max(0, band_of(priority) - 1)
        assert -1000 <= lower <= priority
