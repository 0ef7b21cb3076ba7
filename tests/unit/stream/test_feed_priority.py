"""The priority at which feeds wake their followers."""

from __future__ import annotations

from tests.harness.stage.feed_shards import Collector, FeedShards, feed_spec


def test_a_local_feed_has_the_priority_of_its_topic() -> None:
    stage = FeedShards()
    stage.home.put("c0", priority=-300)
    feed = stage.feeds.feed(feed_spec("c0"))
    assert stage.home.shard.state.wake_queue.effective_priority(feed) == -300  # type: ignore[arg-type]


def test_a_remote_feed_has_the_priority_of_a_recently_read_topic() -> None:
    stage = FeedShards()
    stage.away.put("a1", priority=-300)
    feed = stage.feeds.feed(feed_spec("a1"))
    assert stage.home.shard.state.wake_queue.effective_priority(feed) == 500  # type: ignore[arg-type]


def test_followers_of_negative_priority_topics_wait_until_the_pause_ends() -> None:
    stage = FeedShards()
    for name in ("low0", "slow1"):
        stage.owner(name).put(name, priority=-10)
        stage.owner(name).append(name, 1)
    followers = [Collector(stage.feeds.feed(feed_spec(name))) for name in ("low0", "slow1")]
    stage.settle()
    for shard in (stage.home, stage.away):
        shard.shard.state.wake_queue.apply_pressure(0.0, is_paused=True)
    for name in ("low0", "slow1", "low0", "slow1"):
        stage.owner(name).append(name, 2)
    stage.settle()
    assert [follower.seqs for follower in followers] == [[1], [1]]
    for shard in (stage.home, stage.away):
        shard.shard.state.wake_queue.apply_pressure(0.0, is_paused=False)
    stage.settle()
    assert [follower.seqs for follower in followers] == [[1, 2, 3], [1, 2, 3]]


def test_a_delivery_counts_as_a_read_of_the_topic() -> None:
    stage = FeedShards()
    stage.home.put("c0")
    follower = Collector(stage.feeds.feed(feed_spec("c0")))
    stage.settle()
    assert stage.home.state("c0").effective_priority == 0
    stage.home.append("c0", 1)
    stage.settle()
    assert follower.seqs == [1]
    assert stage.home.state("c0").effective_priority == 500
