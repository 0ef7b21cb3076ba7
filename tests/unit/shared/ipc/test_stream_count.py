"""Streams are counted in all, by key and by holder."""

from __future__ import annotations

from collections import Counter
from random import Random

from shared.ipc.stream_count import IN_ALL, PER_KEY, StreamCount


def test_there_are_never_more_than_there_may_be() -> None:
    count = StreamCount(3, 2)
    assert [count.enter(1, "a"), count.enter(2, "a"), count.enter(1, "a")] == ["", "", PER_KEY]
    assert [count.enter(1, "b"), count.enter(2, "b"), count.enter(2, "c")] == ["", IN_ALL, IN_ALL]
    count.leave(2, "a")
    assert [count.enter(2, "b"), count.enter(2, "b")] == ["", IN_ALL]


def test_without_keys_there_is_no_bound_of_a_key() -> None:
    count = StreamCount(3, 1)
    assert [count.enter(1, "") for _ in range(4)] == ["", "", "", IN_ALL]


def test_no_bound_is_no_bound() -> None:
    count = StreamCount(0, 0)
    assert {count.enter(1, "a") for _ in range(100)} == {""}


def test_what_a_holder_that_is_gone_had_is_given_back_once() -> None:
    count = StreamCount(2, 0)
    assert count.enter(1, "a") == count.enter(2, "a") == ""
    count.keep({2})
    # It may still have said something before it died.
    count.leave(1, "a")
    assert [count.enter(3, "a"), count.enter(3, "a")] == ["", IN_ALL]


def test_it_counts_as_a_table_would_whatever_happens() -> None:
    rng = Random(7)
    count, held = StreamCount(6, 3), Counter[tuple[int, str]]()
    for _ in range(5000):
        holder, key = rng.randrange(3), rng.choice("ab")
        what = rng.random()
        if what < 0.5:
            of_key = sum(number for (_, one), number in held.items() if one == key)
            expected = IN_ALL if held.total() >= 6 else PER_KEY if of_key >= 3 else ""
            assert count.enter(holder, key) == expected
            held[holder, key] += not expected
        elif what < 0.95:
            if held[holder, key]:
                held[holder, key] -= 1
                count.leave(holder, key)
        else:
            count.keep({0, 1, 2} - {holder})
            for one in "ab":
                del held[holder, one]
