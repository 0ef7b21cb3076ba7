"""Compaction of shared topics, and vacuum of what no extent names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.broker import ReadLimits
from topicsd.broker.catalog_of_store import CATALOG_KEY, adopt_store
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum, BlobVacuumReport
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import COMPACTED, CompactionReport, Compactor
from topicsd.catalog.shared.shared_catalog import REPEATED_MS

T = TypeVar("T")
NO_CACHE = ReadLimits(tail_cache_bytes=0, block_cache_bytes=0)
GRACE_MS = 3_600_000


def run(steps: BlockingSteps[T], before: Callable[[int], object] = lambda number: None) -> T:
    """Run steps; call `before` before each of their calls."""
    result: Any = None
    number = 0
    while True:
        try:
            call = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        before(number)
        number += 1
        result = call()


def broker_with_blobs(count: int) -> OneBroker:
    """Return a broker whose topics `a` and `b` have a record in each of some old blobs."""
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    one.create("b", 8)
    for number in range(count):
        one.append("b", b"b%d" % number)
        one.appended("a", b"%d" % number)
    one.clock.advance(REPEATED_MS)
    return one


def compactor(one: OneBroker, name: str = "c", **limits: int) -> Compactor:
    return Compactor(name, one.store, one.catalog, one.retries, CompactorLimits(**limits))


def keys(one: OneBroker) -> list[str]:
    return [extent.key for extent in one.topics.extents_from("a", 1, 100)]


def test_blobs_become_one_object_with_the_same_records() -> None:
    one = broker_with_blobs(6)
    before = one.values("a")
    report = run(compactor(one).compact("a"))
    assert (report.outcome, report.extents) == ("merged", 6)
    assert len(set(keys(one))) == 1
    assert one.values("a") == before
    assert one.values("a", 4) == before[3:]
    assert run(compactor(one).compact("a")).outcome == "nothing"
    (topic,) = one.topics.topics(["a"])
    assert topic is not None
    assert topic.compacted_to == 6


def test_an_object_has_at_most_its_bytes_and_the_next_one_continues() -> None:
    one = broker_with_blobs(7)
    before = one.values("a")
    size = one.topics.extents_from("a", 1, 1)[0].byte_length
    job = compactor(one, object_bytes=3 * size)
    assert [run(job.compact("a")).extents for _ in range(3)] == [3, 3, 0]
    assert one.values("a") == before


def test_young_extents_are_left_alone() -> None:
    one = broker_with_blobs(2)
    one.appended("a", b"young")
    assert run(compactor(one).compact("a")).extents == 2
    assert one.values("a")[-1] == (3, b"young")


def test_a_topic_that_another_compactor_has_claimed_is_busy() -> None:
    one = broker_with_blobs(3)
    one.topics.claim("a", "other", 60_000)
    assert run(compactor(one).compact("a")) == CompactionReport("busy")
    one.clock.advance(60_000)
    assert run(compactor(one).compact("a")).outcome == "merged"


def test_a_compactor_that_lost_its_claim_changes_nothing() -> None:
    one = broker_with_blobs(4)
    before = one.values("a")

    def take_over(number: int) -> None:
        if number == 6:
            one.clock.advance(200_000)
            assert run(compactor(one, "other").compact("a")).outcome == "merged"

    report = run(compactor(one).compact("a"), take_over)
    assert report.outcome in ("claim lost", "refused")
    assert one.values("a") == before


def test_a_compactor_that_ends_anywhere_leaves_a_topic_that_another_one_compacts() -> None:
    steps = 0
    run(compactor(broker_with_blobs(3)).compact("a"), lambda number: None)
    while True:
        one = broker_with_blobs(3)
        before = one.values("a")
        job = compactor(one).compact("a")
        result: Any = None
        try:
            for _ in range(steps):
                result = job.send(result)()
        except StopIteration:
            return
        job.close()
        one.clock.advance(200_000)
        run(compactor(one, "other").compact("a"))
        assert len(set(keys(one))) == 1
        assert one.values("a") == before
        # Objects that were put and not named are orphans.
        vacuum(one, 0)
        assert {key for key in objects(one) if key.startswith(COMPACTED)} == set(keys(one))
        assert one.values("a") == before
        steps += 1


def test_retention_that_ends_anywhere_is_finished_by_the_next_visit() -> None:
    config = encode_shared_config(SharedTopicConfig(cap_records=2))
    for steps in range(40):
        one = broker_with_blobs(5)
        one.topics.configure("a", 7, config, 1)
        job = compactor(one).compact("a")
        result: Any = None
        try:
            for _ in range(steps):
                result = job.send(result)()
        except StopIteration:
            assert steps > 8
            return
        job.close()
        one.clock.advance(200_000)
        run(compactor(one, "other").compact("a"))
        (topic,) = one.topics.topics(["a"])
        assert topic is not None
        assert (topic.evicted_to, topic.deleted_to, topic.compacted_to) == (3, 0, 5)
        assert one.values("a") == [(4, b"3"), (5, b"4")]


def test_the_merge_ends_before_damage_which_readers_report() -> None:
    one = broker_with_blobs(5)
    key = keys(one)[3]
    stored = one.store.objects[key]
    one.store.objects[key] = stored._replace(data=stored.data[:-1] + b"?")
    assert run(compactor(one).compact("a")).extents == 3
    assert [seq for seq, _ in one.values("a")] == [1, 2, 3, 5]


@pytest.mark.parametrize("at", range(6))
def test_a_damaged_slice_in_any_place_stops_nothing(at: int) -> None:
    one = broker_with_blobs(6)
    key = keys(one)[at]
    stored = one.store.objects[key]
    one.store.objects[key] = stored._replace(data=stored.data[:-1] + b"?")
    before = one.values("a")
    for _ in range(4):
        run(compactor(one).compact("a"))
    extents = one.topics.extents_from("a", 1, 10)
    compacted = [(extent.first_seq, extent.last_seq) for extent in extents if extent.type == "COMPACTED"]
    # The last one waits for others when it is alone.
    expected = [(1, at)] if at else []
    expected += [(at + 1, at + 1)] if at < 5 else []
    expected += [(at + 2, 6)] if at < 4 else []
    assert compacted == expected
    assert one.values("a") == before
    assert [seq for seq, _ in before] == [seq for seq in range(1, 7) if seq != at + 1]


def vacuum(one: OneBroker, grace_ms: int = GRACE_MS, is_dry: bool = False) -> BlobVacuumReport:
    one.store.now_ms = one.clock.now_ms()
    adopt_store(one.store, one.topics, one.retries)
    return run(BlobVacuum(one.store, one.catalog, one.retries, grace_ms).run(is_dry))


def objects(one: OneBroker) -> set[str]:
    """Return the objects that a catalog may name."""
    return set(one.store.objects) - {CATALOG_KEY}


def test_vacuum_deletes_what_no_extent_names_and_nothing_else() -> None:
    one = broker_with_blobs(4)
    contents = one.values("a"), one.values("b")
    assert vacuum(one, 0).orphans == 0
    for name in ("a", "b"):
        run(compactor(one).compact(name))
    one.store.create("llog/wal-shared/never-committed", [b"x"], "id")
    blobs = {key for key in objects(one) if key.startswith("llog/wal-shared/")}
    one.clock.advance(GRACE_MS)
    dry = vacuum(one, is_dry=True)
    assert dry.orphans == len(blobs)
    assert objects(one) >= blobs
    assert vacuum(one) == dry
    assert not objects(one) & blobs
    assert (one.values("a"), one.values("b")) == contents
    assert vacuum(one).orphans == 0


def test_young_objects_are_not_looked_at() -> None:
    one = OneBroker()
    one.store.now_ms = one.clock.now_ms()
    one.create("a")
    one.store.create("llog/wal-shared/young", [b"x"], "id")
    report = vacuum(one)
    assert (report.objects, report.young, report.orphans) == (1, 1, 0)
    one.clock.advance(GRACE_MS)
    assert vacuum(one).orphans == 1


def test_vacuum_without_a_grace_loses_nothing_that_is_on_its_way() -> None:
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    answer = one.append("a", b"1")
    one.settle()
    one.loop.advance(250)
    while not objects(one):
        assert any(thread.run_one() for thread in one.threads)
    assert vacuum(one, 0).orphans == 1
    assert not objects(one)
    one.advance(100)
    assert answer
    assert one.values("a") == [(1, b"1")]
