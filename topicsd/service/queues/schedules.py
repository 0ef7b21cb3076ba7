"""Handlers of the endpoints of schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shared.contract.errors import RECORD_TOO_LARGE, Refusal, invalid
from shared.contract.json_bounds import may_hold_nul
from shared.contract.schedule_rule import CATCH_UP, ScheduleRule
from shared.settings.settings import Settings
from shared.text.message import quoted, size_text
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.queue.delay import PRIORITY_MAX
from topicsd.engine.requests import NO_META, NewRecord
from topicsd.engine.schedules.change import (
    ScheduleDeleted,
    SchedulePut,
    delete_schedule,
    find_schedule,
    next_tick,
    put_schedule,
)
from topicsd.engine.schedules.schedule import ScheduleState
from topicsd.engine.state import ShardState
from topicsd.service.call import Call, Performance, reply_of
from topicsd.service.input.bodies import refuse_json_of, refuse_nul_in
from topicsd.service.input.json_body import JsonBody
from topicsd.service.render import encode

_NULL: Final = msgspec.Raw(b"null")


class ScheduleBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    cron: str
    time_zone: str = "UTC"
    data: msgspec.Raw = _NULL
    meta: msgspec.Raw = NO_META
    tag: str | None = None
    priority: int = 0
    catch_up: str = "last"
    paused: bool = False


_BODY: Final = JsonBody(ScheduleBody, '{"cron":"0 3 * * *","data":{"task":"report"}}')


def decode_schedule(body: bytes, limits: Settings) -> ScheduleRule | Refusal:
    fields = _BODY.decode(body)
    if isinstance(fields, Refusal):
        return fields
    refusal = refuse_nul_in("tag", [fields.tag]) if may_hold_nul(body) else None
    if not 0 <= fields.priority <= PRIORITY_MAX:
        rule = f"must be from 0 to {PRIORITY_MAX}, got {fields.priority}"
        refusal = refusal or invalid("priority", rule, PRIORITY_MAX)
    if fields.catch_up not in CATCH_UP:
        rule = f"must be {', '.join(CATCH_UP[:-1])} or {CATCH_UP[-1]}, got {quoted(fields.catch_up)}"
        refusal = refusal or invalid("catch_up", rule)
    record = NewRecord(fields.data, meta=fields.meta)
    refusal = refusal or refuse_json_of(record, limits.max_meta_bytes) or _refuse_size(fields, limits)
    return refusal or ScheduleRule(
        fields.cron,
        fields.time_zone,
        bytes(record.data),
        bytes(record.meta),
        fields.tag or "",
        fields.priority,
        fields.catch_up,
        fields.paused,
    )


def _refuse_size(fields: ScheduleBody, limits: Settings) -> Refusal | None:
    """Refuse a record that no append may have."""
    data_bytes, meta_bytes, tag_bytes = len(fields.data), len(fields.meta), len((fields.tag or "").encode())
    for field, size, bound in (
        ("tag", tag_bytes, limits.max_tag_bytes),
        ("meta", meta_bytes, limits.max_meta_bytes),
    ):
        if size > bound:
            return invalid(field, f"must be at most {size_text(bound)}, got {size_text(size)}", bound)
    bound, size = limits.max_record_bytes, data_bytes + meta_bytes
    if size <= bound:
        return None
    message = f"data: data and meta must be at most {size_text(bound)} together, got {size} bytes"
    return Refusal(RECORD_TOO_LARGE, message, {"field": "data", "max": bound})


class ScheduleHandlers:
    def __init__(self, shard: ShardState, settings: Settings, performance: Performance) -> None:
        self._shard = shard
        self._settings = settings
        self._performance = performance
        self.table: dict[str, Callable[[Call], None]] = {
            "put_schedule": self._put,
            "schedule_state": self._state,
            "delete_schedule": self._delete,
            "list_schedules": self._list,
        }

    def _put(self, call: Call) -> None:
        rule = decode_schedule(call.body, self._settings)
        if isinstance(rule, Refusal):
            call.refuse(rule)
            return

        def respond(answer: SchedulePut) -> None:
            members = {"topic": call.name, **self._members(answer.schedule), "created": answer.created}
            status = 201 if answer.created else 200
            call.send(encode({**members, "performance": self._performance(call)}), status)

        put_schedule(self._shard, call.name, call.item, rule, reply_of(call, respond))

    def _state(self, call: Call) -> None:
        schedule = find_schedule(self._shard, call.name, call.item)
        if isinstance(schedule, Refusal):
            call.refuse(schedule)
            return
        members = {"topic": call.name, **self._members(schedule)}
        call.send(encode({**members, "performance": self._performance(call)}))

    def _delete(self, call: Call) -> None:
        def respond(answer: ScheduleDeleted) -> None:
            body = {"topic": call.name, "schedule": answer.name, "deleted": answer.deleted}
            call.send(encode({**body, "performance": self._performance(call)}))

        delete_schedule(self._shard, call.name, call.item, reply_of(call, respond))

    def _list(self, call: Call) -> None:
        queue = queue_of(self._shard, call.name)
        if isinstance(queue, Refusal):
            call.refuse(queue)
            return
        schedules = [self._members(schedule) for _, schedule in sorted(queue[0].schedules.items())]
        body = {"topic": call.name, "schedules": schedules}
        call.send(encode({**body, "performance": self._performance(call)}))

    def _members(self, schedule: ScheduleState) -> dict[str, object]:
        rule = schedule.rule
        members: dict[str, object] = {
            "schedule": schedule.name,
            "cron": rule.cron,
            "time_zone": rule.time_zone,
            "data": msgspec.Raw(rule.data),
            "meta": msgspec.Raw(rule.meta or b"{}"),
            "tag": rule.tag or None,
            "priority": rule.priority,
            "catch_up": rule.catch_up,
            "paused": rule.is_paused,
            "next_ts": next_tick(schedule, self._shard.clock.now_ms()),
            "last_seq": schedule.last_seq,
        }
        return {**members, "problem": schedule.problem} if schedule.problem else members
