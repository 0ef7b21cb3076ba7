"""Reads of a broker: tail cache, one GET an object, waits at the tail, lost and removed records."""

from __future__ import annotations

import gc
from collections import deque

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.broker import ReadLimits
from topicsd.broker.frames_v1 import Decoded, Rebase, decode_intact, renumber
from topicsd.broker.read.extents import LAGGARD_EXTENTS, LOOKUPS_AT_ONCE
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.read.tail_cache import TailCache, TailChunk
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.shared_catalog import SharedExtent, SharedTopic

NO_CACHE = ReadLimits(tail_cache_bytes=0, block_cache_bytes=0)


def one_of(answers: list[list[TopicRecords]]) -> TopicRecords:
    ((answer,),) = answers
    return answer


def reads(broker: OneBroker) -> list[str]:
    return [request for request in broker.store.requests if request.startswith("read ")]


def test_own_records_are_read_from_memory() -> None:
    one = OneBroker()
    one.create("a")
    one.appended("a", b"1", b"2")
    before = dict(one.catalog.calls)
    assert one.values("a", 2) == [(2, b"2")]
    assert not reads(one)
    assert one.catalog.calls["extents_from"] == 0
    assert one.catalog.calls["commit"] == before["commit"]


def test_one_get_an_object_for_all_topics_of_a_request() -> None:
    one = OneBroker()
    names = [f"t{number}" for number in range(5)]
    for number, name in enumerate(names):
        one.create(name, 10 + number)
    for number, name in enumerate(names):
        one.append(name, b"%d" % number)
    one.settle()
    one.advance(300)
    other = OneBroker(other=one)
    answers = other.read(SharedRead([TopicRead(name, 1) for name in names]))
    other.settle()
    ((*parts,),) = answers
    assert [[record.data for record in answer.records] for answer in parts] == [
        [b"%d" % number] for number in range(5)
    ]
    assert len(reads(other)) == 1


def test_a_read_at_the_tail_waits_without_asking_the_catalog_or_the_store() -> None:
    one = OneBroker(read_limits=ReadLimits(poll_seconds=1e6))
    one.create("a")
    one.appended("a", b"1")
    answers = one.read(SharedRead([TopicRead("a", 2)], wait_seconds=30))
    one.settle()
    one.catalog.calls.clear()
    requests = len(one.store.requests)
    one.advance(3_000)
    assert (dict(one.catalog.calls), len(one.store.requests), answers) == ({}, requests, [])
    one.append("a", b"2")
    one.advance(300)
    assert [record.data for record in one_of(answers).records] == [b"2"]
    assert one_of(answers).head == 2
    assert dict(one.catalog.calls) == {"commit": 1}


def test_records_of_another_broker_wake_a_waiting_reader_by_one_poll_for_all() -> None:
    one = OneBroker()
    for number in range(20):
        one.create(f"t{number}", 10 + number)
    other = OneBroker(other=one)
    answers = [other.read(SharedRead([TopicRead(f"t{n}", 1)], wait_seconds=30)) for n in range(20)]
    other.settle()
    other.catalog.calls.clear()
    other.advance(1_000, step_ms=50)
    assert dict(other.catalog.calls) == {"heads": 4}
    for number in range(20):
        one.append(f"t{number}", b"x")
    for _ in range(80):
        one.advance(10)
        other.settle()
    assert [one_of(answer).records[0].data for answer in answers] == [b"x"] * 20
    assert len(reads(other)) == 1
    assert other.broker.heads.waiting == 0


def test_a_wait_ends_with_its_time() -> None:
    one = OneBroker()
    one.create("a")
    answers = one.read(SharedRead([TopicRead("a", 1)], wait_seconds=2))
    one.settle()
    one.advance(1_900)
    assert not answers
    one.advance(200)
    assert (one_of(answers).records, one_of(answers).next_seq, one_of(answers).head) == ([], 1, 0)


def test_a_read_waits_for_min_bytes_over_all_topics() -> None:
    one = OneBroker()
    one.create("a")
    one.create("b", 8)
    request = SharedRead([TopicRead("a", 1), TopicRead("b", 1)], min_bytes=300, wait_seconds=60)
    answers = one.read(request)
    one.appended("a", b"x" * 100)
    assert not answers
    one.appended("b", b"y" * 200)
    ((first, second),) = answers
    assert [record.data for record in first.records + second.records] == [b"x" * 100, b"y" * 200]


def test_bounds_of_bytes_hold_and_a_reader_always_advances() -> None:
    one = OneBroker()
    one.create("a")
    one.create("b", 8)
    one.appended("a", *[b"x" * 100] * 10)
    one.appended("b", *[b"y" * 100] * 10)
    for bytes_max, topic_bytes, counts in ((1, 1000, (1, 0)), (450, 10_000, (3, 0)), (1000, 300, (2, 2))):
        answers = one.read(
            SharedRead([TopicRead("a", 1, topic_bytes), TopicRead("b", 1, topic_bytes)], bytes_max=bytes_max)
        )
        one.settle()
        assert tuple(len(answer.records) for answer in answers[0]) == counts


def test_a_topic_that_gets_no_room_is_not_answered_as_caught_up() -> None:
    one = OneBroker()
    one.create("a")
    one.create("b", 8)
    one.appended("a", b"1")
    other = OneBroker(other=one)
    assert other.values("b") == []
    one.appended("b", b"2")
    chunk = one.broker.cache.find("b", 8, 1)
    assert chunk is not None
    # Another reader of this broker has fetched it, and no head was asked for since.
    other.broker.cache.add(chunk)
    answers = other.read(SharedRead([TopicRead("a", 1), TopicRead("b", 1)], bytes_max=1))
    other.settle()
    ((_, second),) = answers
    assert (second.records, second.next_seq, second.head) == ([], 1, 1)


def test_a_reader_that_lags_leaves_the_caches_of_the_others_alone() -> None:
    one = OneBroker(BatchLimits(batch_bytes=1))
    one.create("a")
    for number in range(3 * LAGGARD_EXTENTS):
        one.append("a", b"%d" % number)
        one.settle()
    other = OneBroker(other=one)
    assert len(other.values("a", 1)) > LAGGARD_EXTENTS
    assert other.broker.extents.laggard_gets >= LAGGARD_EXTENTS
    assert other.broker.cache.find("a", 7, 1) is None
    assert other.broker.cache.find("a", 7, 3 * LAGGARD_EXTENTS) is not None


def test_an_object_that_was_compacted_away_is_looked_up_again() -> None:
    one = OneBroker(BatchLimits(batch_bytes=1), NO_CACHE)
    one.create("a")
    first, second = one.appended("a", b"1"), one.appended("a", b"2")
    answers = one.read(SharedRead([TopicRead("a", 1)]))
    while not one.catalog.calls["extents_from"]:
        assert any(thread.run_one() for thread in one.threads)
        one.loop.run_until_idle()
    # Another process merges both extents, and deletes their blobs.
    extents = one.topics.extents_from("a", 1, 2)
    bodies = [one.store.read(extent.key, extent.byte_offset, extent.byte_length) for extent in extents]
    one.store.create("merged", [_numbered(bodies)], "id")
    size = sum(map(len, bodies))
    merged = SharedExtent(1, 2, "COMPACTED", "merged", extents[0].encoding, 0, size, 0)
    one.topics.replace_extents("a", merged)
    for answer in (first, second):
        one.store.delete(answer.key)
    one.settle()
    assert [record.data for record in one_of(answers).records] == [b"1", b"2"]
    assert one.catalog.calls["extents_from"] == 2


def _numbered(bodies: list[bytes]) -> bytes:
    return b"".join(renumber(body, number) for number, body in enumerate(bodies, 1))


def test_an_object_that_is_lost_is_an_error_and_no_gap() -> None:
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    one.store.delete(one.appended("a", b"1").key)
    answers = one.read(SharedRead([TopicRead("a", 1)]))
    one.settle()
    refusal = one_of(answers).refusal
    assert refusal is not None
    assert refusal.code == "storage_failed"
    assert one_of(answers).next_seq == 1


def test_deleted_records_are_passed_over_and_evicted_ones_are_reported() -> None:
    one = OneBroker()
    topic = one.create("a")
    one.appended("a", *[b"%d" % number for number in range(10)])
    _change(one, topic, 3, "deleted")
    assert one.values("a")[0] == (4, b"3")
    _change(one, topic, 6, "evicted")
    answers = one.read(SharedRead([TopicRead("a", 1)]))
    one.settle()
    answer = one_of(answers)
    assert [(lost.first_seq, lost.last_seq, lost.reason) for lost in answer.lost] == [(4, 6, "evicted")]
    assert [record.seq for record in answer.records] == [7, 8, 9, 10]


def _change(one: OneBroker, topic: SharedTopic, to_seq: int, reason: str) -> None:
    outcomes: list[object] = []
    one.broker.trim(topic, to_seq, "deleted" if reason == "deleted" else "evicted")(outcomes.append)
    one.settle()
    assert isinstance(outcomes[0], SharedTopic)


def test_damaged_records_are_reported_with_their_seqs() -> None:
    one = OneBroker(read_limits=NO_CACHE)
    one.create("a")
    key = one.appended("a", b"first", b"second", b"third").key
    stored = one.store.objects[key]
    one.store.objects[key] = stored._replace(data=stored.data.replace(b"second", b"sEcond"))
    answers = one.read(SharedRead([TopicRead("a", 1)]))
    one.settle()
    answer = one_of(answers)
    assert [record.seq for record in answer.records] == [1, 3]
    assert [(lost.first_seq, lost.last_seq, lost.reason) for lost in answer.lost] == [(2, 2, "damaged")]
    assert answer.next_seq == 4


def test_a_topic_that_was_made_again_is_refused_to_readers_of_the_old_one() -> None:
    one = OneBroker()
    one.create("a")
    one.appended("a", b"1")
    other = OneBroker(other=one)
    assert other.values("a") == [(1, b"1")]
    one.topics.forget("a", 7)
    one.create("a", 8)
    other.advance(6_000)
    answers = other.read(SharedRead([TopicRead("a", 2, incarnation=7)], wait_seconds=5))
    other.settle()
    refusal = one_of(answers).refusal
    assert refusal is not None
    assert refusal.code == "gone"
    again = OneBroker(other=one)
    assert again.appended("a", b"new").first_seq == 1
    assert other.values("a") == [(1, b"new")]


def test_the_head_that_another_broker_raised_is_seen_by_a_read_without_a_wait() -> None:
    one = OneBroker()
    one.create("a")
    other = OneBroker(other=one)
    assert other.values("a") == []
    one.appended("a", b"1")
    other.advance(300)
    assert other.values("a") == [(1, b"1")]


def test_readers_that_begin_at_once_share_the_requests_for_their_heads() -> None:
    one = OneBroker()
    names = [f"t{number}" for number in range(100)]
    for name in names:
        one.create(name)
    one.values("t0")
    one.advance(300)
    one.catalog.calls.clear()
    answers = [
        one.read(SharedRead([TopicRead(name, 1) for name in (names[number % 100], names[number % 7])]))
        for number in range(1_000)
    ]
    one.settle()
    assert all(not answer.refusal for (both,) in answers for answer in both)
    assert one.catalog.calls["heads"] <= 4
    one.catalog.faults["heads"] = deque(["lost request"])
    one.advance(300)
    failed = [one.read(SharedRead([TopicRead(name, 1)])) for name in names]
    one.settle()
    assert {one_of(answer).refusal.code for answer in failed} == {"catalog_unavailable"}  # type: ignore[union-attr]
    assert one.values("t0") == []


def test_a_check_of_a_head_is_at_least_as_new_as_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneBroker(BatchLimits(batch_seconds=0.01))
    one.create("a")
    other = OneBroker(other=one)
    assert other.values("a") == []
    other.advance(300)
    other.catalog.calls.clear()
    real, early = one.topics.heads, [one.topics.heads([("a", 7)])]
    first = other.read(SharedRead([TopicRead("a", 1)]))
    one.loop.run_until_idle()
    one.append("a", b"1")
    one.advance(50)
    # The request of the first reader was executed before the commit.
    monkeypatch.setattr(one.topics, "heads", lambda topics: early.pop() if early else real(topics))
    second = other.read(SharedRead([TopicRead("a", 1)]))
    other.settle()
    assert other.catalog.calls["heads"] == 2
    assert (one_of(first).head, one_of(second).head) == (0, 1)
    assert [record.data for record in one_of(second).records] == [b"1"]


@pytest.mark.parametrize("bytes_max", [0, 2_000, 1 << 20])
def test_the_tail_cache_keeps_its_bound_and_returns_only_what_it_holds(bytes_max: int) -> None:
    cache = TailCache(bytes_max)
    for first in range(1, 400, 4):
        cache.add(TailChunk("a", Rebase(7, first, first + 2), b"x" * 50, "frames-v1"))
        assert cache.size_bytes <= bytes_max
    for seq in range(1, 400):
        chunk = cache.find("a", 7, seq)
        assert chunk is None or chunk.rebase.first_seq <= seq <= chunk.rebase.last_seq
    assert (cache.find("a", 7, 397) is not None) == (bytes_max > 0)
    assert cache.find("a", 8, 397) is None
    cache.drop("a")
    assert cache.size_bytes == 0
    cache.add(TailChunk("b", Rebase(1, 1, 1), b"y", "frames-v1"))
    assert (cache.find("b", 1, 1) is not None) == (bytes_max > 0)


def test_the_tail_cache_keeps_nothing_of_topics_that_are_gone() -> None:
    def chunks_alive() -> int:
        return sum(isinstance(one, TailChunk) for one in gc.get_objects())

    cache = TailCache(1 << 20)
    before = chunks_alive()
    cache.add(TailChunk("a", Rebase(7, 1, 1), b"x", "frames-v1"))
    for incarnation in range(1000):
        cache.add(TailChunk("b", Rebase(incarnation, 1, 1), b"y", "frames-v1"))
        cache.drop("b")
    assert cache.find("a", 7, 1) is not None
    assert chunks_alive() - before < 10


@pytest.mark.parametrize("start_ms", [0.1, 0.3, 1 / 3, 1000.7, 123456.789])
def test_a_wait_ends_although_its_timer_is_a_rounding_error_early(start_ms: float) -> None:
    one = OneBroker(read_limits=ReadLimits(poll_seconds=1e6))
    one.create("a")
    one.clock.advance(start_ms)
    for seconds in (0.1, 0.7, 1.1, 2.3, 19.9):
        answers = one.read(SharedRead([TopicRead("a", 1)], wait_seconds=seconds))
        one.settle()
        one.advance(seconds * 1000 + 1)
        assert one_of(answers).records == []


def test_a_topic_that_cannot_be_decoded_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = OneBroker()
    for number, name in enumerate(("a", "b", "c")):
        one.create(name, 10 + number)
        one.appended(name, b"1")

    def decode(body: bytes, rebase: Rebase, *args: object) -> Decoded:
        if rebase.incarnation == 11:
            raise ValueError("a bug")
        return decode_intact(body, rebase, *args)  # type: ignore[arg-type]

    monkeypatch.setattr("topicsd.broker.read.reader.decode_intact", decode)
    answers = one.read(SharedRead([TopicRead(name, 1) for name in ("a", "b", "c")]))
    one.settle()
    ((*parts,),) = answers
    assert [part.refusal is None for part in parts] == [True, False, True]
    assert [len(part.records) for part in parts] == [1, 0, 1]
    assert parts[1].refusal is not None
    assert parts[1].refusal.code == "storage_failed"
    assert "topic b" in caplog.text
    assert "a bug" in caplog.text


PLAN_BYTES = 1 << 20


def cold(count: int, *values: bytes) -> tuple[OneBroker, list[str]]:
    """Return a broker that knows nothing of `count` topics, each with one extent of these records."""
    writer = OneBroker(BatchLimits(batch_bytes=1))
    names = [f"t{number}" for number in range(count)]
    for number, name in enumerate(names):
        writer.create(name, 10 + number)
        writer.append(name, *values)
        writer.settle()
    writer.store.requests.clear()
    return OneBroker(other=writer, read_limits=ReadLimits(tail_cache_bytes=0)), names


def text(size: int) -> bytes:
    return b'"%b"' % (b"x" * size)


def read_bytes(one: OneBroker) -> int:
    return sum(int(request.split()[-1]) for request in reads(one))


def parts_of(one: OneBroker, topics: list[TopicRead], bytes_max: int) -> list[TopicRecords]:
    answers = one.read(SharedRead(topics, bytes_max=bytes_max))
    one.settle()
    (parts,) = answers
    return parts


def test_a_read_of_many_cold_topics_gets_about_what_it_may_return() -> None:
    one, names = cold(100, text(PLAN_BYTES // 4))
    parts = parts_of(one, [TopicRead(name, 1, PLAN_BYTES) for name in names], PLAN_BYTES)
    counts = [len(part.records) for part in parts]
    assert counts in ([1] * 3 + [0] * 97, [1] * 4 + [0] * 96)
    assert not any(part.refusal for part in parts)
    assert read_bytes(one) <= 2 * PLAN_BYTES
    assert one.catalog.calls["extents_from"] <= 2 * LOOKUPS_AT_ONCE


def test_small_records_of_many_cold_topics_are_read_together() -> None:
    one, names = cold(100, b"1")
    parts = parts_of(one, [TopicRead(name, 1) for name in names], PLAN_BYTES)
    assert [len(part.records) for part in parts] == [1] * 100
    assert one.catalog.calls["extents_from"] == 100


def test_the_lookups_of_a_read_leave_room_for_others() -> None:
    one, names = cold(100, b"1")
    answers = one.read(SharedRead([TopicRead(name, 1) for name in names]))
    most = 0
    while not answers:
        one.loop.run_until_idle()
        most = max(most, one.pools.lookups.waiting)
        for thread in one.threads:
            thread.run_one()
    assert 0 < most <= LOOKUPS_AT_ONCE


def test_each_topic_gets_its_turn_when_those_before_it_have_caught_up() -> None:
    one, names = cold(20, text(PLAN_BYTES // 4))
    next_seqs = dict.fromkeys(names, 1)
    for _ in range(7):
        topics = [TopicRead(name, seq, PLAN_BYTES) for name, seq in next_seqs.items()]
        next_seqs = {part.topic: part.next_seq for part in parts_of(one, topics, PLAN_BYTES)}
    assert set(next_seqs.values()) == {2}


def test_a_topic_whose_turn_has_not_come_is_not_refused() -> None:
    # Each topic needs the end of a large extent, so each round adds few bytes.
    one, names = cold(30, text(PLAN_BYTES), b"1")
    parts = parts_of(one, [TopicRead(name, 2) for name in names], PLAN_BYTES)
    counts = [len(part.records) for part in parts]
    assert 0 < sum(counts) < 30
    assert counts == sorted(counts, reverse=True)
    assert not any(part.refusal for part in parts)


def test_topics_after_a_lookup_that_failed_are_refused_without_their_own() -> None:
    one, names = cold(100, b"1")
    one.catalog.faults["extents_from"] = deque(["lost request"] * 100)
    parts = parts_of(one, [TopicRead(name, 1) for name in names], PLAN_BYTES)
    assert [part.refusal.code for part in parts if part.refusal] == ["catalog_unavailable"] * 100
    assert one.catalog.calls["extents_from"] == LOOKUPS_AT_ONCE


def test_what_lies_between_two_topics_in_an_object_is_planned_too() -> None:
    writer = OneBroker()
    for number in range(4):
        for kind, value in (("a", b"1"), ("between", text(PLAN_BYTES)), ("b", b"2")):
            writer.create(f"{kind}{number}")
            writer.append(f"{kind}{number}", value)
        writer.settle()
        writer.advance(300)
    one = OneBroker(other=writer, read_limits=ReadLimits(tail_cache_bytes=0))
    names = [f"{kind}{number}" for number in range(4) for kind in ("a", "b")]
    answers = one.read(SharedRead([TopicRead(name, 1) for name in names], bytes_max=PLAN_BYTES))
    gets: list[int] = []
    while not answers:
        one.loop.run_until_idle()
        gets.append(one.broker.extents.get_count)
        for thread in one.threads:
            thread.run_one()
    assert next(count for count in gets if count) == 1
    assert [len(part.records) for part in answers[0]] == [1] * 8


@pytest.mark.parametrize("count", [0, 2])
def test_a_topic_that_another_broker_made_again_with_the_same_head_ends_the_waits(count: int) -> None:
    one = OneBroker(BatchLimits(batch_seconds=0.01))
    one.create("a")
    for number in range(count):
        one.appended("a", b"%d" % number)
    other = OneBroker(other=one)
    assert len(other.values("a")) == count
    waiting = other.read(SharedRead([TopicRead("a", count + 1)], min_bytes=1, wait_seconds=50.0))
    other.advance(1_000)
    assert not waiting
    one.topics.forget("a", 7)
    one.create("a", 8)
    third = OneBroker(other=one)
    for number in range(count):
        third.appended("a", b"again %d" % number)
    other.advance(1_000)
    refusal = one_of(waiting).refusal
    assert refusal is not None
    assert refusal.code == "gone"
    assert other.values("a") == [(seq + 1, b"again %d" % seq) for seq in range(count)]
