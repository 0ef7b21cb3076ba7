"""Feeds of shared topics: one read and one wait for all followers, and what becomes of the topic."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from tests.harness.brokers.one_broker import OneBroker
from tests.harness.shard.one_shard import record
from tests.harness.stage.feed_shards import Collector, feed_spec
from tests.harness.stage.shared_stage import EPOCH, BrokerReader, SharedStage, comparable
from topicsd.broker.broker import ReadLimits
from topicsd.broker.write.open_blob import Appended
from topicsd.stream.feed import ERROR_DELAY_SECONDS, Feed
from topicsd.stream.shared.shared_feed import LOOKUP_SECONDS
from topicsd.stream.shared.shared_reads import SharedReads

NO_POLL = ReadLimits(poll_seconds=1e6)


def stage_of(read_limits: ReadLimits = NO_POLL) -> SharedStage:
    stage = SharedStage(OneBroker(read_limits=read_limits))
    stage.create("a")
    return stage


def shared_feed(stage: SharedStage, **options: Any) -> Feed:
    return stage.reader.feeds.broker_feed(feed_spec("a", **options))


def local_feed(stage: SharedStage, **options: Any) -> Feed:
    return stage.local_feeds.feed(feed_spec("a", **options))


def chunks_of(collector: Collector) -> list[tuple[Any, ...]]:
    """Return all that a chunk has but the epoch."""
    return [
        (one.from_seq, one.to_seq, one.head_seq, one.earliest_seq, one.count, one.records, one.tombstone)
        for one in collector.chunks
    ]


def test_chunks_are_those_of_a_local_topic() -> None:
    stage = stage_of()
    stage.append("a", *range(10))
    for options in ({}, {"limit": 4}, {"bytes_max": 100}, {"with_data": False}):
        collectors = [Collector(feed(stage, **options)) for feed in (local_feed, shared_feed)]
        stage.settle()
        local, shared = map(chunks_of, collectors)
        assert shared == local
        assert sum(chunk[4] for chunk in shared) == 10


def test_records_of_this_broker_are_followed_without_catalog_and_store() -> None:
    stage = stage_of()
    stage.append("a", 1)
    collector = Collector(shared_feed(stage))
    stage.settle()
    stage.one.catalog.calls.clear()
    requests = len(stage.one.store.requests)
    stage.advance(3_000)
    assert (dict(stage.one.catalog.calls), len(stage.one.store.requests)) == ({}, requests)
    stage.append("a", 2)
    stage.append("a", 3, 4)
    assert collector.seqs == [1, 2, 3, 4]
    assert dict(stage.one.catalog.calls) == {"commit": 2}


def test_a_thousand_followers_are_one_read_and_one_wait() -> None:
    stage = stage_of()
    stage.append("a", 1)
    reads = CountedReads(stage)
    collectors = [Collector(shared_feed(stage)) for _ in range(1000)]
    stage.settle()
    assert reads.count == 1
    assert stage.one.broker.heads.waiting == 1
    stage.append("a", 2)
    stage.settle()
    assert reads.count == 2
    assert all(collector.seqs == [1, 2] for collector in collectors)
    first = collectors[0].chunks[-1]
    assert all(collector.chunks[-1] is first for collector in collectors)


class CountedReads:
    """Counts the reads of the feeds, by way of a reader of the same broker."""

    def __init__(self, stage: SharedStage) -> None:
        self.count = 0
        real: SharedReads = stage.reader.reads

        class Reads(SharedReads):
            def try_read(reads, name: str, request: Any, **how: bool) -> Any:  # noqa: N805
                self.count += 1
                return real.try_read(name, request, **how)

        stage.reader.topics.reads = Reads(stage.one.broker, stage.reader.pages, stage.clock)


def test_records_of_another_broker_arrive_by_the_poll_of_heads() -> None:
    stage = stage_of(ReadLimits())
    other = OneBroker(other=stage.one)
    stage.reader = BrokerReader(other, stage.shard)
    collectors = [Collector(shared_feed(stage)) for _ in range(100)]
    stage.settle()
    other.catalog.calls.clear()
    stage.advance(2_000, step_ms=50)
    assert dict(other.catalog.calls) == {"heads": 8}
    stage.append("a", 1)
    stage.advance(500)
    assert all(collector.seqs == [1] for collector in collectors)


def test_a_wait_ends_with_its_last_follower() -> None:
    stage = stage_of(ReadLimits())
    first, second = (Collector(shared_feed(stage)) for _ in range(2))
    stage.settle()
    heads = stage.one.broker.heads
    assert heads.waiting == 1
    first.subscription.close()
    assert heads.waiting == 1
    second.subscription.close()
    assert heads.waiting == 0
    stage.one.catalog.calls.clear()
    stage.advance(3_000)
    assert sum(stage.one.catalog.calls.values()) <= 1, "a poll that had begun"


def test_a_slow_follower_delays_no_other_and_misses_nothing() -> None:
    stage = stage_of()
    slow, fast = (Collector(shared_feed(stage, limit=3)) for _ in range(2))
    stage.settle()
    slow.is_paused = True
    for number in range(5):
        stage.append("a", number, number)
    assert fast.seqs == list(range(1, 11))
    assert slow.seqs == []
    slow.unpause()
    stage.settle()
    assert slow.seqs == list(range(1, 11))
    stage.append("a", 6)
    assert slow.seqs == fast.seqs == list(range(1, 12))


def test_the_deletion_of_the_topic_ends_its_followers() -> None:
    for is_other in (False, True):
        stage = stage_of(ReadLimits())
        if is_other:
            stage.reader = BrokerReader(OneBroker(other=stage.one), stage.shard)
        stage.append("a", 1)
        collector = Collector(shared_feed(stage))
        stage.advance(500)
        stage.one.broker.delete("a", EPOCH)(lambda outcome: None)
        stage.settle()
        stage.advance(6_000)
        assert (collector.seqs, collector.has_ended) == ([1], True)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_topic_that_is_made_again_is_reported_as_recreated(count: int) -> None:
    stage = stage_of(ReadLimits())
    stage.append("a", 1, 2)
    collector = Collector(shared_feed(stage))
    stage.settle()
    # By another node, between two polls; the new head is below, equal or above.
    stage.one.topics.forget("a", EPOCH)
    stage.one.topics.create("a", EPOCH + 1, b"{}")
    other = OneBroker(other=stage.one)
    answers = other.append("a", *[b'"new"'] * count)
    other.settle()
    other.broker.batcher.close()
    other.settle()
    assert isinstance(answers[0], Appended)
    stage.advance(LOOKUP_SECONDS * 1000 + 10_000, step_ms=200)
    assert not collector.has_ended
    assert collector.chunks[1].tombstone is not None
    assert collector.chunks[1].tombstone.reason == "recreated"
    assert collector.chunks[1].epoch == EPOCH + 1
    assert collector.seqs == [1, 2, *range(1, count + 1)]


def test_eviction_is_a_tombstone_and_damage_a_refusal_with_its_range() -> None:
    stage = stage_of(ReadLimits(tail_cache_bytes=0, block_cache_bytes=0))
    stage.append("a", *["x" * 50] * 10)
    (extent,) = stage.one.topics.extents_from("a", 1, 2)
    stored = stage.one.store.objects[extent.key]
    data = bytearray(stored.data)
    for seq in (5, 6):
        data[extent.byte_offset + extent.byte_length // 10 * (seq - 1) + 60] ^= 1
    stage.one.store.objects[extent.key] = stored._replace(data=bytes(data))
    topic = stage.one.topics.topics(["a"])[0]
    assert topic is not None
    stage.one.broker.trim(topic, 2, "evicted")(lambda outcome: None)
    stage.settle()
    collector = Collector(shared_feed(stage))
    stage.settle()
    assert collector.seqs == [3, 4, 7, 8, 9, 10]
    tombstone = collector.chunks[0].tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (1, 2)
    (refusal,) = collector.refusals
    assert refusal.detail is not None
    assert (refusal.detail["first_seq"], refusal.detail["last_seq"]) == (5, 6)


def test_followers_are_informed_once_of_an_error_and_resume() -> None:
    stage = stage_of()
    stage.append("a", 1, 2)
    other = OneBroker(other=stage.one, read_limits=NO_POLL)
    stage.reader = BrokerReader(other, stage.shard)
    other.catalog.faults["topics"] = deque(["lost request"] * 3)
    collector = Collector(shared_feed(stage))
    stage.settle()
    assert other.catalog.calls["topics"] == 1
    stage.advance(ERROR_DELAY_SECONDS * 5_000, step_ms=100)
    assert other.catalog.calls["topics"] == 4
    assert [refusal.code for refusal in collector.refusals] == ["catalog_unavailable"]
    assert collector.seqs == [1, 2]


def test_a_feed_without_followers_is_dropped() -> None:
    stage = stage_of()
    feed = shared_feed(stage)
    collector = Collector(feed)
    stage.settle()
    assert shared_feed(stage) is feed
    collector.subscription.close()
    assert shared_feed(stage) is not feed


def test_a_waiting_diff_answers_with_the_next_records_or_at_its_time() -> None:
    stage = stage_of()
    stage.append("a", 1)
    calls = stage.start_diff("a", after_seq=1, wait_ms=5_000)
    quiet = stage.start_diff("a", after_seq=1, wait_ms=700)
    stage.advance(500)
    assert not calls[1].answers
    stage.advance(200)
    assert comparable(quiet[1]) == comparable(quiet[0])
    stage.append("a", 2, 3)
    assert comparable(calls[1]) == comparable(calls[0])
    cancelled = stage.start_diff("a", after_seq=3, wait_ms=5_000)
    for call in cancelled:
        call.cancel()
    stage.settle()
    assert comparable(cancelled[1]) == comparable(cancelled[0])
    assert stage.one.broker.heads.waiting == 0


def test_a_waiting_diff_skips_records_of_its_own_nodes() -> None:
    stage = stage_of()
    calls = stage.start_diff("a", node="n1", wait_ms=5_000)
    stage.append("a", record(1, node="n1"))
    assert not calls[1].answers
    stage.append("a", record(2, node="n2"))
    assert comparable(calls[1]) == comparable(calls[0])
