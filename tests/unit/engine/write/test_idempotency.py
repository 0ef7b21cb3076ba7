from __future__ import annotations

from random import Random

from topicsd.engine.write.idempotency import (
    DIGEST_BYTES,
    GENERATIONS,
    KEYS_A_STEP,
    PARTS,
    IdempotencyKeys,
    KeyedWrite,
    key_digest,
)

WINDOW = 10_000


def key(number: int) -> bytes:
    return key_digest(1, 7, f"key-{number}")


def write(number: int) -> KeyedWrite:
    return KeyedWrite(number.to_bytes(DIGEST_BYTES, "big"), 10 * number, number % 100 + 1)


def test_a_digest_is_of_one_key_of_one_incarnation_of_one_topic() -> None:
    digests = {
        key_digest(epoch, topic_id, name)
        for epoch in (1, 11)
        for topic_id in (1, 11)
        for name in ("", "k", "1/k", "kä")
    }
    assert len(digests) == 16
    assert {len(digest) for digest in digests} == {DIGEST_BYTES}


def test_a_key_gives_what_it_was_used_for() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(200):
        key_table.add(key(number), write(number), WINDOW, 1000 + number, 7)
    assert key_table.count == 200
    for number in range(200):
        assert key_table.find(key(number), (WINDOW,), 1300) == write(number)
    assert key_table.find(key(200), (WINDOW,), 1300) is None


def test_the_window_ends_exactly_when_it_is_over() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), WINDOW, 5000, 7)
    assert key_table.find(key(1), (WINDOW,), 5000 + WINDOW) == write(1)
    assert key_table.find(key(1), (WINDOW,), 5000 + WINDOW + 1) is None


def test_a_use_is_not_refreshed_by_being_found() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), WINDOW, 0, 7)
    for now in range(0, WINDOW + 1, 1000):
        assert key_table.find(key(1), (WINDOW,), now) == write(1)
    assert key_table.find(key(1), (WINDOW,), WINDOW + 1) is None


def test_a_key_used_again_after_its_window_stands_for_the_later_write() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), WINDOW, 0, 7)
    key_table.add(key(1), write(2), WINDOW, WINDOW + 1, 7)
    assert key_table.find(key(1), (WINDOW,), WINDOW + 2) == write(2)
    assert key_table.find(key(1), (WINDOW,), 2 * WINDOW + 1) == write(2)
    assert key_table.find(key(1), (WINDOW,), 2 * WINDOW + 2) is None


def test_no_key_is_forgotten_early_and_all_are_in_the_end() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(3000):
        now = number * 10
        key_table.add(key(number), write(number), WINDOW, now, 7)
        assert key_table.has_room(now, 0)
        oldest = max(0, number - WINDOW // 10)
        assert key_table.find(key(oldest), (WINDOW,), now) == write(oldest)
        # A generation more than the window, and the one that is being filled.
        assert key_table.count <= WINDOW // 10 + 2 * (WINDOW // GENERATIONS // 10) + 1
    key_table.has_room(30_000 + 2 * WINDOW, 0)
    assert key_table.count == 0


def test_what_is_full_has_no_room_until_a_generation_is_over() -> None:
    key_table = IdempotencyKeys(3)
    for number in range(3):
        assert key_table.has_room(number, 0)
        key_table.add(key(number), write(number), WINDOW, number, 7)
    assert not key_table.has_room(WINDOW, 0)
    assert key_table.find(key(0), (WINDOW,), WINDOW) == write(0)
    assert key_table.has_room(WINDOW + WINDOW // GENERATIONS + 10, 0)
    assert key_table.count == 0


def test_writes_on_their_way_take_room_too() -> None:
    key_table = IdempotencyKeys(3)
    key_table.add(key(0), write(0), WINDOW, 0, 7)
    assert key_table.has_room(0, 1)
    assert not key_table.has_room(0, 2)


def test_zero_is_no_bound() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(1000):
        key_table.add(key(number), write(number), WINDOW, 0, 7)
    assert key_table.has_room(0, 10**9)


def test_topics_with_other_windows_have_generations_of_their_own() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), 100, 0, 7)
    key_table.add(key(2), write(2), 1_000_000, 0, 7)
    key_table.has_room(500, 0)
    assert key_table.count == 1
    assert key_table.find(key(1), (100,), 500) is None
    assert key_table.find(key(2), (1_000_000,), 500) == write(2)


def test_a_window_that_was_changed_counts_for_the_keys_from_before_too() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), 1000, 0, 7)
    key_table.add(key(2), write(2), 500, 600, 7)
    assert key_table.find(key(1), (500, 1000), 500) == write(1)
    assert key_table.find(key(1), (500, 1000), 501) is None
    assert key_table.find(key(2), (500, 1000), 1100) == write(2)
    assert key_table.find(key(1), (5000, 500, 1000), 1050) == write(1)


def test_the_keys_of_another_window_are_not_looked_at() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), 1000, 0, 7)
    assert key_table.find(key(1), (500,), 0) is None


def test_a_clock_that_steps_back_forgets_nothing() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(1), write(1), WINDOW, 100_000, 7)
    key_table.add(key(2), write(2), WINDOW, 50_000, 7)
    assert key_table.has_room(50_001, 0)
    assert key_table.find(key(1), (WINDOW,), 50_001) == write(1)
    assert key_table.find(key(2), (WINDOW,), 50_001) == write(2)


def test_a_clock_that_was_ahead_for_a_while_keeps_no_keys_but_its_own() -> None:
    key_table = IdempotencyKeys(0)
    key_table.add(key(0), write(0), WINDOW, 10**12, 7)
    for number in range(1, 1000):
        now = number * 1000
        assert key_table.has_room(now, 0)
        key_table.add(key(number), write(number), WINDOW, now, 7)
        assert key_table.find(key(number), (WINDOW,), now) == write(number)
        assert key_table.count <= 1 + WINDOW // 1000 + WINDOW // GENERATIONS // 1000 + 1
    assert key_table.find(key(0), (WINDOW,), 10**12 + WINDOW) == write(0)


def test_topics_whose_times_are_apart_do_not_break_the_generations_up() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(1000):
        key_table.add(key(number), write(number), WINDOW, number if number % 2 else 10**12, 7)
    assert sum(len(generations) for generations in key_table._windows.values()) <= 3


def test_the_largest_numbers_fit() -> None:
    key_table = IdempotencyKeys(0)
    largest = KeyedWrite(b"\xff" * DIGEST_BYTES, (1 << 63) - 1, 1_000_000)
    key_table.add(key(1), largest, (1 << 63) - 1, (1 << 63) - 1, 7)
    assert key_table.find(key(1), ((1 << 63) - 1,), (1 << 63) - 1) == largest


def test_it_agrees_with_a_plain_dictionary_over_random_uses() -> None:
    rng = Random(13)
    key_table = IdempotencyKeys(0)
    used: dict[int, tuple[KeyedWrite, int]] = {}
    now = 0
    for number in range(5000):
        now += rng.choice((0, 1, 5, 50))
        name = rng.randrange(400)
        window = (100, 1000, 5000)[name % 3]
        before = used.get(name)
        entry = key_table.find(key(name), (window,), now)
        if before is not None and now - before[1] <= window:
            assert entry == before[0]
        else:
            assert entry is None
            key_table.has_room(now, 0)
            key_table.add(key(name), write(number), window, now, 7)
            used[name] = (write(number), now)


def test_the_keys_of_a_generation_go_through_columns_in_small_parts() -> None:
    key_table, keys_count = IdempotencyKeys(0), 2 * KEYS_A_STEP + 7
    for number in range(keys_count):
        key_table.add(key(number), write(number), WINDOW, 1000, 7)
    parts = list(key_table.columns())
    assert [len(part.digests) // DIGEST_BYTES for part in parts] == [KEYS_A_STEP, KEYS_A_STEP, 7]
    again = IdempotencyKeys(0)
    for part in parts:
        again.add_columns(part, 1000)
    assert again.count == keys_count
    for number in range(0, keys_count, 97):
        assert again.find(key(number), (WINDOW,), 1000) == write(number)


def test_keys_that_come_between_two_parts_are_in_a_later_one() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(KEYS_A_STEP + 1):
        key_table.add(key(number), write(number), WINDOW, 1000, 7)
    columns = key_table.columns()
    again = IdempotencyKeys(0)
    again.add_columns(next(columns), 1000)
    key_table.add(key(10**6), write(3), WINDOW, 1000, 7)
    for part in columns:
        again.add_columns(part, 1000)
    assert again.count == key_table.count
    assert again.find(key(10**6), (WINDOW,), 1000) == write(3)


def test_what_is_forgotten_goes_in_small_parts_and_all_of_it() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(2000):
        key_table.add(key(number), write(number), WINDOW, 1, 7)
    assert key_table.has_room(3 * WINDOW, 0)
    assert key_table.count == 0
    assert 100 < len(key_table._to_free) <= PARTS + 1
    for number in range(PARTS):
        key_table.has_room(3 * WINDOW, 0)
        key_table.add(key(number), write(number), WINDOW, 3 * WINDOW, 7)
    assert not key_table._to_free


def test_nothing_gathers_where_writes_are_few() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(100):
        key_table.has_room(number * WINDOW, 0)
        key_table.add(key(number), write(number), WINDOW, number * WINDOW, 7)
    assert len(key_table._to_free) < 4


def test_the_keys_of_one_topic_are_taken_to_another_table() -> None:
    key_table = IdempotencyKeys(0)
    for number in range(20):
        key_table.add(key(number), write(number), WINDOW, 1000, number % 3)
    (columns,) = key_table.columns()
    own = columns.of_topic(2)
    assert own is not None
    other = IdempotencyKeys(0)
    other.add(key(2), write(99), WINDOW, 1000, 2)
    for _ in range(2):
        other.merge(own, 2000)
    # The id 0 stands for an unknown topic, whose keys every topic takes along.
    known = {number for number in range(20) if other.find(key(number), (WINDOW,), 2000) is not None}
    assert known == {number for number in range(20) if number % 3 != 1}
    assert other.count == len(known)
    assert other.find(key(2), (WINDOW,), 2000) == write(99), "a known key stays as it is"
    older = columns._replace(topic_ids=b"")
    assert older.of_topic(5) == older, "the topics of all keys are unknown"
