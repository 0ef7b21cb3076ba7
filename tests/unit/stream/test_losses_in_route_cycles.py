"""A loss in a cycle of routes is reported to the next topic, and no further."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.route_shards import RouteShards


@pytest.mark.parametrize("shards", [1, 3])
def test_a_crash_does_not_circulate_in_a_cycle(shards: int) -> None:
    stage = RouteShards(shards)
    for topic in ("a", "b"):
        stage.owner(topic).put(topic)
    stage.put_route("r", "a", "b", may_cycle=True)
    stage.put_route("s", "b", "a", may_cycle=True)
    stage.append("a", 1)
    for number in range(shards):
        stage.end(number, OneShard.reboot)
    stage.pass_time(3000)
    heads = [stage.owner(topic).state(topic).head_seq for topic in ("a", "b")]
    stage.pass_time(3000)
    assert [stage.owner(topic).state(topic).head_seq for topic in ("a", "b")] == heads
    for topic in ("a", "b"):
        reasons = [lost.reason for lost in stage.owner(topic).topic(topic).lost.ranges]
        assert reasons == ["crash", "source_trim"]


def test_a_crash_is_reported_along_a_chain_of_routes() -> None:
    stage = RouteShards(1)
    for topic in ("a", "b", "c"):
        stage.owner(topic).put(topic, durability="fsync" if topic != "a" else "disk")
    stage.put_route("r", "a", "b")
    stage.put_route("s", "b", "c")
    stage.append("a", 1)
    stage.pass_time(100)
    stage.end(0, OneShard.reboot)
    stage.pass_time(3000)
    assert [lost.reason for lost in stage.owner("c").topic("c").lost.ranges] == ["crash"]
