"""The runner of the schedules of a shard: adds the jobs of due ticks, and sets one timer for the next.

What is due is decided by `Timetable.due_ticks`. A tick that cannot get its job, because the queue is full or
writes wait, is looked at again after `RETRY_MS`; by then it may be a missed one. The system clock may be set
while the timer runs: a timer that fires early looks again, and none runs longer than `WAIT_MS_MAX`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal, throttled
from topicsd.engine.queue.delay import NewJobs, new_jobs_frame_bytes
from topicsd.engine.queue.timers import WAIT_MS_MAX
from topicsd.engine.requests import AppendAnswer, NewRecord
from topicsd.engine.schedules.schedule import ScheduleState, apply_schedule
from topicsd.engine.schedules.timetable import timetable_of
from topicsd.engine.state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.engine.transfer.dead_letter_stamp import with_stamps
from topicsd.engine.write.append import JobsAppend, PendingAppend, join_append, refuse_full
from topicsd.engine.write.encode_records import encode_records
from topicsd.engine.write.schema_check import refuse_mismatch
from topicsd.log.control_frame import Schedule

logger = logging.getLogger("topicsd.engine")

RETRY_MS: Final = 1000
LOOKS_A_TURN: Final = 50
"""How many schedules one turn of the event loop looks at, about 0.1 ms each."""
TICKS_AT_ONCE: Final = 100
TICK_BYTES_AT_ONCE: Final = 256 << 10
"""Bounds of the jobs that one schedule adds in one turn."""


class ScheduleRunner:
    """The schedules of one shard."""

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self._handle: Any = None
        self._is_soon = False
        self.job_count = 0
        """The number of jobs added since the start."""
        shard.follow_schedules(self.wake)
        self.wake()

    def wake(self) -> None:
        """Look at all schedules in the next turn, if there are any."""
        if self._shard.queues_with_schedules and not self._is_soon:
            self._set_timer(0)
            self._is_soon = True

    def stop(self) -> None:
        self._is_soon = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set_timer(self, wait_ms: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._shard.loop.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._handle, self._is_soon = None, False
        now_ms = self._shard.clock.now_ms()
        if self._shard.is_draining:
            return
        due = [
            (topic, schedule)
            for topic in self._shard.queues_with_schedules
            for schedule in topic.schedules.values()
            if schedule.look_ms <= now_ms and not schedule.is_pending
        ]
        for topic, schedule in due[:LOOKS_A_TURN]:
            try:
                self._look(topic, schedule, now_ms)
            except Exception:
                logger.exception('topic "%s": schedule "%s": unexpected error', topic.name, schedule.name)
                schedule.look_ms, schedule.problem = now_ms + WAIT_MS_MAX, "internal_error"
        # Whatever is pending now calls `wake` when it is published.
        looks_ms = [
            schedule.look_ms
            for topic in self._shard.queues_with_schedules
            for schedule in topic.schedules.values()
            if not schedule.is_pending
        ]
        if looks_ms and not self._is_soon:
            self._set_timer(min(max(min(looks_ms) - now_ms, 0), WAIT_MS_MAX))

    def _look(self, topic: Topic, schedule: ScheduleState, now_ms: int) -> None:
        """Add the jobs of the due ticks of a schedule, and note when to look at it again."""
        rule = schedule.rule
        timetable = timetable_of(rule.cron, rule.time_zone)
        if rule.is_paused or isinstance(timetable, Refusal):
            schedule.look_ms = NEVER
            if isinstance(timetable, Refusal):
                schedule.problem = timetable.code
                logger.error(
                    'topic "%s": schedule "%s" adds no jobs: %s', topic.name, schedule.name, timetable.message
                )
            return
        ticks = timetable.due_ticks(rule.catch_up, schedule.reached_ms, now_ms)
        if ticks:
            refusal = self._add_jobs(topic, schedule, ticks, now_ms)
            if refusal is not None and len(ticks) > 1:
                # There may be room for one job.
                refusal = self._add_jobs(topic, schedule, ticks[:1], now_ms)
            if refusal is not None:
                schedule.problem = refusal.code
                schedule.look_ms = now_ms + RETRY_MS
            return
        schedule.problem = ""
        schedule.look_ms = next(timetable.ticks_after(max(schedule.reached_ms, now_ms)), NEVER)

    def _add_jobs(
        self, topic: Topic, schedule: ScheduleState, ticks: list[int], now_ms: int
    ) -> Refusal | None:
        """Join the jobs of the first of these ticks to the batch of this turn, with the frame of the tick."""
        shard, rule = self._shard, schedule.rule
        if topic.deferred_requests is not None or not topic.visible:
            return throttled("the queue is being moved or deleted")
        size_max = len(rule.data) + len(rule.meta) + 1
        ticks = ticks[: max(1, min(TICKS_AT_ONCE, TICK_BYTES_AT_ONCE // size_max))]
        records = [_record(schedule, tick) for tick in ticks]
        ts = max(now_ms, topic.last_ts)
        encoded = encode_records(
            records, None, topic.topic_id, topic.next_seq, ts, topic.is_durable, shard.stamped_settings
        )
        if isinstance(encoded, Refusal):
            return encoded
        refusal = refuse_full(shard, topic, len(records), encoded[2]) if topic.can_reject else None
        if topic.schema is not None and refusal is None:
            refusal = refuse_mismatch(shard, topic, topic.schema, records)
        size = encoded[2] + new_jobs_frame_bytes(len(records))
        if refusal is None and shard.log.batch.next_position + size > shard.log.admit_limit:
            refusal = shard.log.admit(size, False)
        if refusal is not None:
            return refusal
        step = ScheduleStep(schedule, ticks[-1])
        reply = partial(self._on_added, topic, schedule, len(ticks))
        if rule.priority:
            jobs = NewJobs(0, rule.priority)
            pending: PendingAppend = JobsAppend(jobs, shard, topic, encoded, ts, step, reply, False)
        else:
            pending = PendingAppend(shard, topic, encoded, ts, step, reply, False)
        topic.last_ts = ts
        join_append(shard, topic, pending, now_ms)
        return None

    def _on_added(
        self, topic: Topic, schedule: ScheduleState, count: int, answer: AppendAnswer | Refusal
    ) -> None:
        if isinstance(answer, Refusal):
            schedule.problem = answer.code
            schedule.look_ms = self._shard.clock.now_ms() + RETRY_MS
            self.wake()
        else:
            self.job_count += count


class ScheduleStep(NamedTuple):
    """The schedule and the last tick of one append of jobs; a `WriteIdentity`."""

    schedule: ScheduleState
    reached_ms: int

    def on_join(self, pending: PendingAppend) -> Schedule:
        self.schedule.has_tick = True
        return self._frame(pending)

    def on_commit(self, pending: PendingAppend) -> None:
        self.schedule.has_tick = False
        apply_schedule(pending.shard, pending.topic, self._frame(pending))

    def on_abort(self, pending: PendingAppend) -> None:
        self.schedule.has_tick = False

    def _frame(self, pending: PendingAppend) -> Schedule:
        last_seq = pending.first_seq + len(pending.encoded[1]) - 1
        return Schedule(self.schedule.name, self.reached_ms, last_seq)


def _record(schedule: ScheduleState, tick_ms: int) -> NewRecord:
    """Return the job of a tick, whose meta names the schedule and the tick."""
    rule = schedule.rule
    meta = with_stamps(rule.meta, {"$schedule": schedule.name, "$schedule_ts": tick_ms})
    return NewRecord(msgspec.Raw(rule.data), rule.tag or None, None, msgspec.Raw(meta))
