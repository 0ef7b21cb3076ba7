"""Small compacted objects are merged again: with the same records, resumable, a bounded number of times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.brokers.one_broker import OneBroker
from tests.unit.broker.test_upkeep import broker_with_blobs, compactor, keys, objects, run, vacuum
from topicsd.broker.read.reader import SharedRead, TopicRead
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.upkeep.compaction_choice import AGAIN_MIN
from topicsd.broker.upkeep.compactor import COMPACTED
from topicsd.broker.upkeep.retention import SPAN_PARTS
from topicsd.catalog.shared.shared_catalog import EXTENTS_AT_ONCE, REPEATED_MS, SharedExtent

OBJECTS = AGAIN_MIN + 1


def broker_with_objects(count: int = OBJECTS) -> OneBroker:
    """Return a broker whose topic `a` has compacted objects of two records each."""
    one = broker_with_blobs(2 * count)
    job = compactor(one, extents_max=2)
    assert [run(job.compact("a")).extents for _ in range(count)] == [2] * count
    assert len(set(keys(one))) == count
    return one


def damage(one: OneBroker, at: int) -> None:
    """Damage the last record of an object."""
    key = keys(one)[at]
    stored = one.store.objects[key]
    place = 110 + 2 * 47 - 1
    data = stored.data[:place] + bytes([stored.data[place] ^ 1]) + stored.data[place + 1 :]
    one.store.objects[key] = stored._replace(data=data)


def values(one: OneBroker, from_seq: int = 1) -> list[tuple[int, bytes]]:
    """Return all records that can be read: one read returns those of a few objects."""
    records: list[tuple[int, bytes]] = []
    (head,) = one.topics.heads([("a", 7)])
    while from_seq <= head:
        answers = one.read(SharedRead([TopicRead("a", from_seq)]))
        one.settle()
        ((answer,),) = answers
        records += [(record.seq, record.data) for record in answer.records]
        assert answer.next_seq > from_seq
        from_seq = answer.next_seq
    return records


def ranges(one: OneBroker) -> list[tuple[int, int]]:
    return [(extent.first_seq, extent.last_seq) for extent in one.topics.extents_from("a", 1, 100)]


def test_many_small_objects_become_one_with_the_same_records() -> None:
    one = broker_with_objects()
    before = values(one)
    created_ms = one.topics.extents_from("a", 2 * OBJECTS, 1)[0].created_ms
    job = compactor(one)
    report = run(job.compact("a"))
    assert (report.outcome, report.extents, report.pending_records) == ("merged", OBJECTS, 0)
    (extent,) = one.topics.extents_from("a", 1, 100)
    assert (extent.first_seq, extent.last_seq, extent.created_ms) == (1, 2 * OBJECTS, created_ms)
    assert [values(one, seq) for seq in (1, 2, 5, 18)] == [before[seq - 1 :] for seq in (1, 2, 5, 18)]
    assert run(job.compact("a")).outcome == "nothing"
    vacuum(one, 0)
    assert {key for key in objects(one) if key.startswith(COMPACTED)} == {extent.key}
    assert values(one) == before


def test_few_small_objects_are_left_alone() -> None:
    one = broker_with_objects(AGAIN_MIN - 1)
    assert run(compactor(one).compact("a")).outcome == "nothing"
    assert len(set(keys(one))) == AGAIN_MIN - 1


def test_new_slices_come_before_old_objects() -> None:
    one = broker_with_objects()
    for number in range(2):
        one.appended("a", b"%d" % number)
    one.clock.advance(REPEATED_MS)
    job = compactor(one)
    assert [run(job.compact("a")).extents for _ in range(3)] == [2, OBJECTS + 1, 0]
    assert ranges(one) == [(1, 2 * OBJECTS + 2)]


def test_a_record_is_copied_a_logarithmic_number_of_times() -> None:
    one = OneBroker()
    one.create("a")
    job = compactor(one, extents_min=1)
    copied = 0
    rounds = 300
    for number in range(rounds):
        one.appended("a", b"%d" % (1000 + number))
        one.clock.advance(REPEATED_MS)
        report = run(job.compact("a"))
        while report.outcome == "merged":
            copied += report.byte_count
            report = run(job.compact("a"))
    extents = one.topics.extents_from("a", 1, EXTENTS_AT_ONCE)
    assert len(extents) < 30
    final = sum(extent.byte_length for extent in extents)
    assert copied < 8 * final
    assert values(one) == [(1 + number, b"%d" % (1000 + number)) for number in range(rounds)]


def test_a_compactor_that_ends_anywhere_leaves_objects_that_another_one_merges() -> None:
    steps = 0
    while True:
        one = broker_with_objects()
        before = values(one)
        job = compactor(one).compact("a")
        result: Any = None
        try:
            for _ in range(steps):
                result = job.send(result)()
        except StopIteration:
            break
        job.close()
        one.clock.advance(200_000)
        run(compactor(one, "other").compact("a"))
        assert ranges(one) == [(1, 2 * OBJECTS)]
        assert values(one) == before
        vacuum(one, 0)
        assert {key for key in objects(one) if key.startswith(COMPACTED)} == set(keys(one))
        steps += 1
    assert steps > OBJECTS


@pytest.mark.parametrize("is_missing", [False, True], ids=["damaged", "missing"])
@pytest.mark.parametrize("at", [0, 3, AGAIN_MIN, 2 * AGAIN_MIN])
def test_an_object_that_cannot_be_merged_stays_and_stops_nothing(at: int, is_missing: bool) -> None:
    one = broker_with_objects(2 * AGAIN_MIN + 1)
    if not is_missing:
        damage(one, at)
        before = values(one)
        assert len(before) == 2 * (2 * AGAIN_MIN + 1) - 1
    else:
        one.store.delete(keys(one)[at])
    key = keys(one)[at]
    job = compactor(one)
    calls: list[str] = []
    for _ in range(4):
        calls.append(run(job.compact("a")).outcome)
    assert calls[-1] == "nothing"
    assert key in keys(one)
    alone = (2 * at + 1, 2 * at + 2)
    merged = [(1, 2 * at)] if at >= AGAIN_MIN else [(n, n + 1) for n in range(1, 2 * at, 2)]
    last = 2 * (2 * AGAIN_MIN + 1)
    after = last // 2 - at - 1
    merged_after = [(2 * at + 3, last)] if after >= AGAIN_MIN else []
    merged_after = merged_after or [(n, n + 1) for n in range(2 * at + 3, last, 2)]
    assert ranges(one) == [*merged, alone, *merged_after]
    if not is_missing:
        assert values(one) == before


def test_a_merge_spans_no_more_of_the_ttl_than_an_object() -> None:
    ttl_ms = 100 * REPEATED_MS
    one = OneBroker()
    one.create("a")
    one.topics.configure("a", 7, encode_shared_config(SharedTopicConfig(ttl_ms=ttl_ms)), 1)
    job = compactor(one, extents_min=1)
    first_ms: dict[str, int] = {}
    for number in range(40):
        one.appended("a", b"%d" % number)
        one.clock.advance(REPEATED_MS)
        while run(job.compact("a")).outcome == "merged":
            pass
        for extent in one.topics.extents_from("a", 1, 100):
            started_ms = one.clock.now_ms() - (number + 2 - extent.first_seq) * REPEATED_MS
            assert extent.created_ms - started_ms <= ttl_ms // SPAN_PARTS + REPEATED_MS
            first_ms[extent.key] = started_ms
    extents: list[SharedExtent] = one.topics.extents_from("a", 1, 100)
    assert max(extent.last_seq - extent.first_seq for extent in extents) >= AGAIN_MIN - 1
