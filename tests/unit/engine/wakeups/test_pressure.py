"""The gauge over one shard whose loop is late when the test says so."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.wakeups.governor import TICK_SECONDS, Pressure, Stages

TICK_MS = TICK_SECONDS * 1000


def be_late(one: OneShard, looks: int = 15, late_ms: float = 20.0) -> None:
    """So often the gauge looks late, as behind turns that take long."""
    for _ in range(looks):
        one.clock.advance(TICK_MS + late_ms)
        one.settle()


def begun(**settings: int) -> OneShard:
    one = OneShard(**settings)
    one.append("a", 0)
    one.pass_time(200)
    one.shard.pressure.start()
    return one


def test_a_shard_at_rest_is_under_no_pressure_and_neither_is_one_with_some_writes() -> None:
    one = begun()
    one.pass_time(2000)
    assert one.shard.pressure.pressure == Pressure()
    for _ in range(20):
        one.append("a", 1)
        one.pass_time(50)
    assert one.shard.pressure.stages == Stages()


def test_a_loop_that_is_late_is_pressure_until_it_is_not() -> None:
    one = begun()
    be_late(one)
    stages = one.shard.pressure.stages
    assert stages.coalesce_seconds > 0.018
    assert (stages.is_paused, stages.is_refusing) == (True, True)
    assert one.shard.log.admit_limit == -1
    one.pass_time(2500)
    assert one.shard.pressure.stages == Stages()
    assert one.shard.log.admit_limit > 0


def test_a_disk_that_is_always_at_work_is_no_pressure() -> None:
    one = begun()
    one.put("f", durability="fsync")
    # Two, as the sync of one alone that the loop finds to be fast is its own.
    replies = [one.send_append("f", number) for number in range(2)]
    # One sync that takes its time is as good as many.
    one.loop.advance(30 * TICK_MS)
    assert not any(reply.has_answer for reply in replies)
    assert one.shard.pressure.pressure.busy > 0.9
    assert one.shard.pressure.stages == Stages()


def test_under_pressure_replies_come_later_and_none_is_lost() -> None:
    one = begun()
    one.put("f", durability="fsync")
    one.pass_time(200)
    be_late(one)
    woken: list[float] = []
    watch, topic = one.shard.state.wake_queue, one.topic("f")
    watch.add(topic, lambda: woken.append(one.clock.monotonic()))
    one.append("f", 0)
    began = one.clock.monotonic()
    replies = [one.send_append("f", number) for number in range(3)]
    one.settle()
    assert not any(reply.has_answer for reply in replies)
    assert woken == []
    one.pass_time(20)
    assert [reply.answer.first_seq for reply in replies] == [2, 3, 4]
    (at,) = woken
    assert 0.015 < at - began <= 0.021
    assert one.seqs("f") == [1, 2, 3, 4]


def test_a_write_is_refused_under_pressure_where_much_waits_unless_it_asks_not_to_be() -> None:
    one = begun(max_waiting_requests=4)
    one.put("f", durability="fsync")
    be_late(one)
    waiting = [one.send_append("f", number) for number in range(2)]
    one.loop.run_until_idle()
    refused = one.send_append("f", 2)
    assert (refused.code, refused.answer.retry_after_ms) == ("throttled", 1000)
    passes = one.send_append("f", 3, disable_backpressure=True)
    one.pass_time(30)
    assert [reply.answer.first_seq for reply in (*waiting, passes)] == [1, 2, 3]
    assert one.shard.log.counters.refused_under_pressure == 1
    one.append("f", 4)


def test_a_repeat_of_a_write_that_was_done_is_answered_under_pressure_too() -> None:
    one = begun(max_waiting_requests=2)
    one.put("f", durability="fsync")
    one.append("f", 1, idempotency_key="k")
    be_late(one)
    one.send_append("f", 2)
    one.loop.run_until_idle()
    assert one.send_append("f", 3).code == "throttled"
    repeat = one.send_append("f", 1, idempotency_key="k")
    one.pass_time(30)
    assert repeat.answer.deduped


def test_when_it_stops_nothing_is_put_off_any_more() -> None:
    one = begun()
    be_late(one)
    watch, topic = one.shard.state.wake_queue, one.topic("a")
    one.put("a", priority=-10)
    woken: list[bool] = []
    watch.add(topic, lambda: woken.append(True))
    watch.wake(topic)
    one.pass_time(30)
    assert (woken, watch.ready.held_count) == ([], 1)
    one.shard.pressure.stop()
    one.settle()
    assert woken == [True]
    assert one.shard.pressure.stages == Stages()
    be_late(one)
    assert one.shard.pressure.pressure == Pressure()


def test_a_shard_that_is_closed_is_looked_at_no_more() -> None:
    one = begun()
    be_late(one)
    one.close()
    be_late(one)
    assert one.shard.pressure.pressure == Pressure()
