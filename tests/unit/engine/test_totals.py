"""What the shard says is alive is what its topics say, whatever became of their records."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard, record


def assert_totals_fit(one: OneShard) -> None:
    topics = one.shard.state.topics.values()
    totals = one.shard.state.totals
    assert totals.live_count == sum(topic.live_count for topic in topics)
    assert totals.live_bytes == sum(topic.live_bytes for topic in topics)


def test_the_totals_of_the_shard_are_those_of_its_topics() -> None:
    one = OneShard()
    one.put("capped", cap_records=3)
    for _ in range(5):
        one.append("capped", 1)
        one.append("other", record(22, tag="t"))
        assert_totals_fit(one)
    assert one.shard.state.totals.live_count == 8
    one.delete("other", before_seq=2)
    one.delete("other", tag="t")
    assert_totals_fit(one)
    assert one.shard.state.totals.live_count == 3
    one.delete_topic("capped")
    assert one.shard.state.totals.live_count == 0
    assert one.shard.state.totals.live_bytes == 0
    one.append("capped", 1)
    one.restart()
    assert_totals_fit(one)
    assert one.shard.state.totals.live_count == 1
