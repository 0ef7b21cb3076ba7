from __future__ import annotations

import pytest

from topicsd.engine.write.seq_ceiling import AHEAD_MS, GROWTH, STEP_MIN, raised_ceiling


def test_a_slow_topic_gets_the_smallest_step() -> None:
    ceiling = raised_ceiling(head=10, raised_head=9, elapsed_ms=5000)
    assert (ceiling.value, ceiling.mark, ceiling.is_soon_needed) == (10 + STEP_MIN, 10 + STEP_MIN // 2, False)


def test_a_steady_rate_gets_two_seconds_of_itself_and_the_next_is_due_at_half() -> None:
    ceiling = raised_ceiling(head=100_000, raised_head=95_000, elapsed_ms=1000)
    assert ceiling.value == 100_000 + 5 * AHEAD_MS
    assert ceiling.mark == 100_000 + 5 * AHEAD_MS // 2


def test_a_burst_makes_no_rate_of_millions() -> None:
    ceiling = raised_ceiling(head=20_000, raised_head=10_000, elapsed_ms=0)
    assert ceiling.value == 20_000 + GROWTH * 10_000


@pytest.mark.parametrize("elapsed_ms", [-(10**9), 0, 1, 10**12])
@pytest.mark.parametrize("advance", [0, 1, 255, 10_000, 10**9])
def test_there_is_always_room_above_the_head_and_the_next_is_due_before_it_is_used_up(
    advance: int, elapsed_ms: int
) -> None:
    head = 10**9
    ceiling = raised_ceiling(head, head - advance, elapsed_ms)
    assert head < ceiling.mark < ceiling.value
    assert STEP_MIN <= ceiling.value - head <= max(STEP_MIN, GROWTH * advance)


def test_what_would_use_up_half_before_the_background_sync_is_needed_soon() -> None:
    assert raised_ceiling(head=2000, raised_head=1000, elapsed_ms=1).is_soon_needed
    assert not raised_ceiling(head=2000, raised_head=1000, elapsed_ms=1000).is_soon_needed
