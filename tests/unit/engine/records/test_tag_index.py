from __future__ import annotations

from random import Random

import pytest

from topicsd.engine.records.tag_index import RANGE_RECORDS, TAKEN_AT_ONCE, TagIndex


def index_of(*tags: bytes) -> TagIndex:
    """Seqs from 1 on, a tag each; an empty one is none."""
    index = TagIndex()
    for seq, tag in enumerate(tags, 1):
        if tag:
            index.add(tag, seq)
    return index


def test_the_seqs_of_a_tag_leave_the_index_when_they_are_taken() -> None:
    index = index_of(b"a", b"b", b"a", b"a")
    assert index.take(b"a", False, below=100) == [1, 3, 4]
    assert index.take(b"a", False, below=100) == []
    assert len(index) == 1


def test_a_bound_leaves_what_is_at_or_behind_it() -> None:
    index = index_of(b"a", b"a", b"a", b"b")
    assert index.take(b"a", False, below=3) == [1, 2]
    assert index.take(b"b", False, below=4) == []
    assert index.take(b"a", False, below=4) == [3]
    assert index.take(b"b", False, below=5) == [4]
    assert len(index) == 0


def test_an_exact_tag_is_no_prefix() -> None:
    index = index_of(b"order", b"order-1", b"orde")
    assert index.take(b"order", False, below=10) == [1]


def test_a_prefix_takes_every_tag_that_begins_with_it_and_no_other() -> None:
    index = index_of(b"b-1", b"a-9", b"b-2", b"c", b"b", b"b-1", b"ba", b"a\xff")
    assert sorted(index.take(b"b", True, below=10)) == [1, 3, 5, 6, 7]
    assert sorted(index.take(b"a", True, below=10)) == [2, 8]
    assert len(index) == 1


def test_the_empty_prefix_takes_all_that_have_a_tag() -> None:
    index = index_of(b"b", b"", b"a")
    assert sorted(index.take(b"", True, below=10)) == [1, 3]


def test_a_tag_that_comes_after_a_prefix_was_asked_for_is_found_by_the_next() -> None:
    index = index_of(b"a1", b"b1")
    assert index.take(b"a", True, below=10) == [1]
    index.add(b"a2", 10)
    index.add(b"a1", 11)
    assert sorted(index.take(b"a", True, below=100)) == [10, 11]


def test_pruning_drops_whole_ranges() -> None:
    index = TagIndex()
    for seq in range(1, 3 * RANGE_RECORDS):
        index.add(b"all", seq)
        index.add(b"tag-%d" % seq, seq)
    index.prune(2 * RANGE_RECORDS - 1)
    assert index.take(b"tag-5", False, below=10**6) == []
    assert index.take(b"all", False, below=10**6) == [*range(RANGE_RECORDS, 3 * RANGE_RECORDS)]
    index.prune(3 * RANGE_RECORDS)
    assert len(index) == 0
    index.add(b"all", 3 * RANGE_RECORDS - 1)
    index.add(b"all", 3 * RANGE_RECORDS)
    assert index.take(b"", True, below=10**6) == [3 * RANGE_RECORDS - 1, 3 * RANGE_RECORDS]


def test_what_is_pruned_is_given_to_the_caller_to_free() -> None:
    index = TagIndex()
    for number in range(12):
        index.add(b"a", number * RANGE_RECORDS)
    assert len(index.prune(10 * RANGE_RECORDS)) == 10
    assert len(index) == 2
    assert len(index.prune(10**6)) == 2
    assert index.prune(10**6) == []
    index.add(b"a", 12 * RANGE_RECORDS)
    assert index.take(b"a", False, below=10**6) == [12 * RANGE_RECORDS]


@pytest.mark.parametrize(("tag", "is_prefix"), [(b"a", False), (b"a", True), (b"", True), (b"b-7", False)])
def test_what_a_thread_finds_is_what_would_be_taken_and_it_stays(tag: bytes, is_prefix: bool) -> None:
    index = TagIndex()
    for seq in range(1, 3 * RANGE_RECORDS, 3):
        index.add((b"a", b"b-%d" % (seq % 10), b"a-%d" % seq)[seq % 3], seq)
    below = 2 * RANGE_RECORDS + 100
    seqs = index.find(tag, is_prefix, below)
    assert index.find(tag, is_prefix, below) == seqs
    assert sorted(index.take(tag, is_prefix, below)) == sorted(seqs)
    assert index.find(tag, is_prefix, below) == []


def test_what_a_thread_found_of_a_tag_leaves_and_no_other() -> None:
    index = index_of(b"a", b"b", b"a", b"a", b"c")
    index.drop(b"a", below=4)
    index.drop(b"c", below=5)
    index.drop(b"nothing", below=9)
    assert [index.find(tag, False, below=100) for tag in (b"a", b"b", b"c")] == [[4], [2], [5]]
    index.drop(b"c", below=6)
    assert len(index) == 2


def test_what_is_much_for_one_step_is_known_without_looking_at_it() -> None:
    index = TagIndex()
    for seq in range(1, TAKEN_AT_ONCE + 1):
        index.add(b"a", seq)
    assert not index.is_much(b"a", False)
    assert not index.is_much(b"a", True)
    index.add(b"a", RANGE_RECORDS)
    assert index.is_much(b"a", False)
    assert index.is_much(b"x", True)
    assert not index.is_much(b"x", False)


def test_all_seqs_of_a_tag_are_given_in_their_order() -> None:
    index = TagIndex()
    for seq in range(1, 2 * RANGE_RECORDS, 500):
        index.add(b"a", seq)
    for seq in (1, RANGE_RECORDS + 1):
        index.add(b"a", seq)  # These came before.
    index.add(b"b", 7)
    assert index.seqs_by_tag() == {b"a": [*range(1, 2 * RANGE_RECORDS, 500)], b"b": [7]}


def test_it_agrees_with_a_list_of_pairs_over_random_calls() -> None:
    rng = Random(5)
    tags = [b"x", b"xy", b"xyz", b"y", b"y-1", b"z"]
    for _ in range(50):
        index, pairs = TagIndex(), set()
        for seq in range(RANGE_RECORDS - 100, RANGE_RECORDS + 100):
            tag = rng.choice(tags)
            index.add(tag, seq)
            pairs.add((tag, seq))
            if rng.random() < 0.1:
                pattern, is_prefix = rng.choice([b"", *tags]), rng.random() < 0.5
                below = rng.randint(1, seq + 1)
                right = {
                    (tag, at)
                    for tag, at in pairs
                    if at < below and (tag.startswith(pattern) if is_prefix else tag == pattern)
                }
                assert sorted(index.take(pattern, is_prefix, below)) == sorted(at for _, at in right)
                pairs -= right
            assert index.seqs_by_tag() == {
                tag: sorted(at for other, at in pairs if other == tag) for tag in {tag for tag, _ in pairs}
            }
