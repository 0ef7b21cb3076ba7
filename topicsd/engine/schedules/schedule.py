"""The schedules of a queue in memory, in the log and in snapshots.

C1  The frame of a tick is in the same batch as its jobs, so both are in the log or neither is.
C2  `reached_ms` never moves back, and only ticks after it get jobs. So each tick gets its jobs once, over
    restarts, moves and checkpoints.
C3  While a change of a schedule is pending, none of its ticks gets a job: a tick is always one of the rule
    that precedes it in the log.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.schedule_rule import ScheduleRule
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Schedule

SCHEDULES: Final = "schedules"
"""The name of the section in a topic of a snapshot."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Schedule]).decode


class ScheduleState:
    """One schedule of a queue."""

    __slots__ = ("change_count", "has_tick", "last_seq", "look_ms", "name", "problem", "reached_ms", "rule")

    def __init__(self, name: str, rule: ScheduleRule, reached_ms: int, last_seq: int) -> None:
        self.name = name
        self.rule = rule
        self.reached_ms = reached_ms
        self.last_seq = last_seq
        self.look_ms = 0
        """When to look for ticks again; 0 for at once."""
        self.change_count = 0
        """The number of pending changes of the schedule."""
        self.has_tick = False
        """Whether a tick of the schedule is pending."""
        self.problem = ""
        """Why the newest tick has no job yet; empty when nothing is wrong."""

    @property
    def is_pending(self) -> bool:
        """Return whether a change or a tick is pending; the runner is woken when it is published."""
        return self.has_tick or self.change_count > 0


def apply_schedule(shard: ShardData, topic: Topic, control: Schedule) -> bool:
    """Apply the frame of a schedule; return whether it created or deleted one."""
    known = topic.schedules.get(control.name)
    if control.is_gone or known is None:
        schedules = {**topic.schedules}
        if control.is_gone:
            schedules.pop(control.name, None)
        elif control.rule is not None:
            schedules[control.name] = _state(control, control.rule)
        topic.schedules = schedules
    else:
        known.rule = control.rule or known.rule
        known.reached_ms = max(known.reached_ms, control.reached_ms)
        known.last_seq = max(known.last_seq, control.last_seq)
        known.look_ms = 0
        known.problem = ""
    shard.note_schedules(topic)
    return (known is None) != control.is_gone


def schedule_section(topic: Topic) -> dict[str, bytes]:
    """Return the snapshot section of the schedules."""
    if not topic.schedules:
        return {}
    states = topic.schedules.values()
    return {
        SCHEDULES: _encode([Schedule(one.name, one.reached_ms, one.last_seq, one.rule) for one in states])
    }


def schedules_of(sections: dict[str, bytes]) -> dict[str, ScheduleState]:
    frames = _decode(sections[SCHEDULES]) if SCHEDULES in sections else []
    return {one.name: _state(one, one.rule) for one in frames if one.rule is not None}


def _state(control: Schedule, rule: ScheduleRule) -> ScheduleState:
    return ScheduleState(control.name, rule, control.reached_ms, control.last_seq)
