"""Subscriptions to local and remote feeds: they deliver every record and report every loss."""

from __future__ import annotations

import pytest

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    INTERNAL,
    NOT_READY,
    POSITION_PAST_HEAD,
    STORE_UNAVAILABLE,
    Refusal,
    store_unavailable,
)
from tests.harness.shard.shard_driver import PATHS
from tests.harness.stage.feed_shards import Collector, FeedShards, feed_spec
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.segment.entry import DATA
from topicsd.stream.chunks import Chunk, decode_chunk, encode_chunk
from topicsd.stream.feed import ERROR_DELAY_SECONDS, LocalFeed
from topicsd.stream.remote_feed import CHUNK_TTL_SECONDS, RETRY_SECONDS, RemoteFeed

BOTH = pytest.mark.parametrize("topic", ["t0", "c1"], ids=["local", "remote"])


@BOTH
def test_existing_and_new_records_are_delivered_in_order(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1, 2, 3)
    collector = Collector(stage.feeds.feed(feed_spec(topic)))
    stage.settle()
    assert collector.seqs == [1, 2, 3]
    owner.append(topic, 4)
    stage.settle()
    owner.append(topic, 5, 6)
    stage.settle()
    assert collector.seqs == [1, 2, 3, 4, 5, 6]


@BOTH
def test_a_limit_splits_old_records_into_chunks(topic: str) -> None:
    stage = FeedShards()
    stage.owner(topic).append(topic, *range(10))
    collector = Collector(stage.feeds.feed(feed_spec(topic, limit=4)))
    stage.settle()
    assert [chunk.count for chunk in collector.chunks] == [4, 4, 2]
    assert collector.seqs == list(range(1, 11))


@BOTH
def test_a_paused_sink_receives_the_missed_records_when_it_resumes(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1)
    collector = Collector(stage.feeds.feed(feed_spec(topic)))
    stage.settle()
    collector.is_paused = True
    for value in range(5):
        owner.append(topic, value)
        stage.pass_time(50)
    assert collector.seqs == [1]
    assert len(collector.waiting) == 1
    collector.unpause()
    stage.settle()
    assert collector.seqs == [1, 2, 3, 4, 5, 6]
    assert len(collector.chunks) == 2, "the missed records arrive in one chunk"


@BOTH
def test_deleting_the_topic_ends_the_subscription(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1)
    collector = Collector(stage.feeds.feed(feed_spec(topic)))
    stage.settle()
    owner.delete_topic(topic)
    stage.settle()
    assert collector.has_ended
    assert collector.subscription.is_over


def test_an_unexpected_read_error_is_reported_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = FeedShards()
    owner = stage.owner("t0")
    owner.append("t0", 1)
    collector = Collector(stage.feeds.feed(feed_spec("t0")))
    stage.settle()

    def broken(*_: object) -> None:
        raise RuntimeError("a secret of ours")

    with monkeypatch.context() as patched:
        patched.setattr("topicsd.engine.read.read.try_read", broken)
        owner.append("t0", 2)
        stage.settle()
        stage.pass_time(int(2500 * ERROR_DELAY_SECONDS))
    (refusal,) = collector.refusals
    assert refusal.code == INTERNAL
    assert "secret" not in refusal.message
    assert len([record for record in caplog.records if record.exc_info]) == 3
    stage.pass_time(int(1000 * ERROR_DELAY_SECONDS))
    assert collector.seqs == [1, 2]


def test_a_subscription_waits_for_an_object_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FeedShards()
    owner = stage.owner("t0")
    owner.append("t0", 1)
    collector = Collector(stage.feeds.feed(feed_spec("t0")))
    stage.settle()
    reads: list[object] = []

    def away(*_: object) -> Refusal:
        reads.append(None)
        return store_unavailable("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr("topicsd.engine.read.read.try_read", away)
        owner.append("t0", 2)
        stage.settle()
        stage.pass_time(int(2500 * ERROR_DELAY_SECONDS))
    assert [one.code for one in collector.refusals] == [STORE_UNAVAILABLE], "it is reported once"
    assert len(reads) == 3, "one read a second"
    stage.pass_time(int(1000 * ERROR_DELAY_SECONDS))
    assert collector.seqs == [1, 2]


@BOTH
def test_evicted_records_are_reported_and_skipped(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.put(topic, cap_records=3)
    owner.append(topic, *range(10))
    collector = Collector(stage.feeds.feed(feed_spec(topic)), seq=2)
    stage.settle()
    tombstone = collector.chunks[0].tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (3, 7)
    assert collector.seqs == [8, 9, 10]


@BOTH
def test_records_of_the_reader_itself_are_skipped_silently(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1, node="me")
    owner.append(topic, 2, node="you")
    collector = Collector(stage.feeds.feed(feed_spec(topic, nodes=frozenset(["me"]))))
    stage.settle()
    owner.append(topic, 3, node="me")
    stage.settle()
    owner.append(topic, 4, node="you")
    stage.settle()
    assert collector.seqs == [2, 4]
    assert collector.subscription.seq == 4


@BOTH
def test_strong_delivers_synced_records_only(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1)
    owner.pass_time(100)
    collector = Collector(stage.feeds.feed(feed_spec(topic, is_strong=True)))
    stage.settle()
    assert collector.seqs == [1]
    owner.send_append(topic, 2)
    owner.loop.run_until_idle()
    assert owner.state(topic).head_seq == 2
    assert collector.seqs == [1], "the record is written and not synced"
    # It is synced at once, not by the timer of the background sync.
    stage.settle()
    assert collector.seqs == [1, 2]
    assert owner.state(topic).durable_seq == 2


@BOTH
def test_records_appended_during_a_sync_reach_strong_readers_with_the_next_sync(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1)
    collector = Collector(stage.feeds.feed(feed_spec(topic, is_strong=True)), seq=1)
    stage.settle()
    owner.pass_time(100)
    syncs = owner.shard.log.counters.syncs
    for number in range(50):
        owner.send_append(topic, number)
        owner.loop.run_until_idle()
        stage.home.loop.run_until_idle()
    stage.pass_time(10)
    assert collector.seqs == list(range(2, 52))
    assert owner.shard.log.counters.syncs - syncs == 2


def test_followers_that_wait_for_one_sync_read_together() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.home.pass_time(100)
    stage.home.append("c0", 2)
    feed = stage.feeds.feed(feed_spec("c0", is_strong=True))
    assert isinstance(feed, LocalFeed)
    collectors = [Collector(feed, 1) for _ in range(50)]
    assert stage.home.thread.pending == 1
    for collector in collectors[10:]:
        collector.subscription.close()
    assert feed.waiters is not None
    assert len(feed.waiters) == 10
    stage.pass_time(500)
    assert [collector.seqs for collector in collectors] == [[2]] * 10 + [[]] * 40


def test_followers_at_the_same_cursor_get_the_same_chunk() -> None:
    stage = FeedShards()
    stage.home.append("t0", 1)
    followers = [Collector(stage.feeds.feed(feed_spec("t0"))) for _ in range(10)]
    stage.settle()
    stage.home.append("t0", 2)
    stage.settle()
    assert len({id(one.chunks[-1]) for one in followers}) == 1


def test_the_owner_gets_one_request_for_any_number_of_followers() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1)
    followers = [Collector(stage.feeds.feed(feed_spec("c1"))) for _ in range(100)]
    stage.settle()
    assert all(one.seqs == [1] for one in followers)
    before = stage.link.call_count
    for value in range(10):
        stage.away.append("c1", value)
        stage.settle()
    assert all(one.seqs == list(range(1, 12)) for one in followers)
    assert stage.link.call_count - before <= 10, "one pull for each append"


def test_a_slow_follower_does_not_delay_the_others() -> None:
    stage = FeedShards()
    stage.away.append("c1", 0)
    slow, quick = (Collector(stage.feeds.feed(feed_spec("c1"))) for _ in range(2))
    stage.settle()
    slow.is_paused = True
    for value in range(20):
        stage.away.append("c1", value)
        stage.pass_time(50)
    assert quick.seqs == list(range(1, 22))
    assert slow.seqs == [1]
    slow.unpause()
    stage.settle()
    assert slow.seqs == list(range(1, 22))


def test_a_dead_owner_is_reported_once_and_followed_again() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1, 2)
    stage.home.append("t0", 1)
    collector, other = (
        Collector(stage.feeds.feed(feed_spec("c1"))),
        Collector(stage.feeds.feed(feed_spec("t0"))),
    )
    stage.settle()
    stage.restart_away()
    stage.settle()
    stage.pass_time(1000)
    assert [one.code for one in collector.refusals] == [NOT_READY]
    stage.home.append("t0", 2)
    stage.away.append("c1", 3)
    stage.settle()
    assert other.seqs == [1, 2]
    assert collector.seqs == [1, 2]
    stage.reconnect()
    stage.pass_time(round(RETRY_SECONDS * 2000))
    assert collector.seqs == [1, 2, 3]
    assert len(collector.refusals) == 1
    stage.away.append("c1", 4)
    stage.settle()
    assert collector.seqs == [1, 2, 3, 4]


def test_a_request_that_a_full_link_refuses_is_retried() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1)
    collector = Collector(stage.feeds.feed(feed_spec("c1")))
    stage.settle()
    stage.link.is_full = True
    stage.away.append("c1", 2)
    stage.settle()
    stage.link.is_full = False
    stage.pass_time(1000)
    stage.away.append("c1", 3)
    stage.settle()
    assert collector.seqs == [1, 2, 3]


def test_a_topic_created_again_on_its_owner_is_reported() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1, 2, 3)
    collector = Collector(stage.feeds.feed(feed_spec("c1")))
    stage.settle()
    collector.is_paused = True
    stage.away.delete_topic("c1")
    stage.away.append("c1", "new", "newer", "newest", "last")
    stage.settle()
    collector.unpause()
    stage.settle()
    tombstone = collector.chunks[1].tombstone
    assert tombstone is not None
    assert tombstone.reason == "recreated"
    assert collector.seqs == [1, 2, 3, 1, 2, 3, 4]


@BOTH
def test_a_position_past_the_head_ends_the_subscription(topic: str) -> None:
    stage = FeedShards()
    owner = stage.owner(topic)
    owner.append(topic, 1, 2)
    epoch = owner.state(topic).epoch
    collector = Collector(stage.feeds.feed(feed_spec(topic)), 3, epoch)
    stage.settle()
    (refusal,) = collector.refusals
    assert (refusal.code, refusal.detail) == (
        POSITION_PAST_HEAD,
        {"topic": topic, "head_seq": 2, "epoch": epoch},
    )
    assert collector.subscription.is_over
    owner.append(topic, 3, 4, 5)
    stage.settle()
    assert (collector.chunks, len(collector.refusals)) == ([], 1)


@BOTH
def test_a_missing_topic_ends_the_subscription_at_once(topic: str) -> None:
    stage = FeedShards()
    collector = Collector(stage.feeds.feed(feed_spec(topic)))
    stage.settle()
    assert collector.has_ended


def test_a_feed_without_followers_pulls_nothing() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1)
    collector = Collector(stage.feeds.feed(feed_spec("c1")))
    stage.settle()
    assert stage.away.topic("c1").waiters
    collector.subscription.close()
    stage.settle()
    assert not stage.away.topic("c1").waiters
    assert isinstance(stage.feeds.feed(feed_spec("c1")), RemoteFeed)


def test_records_deleted_meanwhile_do_not_reach_later_followers() -> None:
    stage = FeedShards()
    stage.away.append("c1", 1)
    first = Collector(stage.feeds.feed(feed_spec("c1")))
    stage.settle()
    stage.away.append("c1", 2)
    stage.settle()
    stage.away.delete("c1", before_seq=3)
    stage.pass_time(round(CHUNK_TTL_SECONDS * 2000) + 50)
    second = Collector(stage.feeds.feed(feed_spec("c1")), seq=1)
    stage.settle()
    assert (first.seqs, second.seqs) == ([1, 2], [])


def test_without_data_a_record_has_only_its_other_fields() -> None:
    stage = FeedShards()
    stage.home.append("t0", {"large": "data"}, node="n")
    collector = Collector(stage.feeds.feed(feed_spec("t0", with_data=False)))
    stage.settle()
    assert b"large" not in collector.chunks[0].records
    assert b'"$node":"n"' in collector.chunks[0].records
    assert collector.seqs == [1]


def test_a_chunk_crosses_the_link_unchanged() -> None:
    stage = FeedShards()
    stage.home.put("t0", cap_records=1)
    stage.home.append("t0", *range(3))
    collector = Collector(stage.feeds.feed(feed_spec("t0")))
    stage.settle()
    chunk = collector.chunks[0]
    assert chunk.tombstone is not None
    decoded = decode_chunk(encode_chunk(chunk))
    fields = (
        "topic",
        "epoch",
        "from_seq",
        "to_seq",
        "head_seq",
        "earliest_seq",
        "count",
        "records",
        "tombstone",
    )
    assert all(getattr(chunk, name) == getattr(decoded, name) for name in fields)
    assert isinstance(decoded, Chunk)


def test_damage_is_reported_and_skipped() -> None:
    stage = FeedShards()
    for value in range(3):
        stage.home.append("t0", value)
    stage.home.pass_time(200)
    flip(stage, 2)
    collector = Collector(stage.feeds.feed(feed_spec("t0")))
    stage.settle()
    stage.pass_time(200)
    assert [one.code for one in collector.refusals] == [CORRUPT_SEGMENT]
    assert collector.seqs == [1, 3]
    assert isinstance(collector.subscription.feed, LocalFeed)


def flip(stage: FeedShards, seq: int) -> None:
    """Damage the record of the local topic at `seq`, in the log."""
    file, at = stage.home.topic("t0").run.place_of(seq, stage.home.shard.state.files)
    stage.home.disk.flip(f"{PATHS.wal}/{file}", at + 20)


def ranges(collector: Collector) -> list[tuple[object, object, object]]:
    details = [one.detail or {} for one in collector.refusals]
    return [(one["first_seq"], one["last_seq"], one["next_from_seq"]) for one in details]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_adjoining_damage_is_reported_as_one_range(limit: int) -> None:
    stage = FeedShards()
    for value in range(150):
        stage.home.append("t0", value)
    stage.home.pass_time(200)
    damaged = {3, *range(60, 130), 150}
    for seq in damaged:
        flip(stage, seq)
    collector = Collector(stage.feeds.feed(feed_spec("t0", limit=limit)))
    stage.settle()
    assert ranges(collector) == [(3, 3, 3), (60, 129, 129), (150, 150, 150)]
    assert collector.seqs == [seq for seq in range(1, 151) if seq not in damaged]
    stage.home.append("t0", 151)
    stage.settle()
    assert (len(collector.refusals), collector.seqs[-1]) == (3, 151)


@BOTH
def test_a_missing_segment_file_is_reported_once_with_all_its_records(topic: str) -> None:
    stage = FeedShards(segment_max_events=2000)
    owner = stage.owner(topic)
    for _ in range(5):
        owner.append(topic, *range(1000))
    owner.checkpoint()
    middle = owner.topic(topic).runs[1]
    assert isinstance(middle, SealedRun)
    owner.disk.unlink(f"{owner.paths.root}/{middle.name.key(DATA)}")
    collector = Collector(stage.feeds.feed(feed_spec(topic)))
    stage.settle()
    assert ranges(collector) == [(2001, 4000, 4000)]
    assert collector.seqs == [*range(1, 2001), *range(4001, 5001)]


def test_a_subscription_that_moves_back_reports_the_damage_again() -> None:
    stage = FeedShards()
    for value in range(3):
        stage.home.append("t0", value)
    stage.home.pass_time(200)
    flip(stage, 2)
    collector = Collector(stage.feeds.feed(feed_spec("t0")))
    stage.settle()
    collector.subscription.rewind(0)
    collector.subscription.resume()
    stage.settle()
    assert ranges(collector) == [(2, 2, 2)] * 2
    assert collector.seqs == [1, 3, 1, 3]


def test_followers_at_one_cursor_share_one_disk_read() -> None:
    stage = FeedShards(segment_max_events=10)
    stage.home.append("t0", *range(30))
    stage.home.checkpoint()
    followers = [Collector(stage.feeds.feed(feed_spec("t0"))) for _ in range(20)]
    stage.settle()
    assert all(one.seqs == list(range(1, 31)) for one in followers)
    assert len({id(one.chunks[0]) for one in followers}) == 1
