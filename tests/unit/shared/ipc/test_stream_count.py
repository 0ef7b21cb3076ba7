"""Streams are counted in total, by key and by holder."""

from __future__ import annotations

from collections import Counter
from random import Random

from shared.ipc.exact_counts import BOUND, BOUND_PER_KEY, StreamCount


def test_streams_never_exceed_their_bounds() -> None:
    count = StreamCount(3, 2)
    assert [count.enter(1, "a"), count.enter(2, "a"), count.enter(1, "a")] == ["", "", BOUND_PER_KEY]
    assert [count.enter(1, "b"), count.enter(2, "b"), count.enter(2, "c")] == ["", BOUND, BOUND]
    count.leave(2, "a")
    assert [count.enter(2, "b"), count.enter(2, "b")] == ["", BOUND]


def test_without_keys_the_bound_per_key_does_not_apply() -> None:
    count = StreamCount(3, 1)
    assert [count.enter(1, "") for _ in range(4)] == ["", "", "", BOUND]


def test_a_bound_of_zero_is_unlimited() -> None:
    count = StreamCount(0, 0)
    assert {count.enter(1, "a") for _ in range(100)} == {""}


def test_the_streams_of_a_dead_holder_are_released_once() -> None:
    count = StreamCount(2, 0)
    assert count.enter(1, "a") == count.enter(2, "a") == ""
    count.keep({2})
    # A message that it sent before it died may arrive late.
    count.leave(1, "a")
    assert [count.enter(3, "a"), count.enter(3, "a")] == ["", BOUND]


def test_the_counts_match_a_table_under_random_operations() -> None:
    rng = Random(7)
    count, expected_counts = StreamCount(6, 3), Counter[tuple[int, str]]()
    for _ in range(5000):
        holder, key = rng.randrange(3), rng.choice("ab")
        what = rng.random()
        if what < 0.5:
            of_key = sum(number for (_, one), number in expected_counts.items() if one == key)
            expected = BOUND if expected_counts.total() >= 6 else BOUND_PER_KEY if of_key >= 3 else ""
            assert count.enter(holder, key) == expected
            expected_counts[holder, key] += not expected
        elif what < 0.95:
            if expected_counts[holder, key]:
                expected_counts[holder, key] -= 1
                count.leave(holder, key)
        else:
            count.keep({0, 1, 2} - {holder})
            for one in "ab":
                del expected_counts[holder, one]
