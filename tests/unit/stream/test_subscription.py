"""A subscription goes along a feed, here and from another shard, and misses nothing."""

from __future__ import annotations

import pytest

from shared.contract.errors import CORRUPT_SEGMENT, INTERNAL, NOT_READY, POSITION_PAST_HEAD
from tests.harness.live_stage import Collector, LiveStage, wanted
from tests.harness.one_shard import PATHS
from topicsd.stream.chunks import Piece, decode_chunk, encode_chunk
from topicsd.stream.feed import ERROR_DELAY_SECONDS, LocalFeed
from topicsd.stream.remote_feed import CHUNK_TTL_SECONDS, RETRY_SECONDS, RemoteFeed

BOTH = pytest.mark.parametrize("topic", ["t0", "t1"], ids=["here", "there"])


@BOTH
def test_what_is_there_and_what_comes_is_delivered_in_order(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1, 2, 3)
    got = Collector(stage.feeds.feed(wanted(topic)))
    stage.settle()
    assert got.seqs == [1, 2, 3]
    owner.append(topic, 4)
    stage.settle()
    owner.append(topic, 5, 6)
    stage.settle()
    assert got.seqs == [1, 2, 3, 4, 5, 6]


@BOTH
def test_a_limit_cuts_what_is_behind_into_pieces(topic: str) -> None:
    stage = LiveStage()
    stage.shard_of(topic).append(topic, *range(10))
    got = Collector(stage.feeds.feed(wanted(topic, limit=4)))
    stage.settle()
    assert [piece.count for piece in got.pieces] == [4, 4, 2]
    assert got.seqs == list(range(1, 11))


@BOTH
def test_a_clogged_sink_is_given_nothing_and_then_what_it_missed(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1)
    got = Collector(stage.feeds.feed(wanted(topic)))
    stage.settle()
    got.is_clogged = True
    for value in range(5):
        owner.append(topic, value)
        stage.pass_time(50)
    assert got.seqs == [1]
    assert len(got.held) == 1
    got.unclog()
    stage.settle()
    assert got.seqs == [1, 2, 3, 4, 5, 6]
    assert len(got.pieces) == 2, "what waited comes in one piece"


@BOTH
def test_deleting_the_topic_ends_the_subscription(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1)
    got = Collector(stage.feeds.feed(wanted(topic)))
    stage.settle()
    owner.delete_topic(topic)
    stage.settle()
    assert got.has_ended
    assert got.subscription.is_over


def test_a_reading_that_fails_as_nobody_foresaw_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = LiveStage()
    owner = stage.shard_of("t0")
    owner.append("t0", 1)
    got = Collector(stage.feeds.feed(wanted("t0")))
    stage.settle()

    def broken(*_: object) -> None:
        raise RuntimeError("a secret of ours")

    with monkeypatch.context() as patched:
        patched.setattr("topicsd.engine.read.fetch.read", broken)
        owner.append("t0", 2)
        stage.settle()
        stage.pass_time(int(2500 * ERROR_DELAY_SECONDS))
    (refusal,) = got.refusals
    assert refusal.code == INTERNAL
    assert "secret" not in refusal.message
    assert len([record for record in caplog.records if record.exc_info]) == 3
    stage.pass_time(int(1000 * ERROR_DELAY_SECONDS))
    assert got.seqs == [1, 2]


@BOTH
def test_evicted_records_are_told_and_passed_over(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.put(topic, cap_records=3)
    owner.append(topic, *range(10))
    got = Collector(stage.feeds.feed(wanted(topic)), seq=2)
    stage.settle()
    tombstone = got.pieces[0].tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (3, 7)
    assert got.seqs == [8, 9, 10]


@BOTH
def test_the_readers_own_records_are_skipped_silently(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1, node="me")
    owner.append(topic, 2, node="you")
    got = Collector(stage.feeds.feed(wanted(topic, nodes=frozenset(["me"]))))
    stage.settle()
    owner.append(topic, 3, node="me")
    stage.settle()
    owner.append(topic, 4, node="you")
    stage.settle()
    assert got.seqs == [2, 4]
    assert got.subscription.seq == 4


@BOTH
def test_strong_delivers_what_is_synced_and_nothing_else(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1)
    owner.pass_time(100)
    got = Collector(stage.feeds.feed(wanted(topic, is_strong=True)))
    stage.settle()
    assert got.seqs == [1]
    owner.send_append(topic, 2)
    owner.loop.run_until_idle()
    assert owner.state(topic).head_seq == 2
    assert got.seqs == [1], "it is written and not synced"
    # It is synced at once, and not by the timer of the background.
    stage.settle()
    assert got.seqs == [1, 2]
    assert owner.state(topic).durable_seq == 2


@BOTH
def test_a_strong_reader_has_what_comes_while_a_sync_runs_from_the_next_one(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1)
    got = Collector(stage.feeds.feed(wanted(topic, is_strong=True)), seq=1)
    stage.settle()
    owner.pass_time(100)
    syncs = owner.shard.log.counters.syncs
    for number in range(50):
        owner.send_append(topic, number)
        owner.loop.run_until_idle()
        stage.home.loop.run_until_idle()
    stage.pass_time(10)
    assert got.seqs == list(range(2, 52))
    assert owner.shard.log.counters.syncs - syncs == 2


def test_all_that_wait_for_a_sync_look_together() -> None:
    stage = LiveStage()
    stage.home.append("a0", 1)
    stage.home.pass_time(100)
    stage.home.append("a0", 2)
    feed = stage.feeds.feed(wanted("a0", is_strong=True))
    assert isinstance(feed, LocalFeed)
    collectors = [Collector(feed, 1) for _ in range(50)]
    assert stage.home.thread.pending == 1
    for collector in collectors[10:]:
        collector.subscription.close()
    assert feed.waiters is not None
    assert len(feed.waiters) == 10
    stage.pass_time(500)
    assert [collector.seqs for collector in collectors] == [[2]] * 10 + [[]] * 40


def test_all_at_one_cursor_get_the_same_piece() -> None:
    stage = LiveStage()
    stage.home.append("t0", 1)
    followers = [Collector(stage.feeds.feed(wanted("t0"))) for _ in range(10)]
    stage.settle()
    stage.home.append("t0", 2)
    stage.settle()
    assert len({id(one.pieces[-1]) for one in followers}) == 1


def test_the_owner_is_asked_once_however_many_follow() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1)
    followers = [Collector(stage.feeds.feed(wanted("t1"))) for _ in range(100)]
    stage.settle()
    assert all(one.seqs == [1] for one in followers)
    before = stage.link.question_count
    for value in range(10):
        stage.away.append("t1", value)
        stage.settle()
    assert all(one.seqs == list(range(1, 12)) for one in followers)
    assert stage.link.question_count - before <= 10, "a pull for each find"


def test_a_slow_follower_does_not_hold_back_the_others() -> None:
    stage = LiveStage()
    stage.away.append("t1", 0)
    slow, quick = (Collector(stage.feeds.feed(wanted("t1"))) for _ in range(2))
    stage.settle()
    slow.is_clogged = True
    for value in range(20):
        stage.away.append("t1", value)
        stage.pass_time(50)
    assert quick.seqs == list(range(1, 22))
    assert slow.seqs == [1]
    slow.unclog()
    stage.settle()
    assert slow.seqs == list(range(1, 22))


def test_an_owner_that_dies_is_told_once_and_followed_again() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1, 2)
    stage.home.append("t0", 1)
    got, other = Collector(stage.feeds.feed(wanted("t1"))), Collector(stage.feeds.feed(wanted("t0")))
    stage.settle()
    stage.restart_away()
    stage.settle()
    stage.pass_time(1000)
    assert [one.code for one in got.refusals] == [NOT_READY]
    stage.home.append("t0", 2)
    stage.away.append("t1", 3)
    stage.settle()
    assert other.seqs == [1, 2]
    assert got.seqs == [1, 2]
    stage.mend()
    stage.pass_time(round(RETRY_SECONDS * 2000))
    assert got.seqs == [1, 2, 3]
    assert len(got.refusals) == 1
    stage.away.append("t1", 4)
    stage.settle()
    assert got.seqs == [1, 2, 3, 4]


def test_a_link_that_takes_no_question_just_now_is_asked_over_again() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1)
    got = Collector(stage.feeds.feed(wanted("t1")))
    stage.settle()
    stage.link.is_full = True
    stage.away.append("t1", 2)
    stage.settle()
    stage.link.is_full = False
    stage.pass_time(1000)
    stage.away.append("t1", 3)
    stage.settle()
    assert got.seqs == [1, 2, 3]


def test_a_topic_that_was_made_anew_there_is_told() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1, 2, 3)
    got = Collector(stage.feeds.feed(wanted("t1")))
    stage.settle()
    got.is_clogged = True
    stage.away.delete_topic("t1")
    stage.away.append("t1", "new", "newer", "newest", "last")
    stage.settle()
    got.unclog()
    stage.settle()
    tombstone = got.pieces[1].tombstone
    assert tombstone is not None
    assert tombstone.reason == "recreated"
    assert got.seqs == [1, 2, 3, 1, 2, 3, 4]


@BOTH
def test_a_position_past_the_head_ends_the_subscription(topic: str) -> None:
    stage = LiveStage()
    owner = stage.shard_of(topic)
    owner.append(topic, 1, 2)
    epoch = owner.state(topic).epoch
    got = Collector(stage.feeds.feed(wanted(topic)), 3, epoch)
    stage.settle()
    (refusal,) = got.refusals
    assert (refusal.code, refusal.detail) == (
        POSITION_PAST_HEAD,
        {"topic": topic, "head_seq": 2, "epoch": epoch},
    )
    assert got.subscription.is_over
    owner.append(topic, 3, 4, 5)
    stage.settle()
    assert (got.pieces, len(got.refusals)) == ([], 1)


@BOTH
def test_a_topic_that_is_not_there_ends_it_at_once(topic: str) -> None:
    stage = LiveStage()
    got = Collector(stage.feeds.feed(wanted(topic)))
    stage.settle()
    assert got.has_ended


def test_nothing_is_pulled_when_nobody_follows_any_more() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1)
    got = Collector(stage.feeds.feed(wanted("t1")))
    stage.settle()
    assert stage.away.topic("t1").waiters
    got.subscription.close()
    stage.settle()
    assert not stage.away.topic("t1").waiters
    assert isinstance(stage.feeds.feed(wanted("t1")), RemoteFeed)


def test_what_is_deleted_meanwhile_is_not_given_to_who_comes_later() -> None:
    stage = LiveStage()
    stage.away.append("t1", 1)
    first = Collector(stage.feeds.feed(wanted("t1")))
    stage.settle()
    stage.away.append("t1", 2)
    stage.settle()
    stage.away.delete("t1", before_seq=3)
    stage.pass_time(round(CHUNK_TTL_SECONDS * 2000) + 50)
    second = Collector(stage.feeds.feed(wanted("t1")), seq=1)
    stage.settle()
    assert (first.seqs, second.seqs) == ([1, 2], [])


def test_without_data_a_record_is_its_marks() -> None:
    stage = LiveStage()
    stage.home.append("t0", {"large": "data"}, node="n")
    got = Collector(stage.feeds.feed(wanted("t0", with_data=False)))
    stage.settle()
    assert b"large" not in got.pieces[0].records
    assert b'"$node":"n"' in got.pieces[0].records
    assert got.seqs == [1]


def test_a_piece_crosses_the_link_as_it_was() -> None:
    stage = LiveStage()
    stage.home.put("t0", cap_records=1)
    stage.home.append("t0", *range(3))
    got = Collector(stage.feeds.feed(wanted("t0")))
    stage.settle()
    piece = got.pieces[0]
    assert piece.tombstone is not None
    again = decode_chunk(encode_chunk(piece))
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
    assert all(getattr(piece, name) == getattr(again, name) for name in fields)
    assert isinstance(again, Piece)


def test_damage_is_told_and_followed_past() -> None:
    stage = LiveStage()
    for value in range(3):
        stage.home.append("t0", value)
    stage.home.pass_time(200)
    file, at = stage.home.topic("t0").run.place_of(2, stage.home.shard.state.files)
    stage.home.disk.flip(f"{PATHS.wal}/{file}", at + 20)
    got = Collector(stage.feeds.feed(wanted("t0")))
    stage.settle()
    stage.pass_time(200)
    assert [one.code for one in got.refusals] == [CORRUPT_SEGMENT]
    assert got.seqs == [1, 3]
    assert isinstance(got.subscription.feed, LocalFeed)


def test_followers_at_one_cursor_wait_for_the_disk_once() -> None:
    stage = LiveStage(segment_max_events=10)
    stage.home.append("t0", *range(30))
    stage.home.checkpoint()
    followers = [Collector(stage.feeds.feed(wanted("t0"))) for _ in range(20)]
    stage.settle()
    assert all(one.seqs == list(range(1, 31)) for one in followers)
    assert len({id(one.pieces[0]) for one in followers}) == 1
