"""A topic of another shard that is deleted just after a follower has found it at its head."""

from __future__ import annotations

from tests.harness.stage.feed_shards import Collector, FeedShards, feed_spec

TURNS = 20


def test_a_deletion_ends_a_follower_whose_last_read_found_nothing() -> None:
    stage = FeedShards()
    (topic,) = stage.topics_on(1, 1)
    head = stage.away.append(topic, 1).last_seq
    collector = Collector(stage.feeds.feed(feed_spec(topic)), head, stage.away.topic(topic).epoch)
    stage.settle()
    stage.away.delete_topic(topic)
    # No time passes: the empty chunk of the read is still kept.
    for _ in range(TURNS):
        for shard in stage.shards:
            shard.settle()
    assert collector.has_ended
