"""Operations on schedules: put, delete and find. They are as durable as a configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from shared.contract.errors import NOT_FOUND, Refusal, limit_reached
from shared.contract.names import refuse_schedule_name
from shared.contract.schedule_rule import ScheduleRule
from shared.text.message import quoted
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.requests import Reply
from topicsd.engine.schedules.schedule import ScheduleState, apply_schedule
from topicsd.engine.schedules.timetable import timetable_of
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Schedule


class SchedulePut(msgspec.Struct, frozen=True):
    """The answer to `put_schedule`."""

    schedule: ScheduleState
    created: bool


class ScheduleDeleted(msgspec.Struct, frozen=True):
    """The answer to `delete_schedule`."""

    name: str
    deleted: bool


def put_schedule(
    shard: ShardState, topic_name: str, name: str, rule: ScheduleRule, reply: Reply[SchedulePut]
) -> None:
    """Create or replace a schedule; `reply` gets `SchedulePut` or a `Refusal`.

    A schedule that keeps its cron expression and time zone also keeps the ticks that it has not reached yet.
    """
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(put_schedule, shard, topic_name, name, rule, reply), reply)
        return
    queue = queue_of(shard, topic_name)
    if isinstance(queue, Refusal):
        reply(queue)
        return
    topic = queue[0]
    timetable = timetable_of(rule.cron, rule.time_zone)
    refusal = refuse_schedule_name(name) or (timetable if isinstance(timetable, Refusal) else None)
    refusal = refusal or _refuse_count(shard, topic, name) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    known = topic.schedules.get(name)
    reached_ms = shard.clock.now_ms()
    if known is not None and _same_ticks(known.rule, rule):
        reached_ms = known.reached_ms
    control = Schedule(name, reached_ms, 0 if known is None else known.last_seq, rule)

    end_change = _begin_change(shard, topic, known)

    def publish() -> None:
        end_change()
        created = apply_schedule(shard, topic, control)
        call_reply(reply, SchedulePut(topic.schedules[name], created))

    pending = PendingControl(topic, publish, reply, end_change)
    shard.join_config(topic, control, pending)


def delete_schedule(shard: ShardState, topic_name: str, name: str, reply: Reply[ScheduleDeleted]) -> None:
    """Delete a schedule, if it exists; `reply` gets `ScheduleDeleted` or a `Refusal`."""
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_schedule, shard, topic_name, name, reply), reply)
        return
    queue = queue_of(shard, topic_name)
    if isinstance(queue, Refusal):
        reply(queue)
        return
    topic = queue[0]
    refusal = refuse_schedule_name(name) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    control = Schedule(name, is_gone=True)

    known = topic.schedules.get(name)

    end_change = _begin_change(shard, topic, known)

    def publish() -> None:
        end_change()
        call_reply(reply, ScheduleDeleted(name, apply_schedule(shard, topic, control)))

    pending = PendingControl(topic, publish, reply, end_change)
    shard.join_config(topic, control, pending)


def find_schedule(shard: ShardState, topic_name: str, name: str) -> ScheduleState | Refusal:
    queue = queue_of(shard, topic_name)
    if isinstance(queue, Refusal):
        return queue
    schedule = queue[0].schedules.get(name)
    return schedule or Refusal(NOT_FOUND, f'topic "{topic_name}" has no schedule {quoted(name)}')


def next_tick(schedule: ScheduleState, now_ms: int) -> int | None:
    """Return the next tick of a schedule, or None while it is paused or its time zone is unknown here."""
    timetable = timetable_of(schedule.rule.cron, schedule.rule.time_zone)
    if schedule.rule.is_paused or isinstance(timetable, Refusal):
        return None
    return next(timetable.ticks_after(max(schedule.reached_ms, now_ms)), None)


def _same_ticks(before: ScheduleRule, after: ScheduleRule) -> bool:
    """Return whether ticks before the change are those of the new rule too; paused ones are of no rule."""
    return (before.cron, before.time_zone, before.is_paused) == (after.cron, after.time_zone, False)


def _begin_change(shard: ShardState, topic: Topic, schedule: ScheduleState | None) -> Callable[[], None]:
    """Count a pending change of a schedule; return the function that ends it."""
    if schedule is not None:
        schedule.change_count += 1

    def end() -> None:
        if schedule is not None:
            schedule.change_count -= 1
            shard.note_schedules(topic)

    return end


def _refuse_count(shard: ShardState, topic: Topic, name: str) -> Refusal | None:
    bound = shard.settings.max_schedules
    if name in topic.schedules or len(topic.schedules) < bound:
        return None
    return limit_reached("max_schedules", bound, f'topic "{topic.name}" cannot have more schedules')
