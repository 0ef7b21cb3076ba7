"""Compacted extents that are merged again in a key-value store, by processes that pause or die in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest

from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.shared_catalog import (
    REPEATED_MS,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    Part,
    SharedExtent,
    Slice,
)

REQUESTS_MAX = 200
CLAIM_REQUESTS = 4
BLOBS = 6
Extents = list[tuple[int, int, str, int]]
BEFORE: Extents = [(1, 4, "first", 104), (5, 8, "second", 108), (9, 10, "blob-4", 9), (11, 12, "blob-5", 9)]
AFTER: Extents = [(1, 8, "third", 108), *BEFORE[2:]]


class ProcessDied(BaseException):
    """The end of a process between two requests."""


def compaction(key: str, first: int, last: int) -> Compaction:
    extent = SharedExtent(first, last, "COMPACTED", key, "segment-v1", 0, 100 + last, 0)
    return Compaction(f"id-{key}", "t", 7, extent)


THIRD = compaction("third", 1, 8)


class Merge:
    """A topic with two compacted extents and two others, and a process that merges the first two again."""

    def __init__(self) -> None:
        self.keys = SharedKeys(ManualClock())
        self.store = FakeKeyValue(self.keys, Random(1))
        self.catalog, self.other = self.open(self.store), self.open(FakeKeyValue(self.keys, Random(2)))
        self.catalog.create("t", 7, b"{}")
        for number in range(BLOBS):
            self.catalog.commit(
                f"blob-{number}", "frames-v1", [Slice("t", 7, 50, (Part(f"{number}", 2, 9),))]
            )
        self.keys.clock.advance(REPEATED_MS)
        self.compact(self.catalog, compaction("first", 1, 4))
        self.compact(self.catalog, compaction("second", 5, 8))
        self.requests = 0

    def open(self, store: FakeKeyValue) -> KeyValueSharedCatalog:
        return KeyValueSharedCatalog(store, policy(), self.keys.clock.now_ms, "s3://bucket/", 0, threads=1)

    def compact(self, catalog: KeyValueSharedCatalog, one: Compaction) -> None:
        claim = catalog.claim("t", "compactor", REPEATED_MS)
        assert claim is not None
        catalog.begin_compaction(claim, one)
        catalog.finish_compaction("t")

    def extents(self) -> Extents:
        records = self.other.extents_from("t", 1, 9)
        return [(one.first_seq, one.last_seq, one.key, one.byte_length) for one in records]

    def merge(self, at: int, then: Callable[[], object], one: Compaction = THIRD) -> bool:
        """Merge again, and call `then` before the request of number `at`; return whether it came so far."""

        def before() -> None:
            self.requests += 1
            if self.requests == at + 1:
                then()

        self.store.before_request = before
        with suppress(ProcessDied):
            self.compact(self.catalog, one)
        self.store.before_request = None
        return self.requests > at


def positions() -> Iterator[int]:
    """Return the number of each request of a merge, and the one after the last."""
    merge = Merge()
    merge.merge(-1, lambda: None)
    assert merge.extents() == AFTER
    assert 10 < merge.requests < REQUESTS_MAX
    return iter(range(merge.requests))


def test_a_process_that_dies_anywhere_leaves_a_merge_that_another_one_finishes() -> None:
    seen: set[bool] = set()
    for at in positions():
        merge = Merge()

        def die(merge: Merge = merge) -> None:
            assert merge.extents() in (BEFORE, AFTER)
            raise ProcessDied

        assert merge.merge(at, die)
        seen.add(merge.extents() == AFTER)
        merge.other.finish_compaction("t")
        assert merge.extents() in (BEFORE, AFTER)
        merge.compact(merge.other, compaction("third", 1, 8))
        assert merge.extents() == AFTER
        assert merge.other.condemn(["first", "second", "third", "blob-4"]) == {"first", "second"}
        assert sum(key.startswith("topicsd/compacted/") for key in merge.keys.entries) == 1
        (topic,) = merge.other.topics(["t"])
        assert topic is not None
        assert topic.compacted_to == 8
    assert seen == {False, True}


@pytest.mark.parametrize("change", ["trim", "compact", "merge", "commit"])
def test_a_change_between_any_two_requests_leaves_extents_that_follow_each_other(change: str) -> None:
    for at in positions():
        merge = Merge()

        def change_it(merge: Merge = merge) -> None:
            other = merge.other
            if change == "trim":
                other.trim("t", 7, 4, "evicted")
            elif change == "commit":
                other.commit("late", "frames-v1", [Slice("t", 7, 50, (Part("late", 2, 9),))])
            else:
                claim = Claim("t", "compactor", merge.keys.clock.now_ms(), REPEATED_MS)
                one = compaction("fourth", *((9, 12) if change == "compact" else (1, 8)))
                with suppress(CompactionRefused, CatalogUnavailable):
                    other.begin_compaction(claim, one)
                    other.finish_compaction("t")

        with suppress(CompactionRefused, CatalogUnavailable):
            merge.merge(at, change_it)
        merge.other.finish_compaction("t")
        extents = merge.extents()
        assert extents[-1][1] == (14 if change == "commit" else 12)
        assert extents[0][0] == 1 or (change == "trim" and extents[0][0] == 5)
        assert all(one[1] + 1 == after[0] for one, after in pairwise(extents))
        if change == "merge":
            assert extents in (AFTER, [(1, 8, "fourth", 108), *BEFORE[2:]])
        assert merge.other.condemn([key for _, _, key, _ in extents]) == set()


def test_a_merge_of_a_deleted_topic_leaves_nothing_to_a_later_one() -> None:
    for at in [*positions()][CLAIM_REQUESTS:]:
        merge = Merge()

        def delete(merge: Merge = merge) -> None:
            merge.other.forget("t", 7)

        with suppress(ClaimLost, CompactionRefused, CatalogUnavailable):
            merge.merge(at, delete)
        assert not any(key.endswith("/compaction-cursor") for key in merge.keys.entries), at


@pytest.mark.parametrize(("first", "other_first"), [(1, 5), (5, 1)])
def test_merges_that_end_at_one_seq_leave_the_length_of_the_last_object(first: int, other_first: int) -> None:
    number, requests = 0, 1
    while number < requests:
        merge = Merge()
        merge.compact(merge.other, compaction("last", 9, 12))

        def merge_others(merge: Merge = merge) -> None:
            claim = Claim("t", "compactor", merge.keys.clock.now_ms(), REPEATED_MS)
            with suppress(CompactionRefused, CatalogUnavailable):
                merge.other.finish_compaction("t")
                merge.other.begin_compaction(claim, compaction("fourth", other_first, 12))
                merge.other.finish_compaction("t")

        with suppress(CompactionRefused, CatalogUnavailable):
            merge.merge(number, merge_others, compaction("third", first, 12))
        merge.other.finish_compaction("t")
        extents = merge.extents()
        assert (extents[0][0], extents[-1][1]) == (1, 12)
        assert all(one[1] + 1 == after[0] for one, after in pairwise(extents))
        requests, number = max(requests, merge.requests), number + 1
    assert requests > 10


@pytest.mark.parametrize(
    ("first", "last"), [(1, 4), (5, 10), (1, 12), (2, 8), (1, 7), (5, 12)], ids=lambda one: str(one)
)
def test_other_ranges_are_refused(first: int, last: int) -> None:
    merge = Merge()
    with pytest.raises(CompactionRefused):
        merge.compact(merge.other, compaction("third", first, last))
    assert merge.extents() == BEFORE
