"""A topic that was quiet and synced has lost nothing, whatever happens to the machine."""

import pytest

from tests.harness.shard.one_shard import OneShard


def lost(shard: OneShard, topic: str) -> list[tuple[int, int, str]]:
    return [tuple(one) for one in shard.topic(topic).lost.ranges]


@pytest.mark.parametrize("step_ms", [0, -3_600_000, 3_600_000])
def test_an_idle_topic_reports_no_loss_also_when_the_clock_stepped(step_ms: int) -> None:
    shard = OneShard()
    shard.append("a", *range(20))
    shard.clock.step_wall(step_ms)
    shard.pass_time(5000)
    shard.cut_power()
    assert lost(shard, "a") == []
    assert shard.state("a").head_seq == 20


def test_a_busy_topic_keeps_its_ceiling_while_the_clock_stands_back() -> None:
    shard = OneShard()
    shard.append("a", 1)
    shard.clock.step_wall(-3_600_000)
    syncs_before = shard.shard.log.counters.frames
    for number in range(100):
        shard.append("a", number)
        shard.pass_time(60)
    assert shard.shard.log.counters.frames - syncs_before < 400


def test_a_change_of_configuration_leaves_an_idle_topic_without_loss() -> None:
    shard = OneShard()
    shard.append("a", *range(1000))
    shard.pass_time(5000)
    shard.put("a", ttl_ms=3_600_000)
    shard.pass_time(5000)
    shard.cut_power()
    assert lost(shard, "a") == []


def test_a_topic_that_becomes_weaker_than_fsync_has_a_ceiling_near_its_head() -> None:
    shard = OneShard()
    shard.put("a", durable=True)
    shard.append("a", *range(5000))
    shard.put("a", durable=False)
    shard.cut_power()
    ranges = lost(shard, "a")
    assert len(ranges) == 1
    assert ranges[0][0] == 5001
    assert ranges[0][1] <= 5000 + 256


def test_a_lowering_that_found_no_room_is_tried_again() -> None:
    shard = OneShard()
    shard.append("a", 1, 2)
    shard.pass_time(900)
    fault = shard.disk.fail("pwrite", nth=1, error=28)
    shard.pass_time(400)
    assert fault.fired
    shard.pass_time(12_000)
    shard.cut_power()
    assert lost(shard, "a") == []
    assert shard.state("a").head_seq == 2


def test_nothing_of_a_topic_is_logged_behind_its_deletion() -> None:
    shard = OneShard()
    shard.put("a", ttl_ms=100)
    shard.append("a", 1, 2)
    shard.pass_time(200)
    shard.send_delete_topic("a")
    shard.loop.run_until_idle()
    shard.read("a")
    shard.loop.advance(3000)
    shard.settle()
    shard.kill()
    assert shard.shard.topic_names() == []
