"""Schedules of a queue: each tick gets its jobs once, whatever ends the shard between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.contract.errors import Refusal
from shared.contract.schedule_rule import ScheduleRule
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.harness.shard.two_shards import TwoShards
from topicsd.engine.queue.waiting_claims import claim_with_wait
from topicsd.engine.requests import ClaimRequest
from topicsd.engine.schedules.change import delete_schedule, find_schedule, next_tick, put_schedule
from topicsd.engine.schedules.schedule import ScheduleState

MINUTE = 60_000


def put(one: OneShard, rule: ScheduleRule, name: str = "s", queue: str = "q") -> Any:
    reply = RecordedReply()
    put_schedule(one.shard.state, queue, name, rule, reply)
    one.settle()
    return reply.answer


def scheduled(rule: ScheduleRule, **config: Any) -> OneShard:
    """Return a shard 10 s after a full minute, whose queue has this schedule."""
    one = OneShard()
    one.pass_time(MINUTE - one.clock.now_ms() % MINUTE + 10_000)
    one.put("q", type="queue", **config)
    assert put(one, rule).created
    return one


def tick_times(one: OneShard, queue: str = "q") -> list[int]:
    """Return the ticks whose jobs are in the queue."""
    records = one.read(queue, limit=10_000).records
    return [msgspec.json.decode(record.meta or b"{}")["$schedule_ts"] for record in records]


def schedule(one: OneShard, name: str = "s") -> ScheduleState:
    one_schedule = find_schedule(one.shard.state, "q", name)
    assert isinstance(one_schedule, ScheduleState)
    return one_schedule


EVERY_MINUTE = ScheduleRule("* * * * *")


def test_each_tick_gets_a_job_with_what_the_rule_says() -> None:
    rule = ScheduleRule("* * * * *", data=b'{"a":1}', meta=b'{"b":2}', tag="t", priority=7)
    one = scheduled(rule)
    began = one.clock.now_ms() - 10_000
    one.append("q", "low")
    one.pass_time(3 * MINUTE)
    jobs = one.read("q", 1).records
    assert [(job.data, job.tag) for job in jobs] == [(b'{"a":1}', b"t")] * 3
    assert [job.ts for job in jobs] == [began + number * MINUTE for number in (1, 2, 3)]
    assert jobs[0].meta == b'{"b":2,"$schedule":"s","$schedule_ts":%d}' % (began + MINUTE)
    assert one.claimed("q", "w", 4) == [2, 3, 4, 1], "by priority"
    assert schedule(one).last_seq == 4
    assert next_tick(schedule(one), one.clock.now_ms()) == began + 4 * MINUTE


@pytest.mark.parametrize("end", ["restart", "kill", "reboot", "checkpoint", "cut_power"])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_no_tick_is_lost_or_repeated_over_an_end(durability: str, end: str) -> None:
    one = scheduled(EVERY_MINUTE, durability=durability)
    began = one.clock.now_ms() - 10_000
    for _ in range(4):
        one.pass_time(MINUTE)
        getattr(one, end)()
    one.pass_time(MINUTE)
    assert tick_times(one) == [began + number * MINUTE for number in range(1, 6)]


def test_a_schedule_of_an_ephemeral_queue_resumes_at_its_tick() -> None:
    one = scheduled(EVERY_MINUTE, durability="ephemeral")
    one.pass_time(MINUTE)
    assert len(tick_times(one)) == 1
    for end in (one.kill, one.restart):
        end()
        one.pass_time(1000)
        assert tick_times(one) == []
    one.pass_time(MINUTE)
    assert len(tick_times(one)) == 1


def down_for(one: OneShard, ms: int, *, is_captured: bool = False) -> None:
    one.close(checkpoint=is_captured)
    one.clock.advance_ns(ms * 1_000_000)
    one.open(one.disk)
    one.pass_time(1)


@pytest.mark.parametrize(("catch_up", "hours"), [("none", []), ("last", [4]), ("all", [2, 3, 4])])
@pytest.mark.parametrize("is_captured", [True, False])
def test_missed_ticks_get_the_jobs_that_the_rule_asks_for(
    catch_up: str, hours: list[int], is_captured: bool
) -> None:
    one = scheduled(ScheduleRule("@hourly", catch_up=catch_up))
    first = next_tick(schedule(one), one.clock.now_ms())
    assert first is not None
    one.pass_time(first + 5 * MINUTE - one.clock.now_ms())
    assert tick_times(one) == [first]
    down_for(one, 200 * MINUTE, is_captured=is_captured)
    expected = [first, *[first + (hour - 1) * 60 * MINUTE for hour in hours]]
    assert tick_times(one) == expected
    one.kill()
    one.pass_time(60 * MINUTE)
    assert tick_times(one) == [*expected, first + 4 * 60 * MINUTE]


def test_a_tick_less_than_a_minute_ago_was_not_missed() -> None:
    one = scheduled(ScheduleRule("@hourly", catch_up="none"))
    first = next_tick(schedule(one), one.clock.now_ms())
    assert first is not None
    down_for(one, first + 59_000 - one.clock.now_ms())
    assert tick_times(one) == [first]


def test_very_many_missed_ticks_get_the_newest_thousand_jobs_in_parts() -> None:
    one = scheduled(ScheduleRule("* * * * *", catch_up="all", data=b'"' + b"x" * 500 + b'"'))
    down_for(one, 2000 * MINUTE)
    one.pass_time(1000)
    last = one.clock.now_ms() // MINUTE * MINUTE
    assert tick_times(one) == [*range(last - 999 * MINUTE, last + 1, MINUTE)]
    down_for(one, 10)
    assert len(tick_times(one)) == 1000


def test_a_paused_schedule_adds_nothing_and_catches_nothing_up() -> None:
    one = scheduled(ScheduleRule("* * * * *", catch_up="all", is_paused=True))
    assert next_tick(schedule(one), one.clock.now_ms()) is None
    one.pass_time(3 * MINUTE)
    assert not put(one, ScheduleRule("* * * * *", catch_up="all")).created
    one.pass_time(MINUTE)
    assert len(tick_times(one)) == 1


def test_a_schedule_put_again_keeps_its_position_unless_its_ticks_change() -> None:
    one = scheduled(ScheduleRule("@hourly", catch_up="all"))
    one.put("q", cap_records=1, discard="reject")
    one.append("q", "full")
    one.pass_time(130 * MINUTE)
    assert schedule(one).problem == "topic_full"
    reached = schedule(one).reached_ms
    put(one, ScheduleRule("@hourly", catch_up="all", data=b"2"))
    assert schedule(one).reached_ms == reached
    one.put("q", cap_records=2)
    one.pass_time(2000)
    assert [record.data for record in one.read("q", 1).records] == [b"2"], "as many as there is room for"
    one.put("q", cap_records=0)
    one.pass_time(2000)
    assert [record.data for record in one.read("q", 1).records] == [b"2", b"2"]
    assert schedule(one).problem == ""
    put(one, ScheduleRule("30 * * * *", catch_up="all"))
    assert schedule(one).reached_ms == one.clock.now_ms()
    assert schedule(one).last_seq == 3


def test_a_full_queue_gets_the_job_when_there_is_room() -> None:
    one = scheduled(ScheduleRule("@hourly", catch_up="last"))
    one.put("q", cap_records=1, discard="reject")
    one.append("q", "full")
    one.pass_time(61 * MINUTE)
    assert one.seqs("q") == [1]
    one.claim("q", "w")
    one.ack("q", "w", 1)
    one.pass_time(1000)
    assert one.seqs("q") == [2]


def test_a_deleted_schedule_and_a_deleted_queue_add_no_jobs() -> None:
    one = scheduled(EVERY_MINUTE)
    put(one, EVERY_MINUTE, "other")
    reply = RecordedReply()
    delete_schedule(one.shard.state, "q", "s", reply)
    one.settle()
    assert reply.answer.deleted
    one.pass_time(MINUTE)
    assert len(tick_times(one)) == 1
    one.delete_topic("q")
    one.put("q", type="queue")
    one.restart()
    one.pass_time(2 * MINUTE)
    assert one.seqs("q") == []
    assert not one.shard.state.queues_with_schedules


def test_a_change_and_its_deletion_in_one_turn_take_effect_in_order() -> None:
    one = scheduled(EVERY_MINUTE)
    replies = [RecordedReply() for _ in range(3)]
    delete_schedule(one.shard.state, "q", "s", replies[0])
    put_schedule(one.shard.state, "q", "s", ScheduleRule("@hourly"), replies[1])
    delete_schedule(one.shard.state, "q", "none", replies[2])
    one.settle()
    assert [replies[0].answer.deleted, replies[1].answer.created, replies[2].answer.deleted] == [
        True,
        True,
        False,
    ]
    assert schedule(one).rule.cron == "@hourly"
    one.kill()
    assert schedule(one).rule.cron == "@hourly"


def test_a_claim_that_waits_gets_the_job_of_a_tick() -> None:
    one = scheduled(EVERY_MINUTE)
    one.pass_time(40_000)
    reply = RecordedReply()
    claim_with_wait(one.shard.state, "q", ClaimRequest("w", 1, None, wait_ms=30_000), reply)
    one.pass_time(9_000)
    assert not reply.has_answer
    one.pass_time(2_000)
    assert [job.seq for job in reply.answer.claimed] == [1]


def test_a_moved_queue_takes_its_schedules_along() -> None:
    two = TwoShards()
    one, other = two.shards
    one.pass_time(MINUTE - one.clock.now_ms() % MINUTE + 10_000)
    one.put("q", type="queue")
    put(one, EVERY_MINUTE)
    began = one.clock.now_ms() - 10_000
    one.pass_time(MINUTE)
    two.move("q")
    assert not one.shard.state.queues_with_schedules
    other.pass_time(MINUTE)
    other.kill()
    other.pass_time(MINUTE)
    assert tick_times(other) == [began + number * MINUTE for number in (1, 2, 3)]


def test_a_time_zone_that_this_machine_does_not_know_adds_no_jobs_and_stops_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = scheduled(ScheduleRule("* * * * *", "Europe/Berlin"))
    refusal = Refusal("invalid_request", "time_zone: unknown")
    monkeypatch.setattr("topicsd.engine.schedules.runner.timetable_of", lambda *rule: refusal)
    one.kill()
    one.pass_time(2 * MINUTE)
    assert (tick_times(one), schedule(one).problem) == ([], "invalid_request")
    monkeypatch.undo()
    one.kill()
    one.pass_time(1)
    assert len(tick_times(one)) == 1


def test_a_log_has_no_schedules_and_a_queue_has_a_bounded_number() -> None:
    one = OneShard(max_schedules=2)
    one.put("log")
    one.put("q", type="queue")
    assert put(one, EVERY_MINUTE, queue="log").code == "not_a_queue"
    assert put(one, EVERY_MINUTE, queue="none").code == "topic_not_found"
    assert put(one, EVERY_MINUTE, "a b").message.startswith("schedule: must be a schedule name")
    for name in ("a", "b", "a"):
        put(one, EVERY_MINUTE, name)
    refusal = put(one, EVERY_MINUTE, "c")
    assert (refusal.code, refusal.detail) == ("throttled", {"limit": "max_schedules", "max": 2})


def test_many_schedules_are_looked_at_in_several_turns() -> None:
    one = OneShard(max_schedules=1000)
    one.put("q", type="queue")
    for number in range(120):
        put(one, EVERY_MINUTE, f"s{number}")
    one.pass_time(2 * MINUTE)
    names = [msgspec.json.decode(job.meta or b"{}")["$schedule"] for job in one.read("q", limit=1000).records]
    assert sorted(names) == sorted(2 * [f"s{number}" for number in range(120)])
    assert one.shard.schedules.job_count == 240
