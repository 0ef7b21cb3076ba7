"""New jobs with a delay or a priority, and the frame that logs both.

The frame follows the records in the same batch, so both exist or neither does. A write without a priority
whose time has passed already is an ordinary one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shared.contract.errors import Refusal, excluded, invalid
from shared.text.units import duration_ms, instant_ms
from topicsd.engine.queue.job import DELAYED, READY
from topicsd.engine.requests import AppendRequest
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Lease, encode_control

DELAY_MS_MAX: Final = 366 * 86_400_000
PRIORITY_MAX: Final = 9


class NewJobs(NamedTuple):
    """What distinguishes the jobs of a write from fresh ones."""

    due: int
    """When they are ready, 0 for at once."""
    priority: int


def new_jobs(topic: Topic, request: AppendRequest, now_ms: int) -> NewJobs | Refusal | None:
    """Return the delay and the priority of the jobs, or None without both."""
    priority = request.priority or 0
    if request.priority is not None:
        if topic.queue is None:
            return invalid("priority", f'only queues have it, and topic "{topic.name}" is a log')
        if not 0 <= priority <= PRIORITY_MAX:
            return invalid("priority", f"must be from 0 to {PRIORITY_MAX}, got {priority}", PRIORITY_MAX)
    has_delay = request.delay_ms is not None or request.not_before is not None
    due = _due_of(topic, request, now_ms) if has_delay else 0
    if isinstance(due, Refusal):
        return due
    return NewJobs(due, priority) if due or priority else None


def _due_of(topic: Topic, request: AppendRequest, now_ms: int) -> int | Refusal:
    """Return when the records are ready, 0 for at once."""
    field = "delay_ms" if request.not_before is None else "not_before"
    if request.delay_ms is not None and request.not_before is not None:
        return excluded(field, "delay_ms")
    if topic.queue is None:
        return invalid(field, f'only queues have it, and topic "{topic.name}" is a log')
    delay_ms = None if request.delay_ms is None else duration_ms(field, request.delay_ms)
    not_before = None if request.not_before is None else instant_ms(field, request.not_before, now_ms)
    if isinstance(delay_ms, Refusal):
        return delay_ms
    if isinstance(not_before, Refusal):
        return not_before
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        return invalid(field, f"must be from 0 to {DELAY_MS_MAX} (366 days), got {delay_ms}", DELAY_MS_MAX)
    if not_before is not None and not 0 <= not_before <= now_ms + DELAY_MS_MAX:
        rule = f"must be from 0 to {now_ms + DELAY_MS_MAX} (366 days from now), got {not_before}"
        return invalid(field, rule, now_ms + DELAY_MS_MAX)
    due = now_ms + (delay_ms or 0) if not_before is None else not_before
    return due if due > now_ms else 0


def new_jobs_frame_bytes(count: int) -> int:
    """Return an upper bound of the frame size for `count` records."""
    return 128 + 10 * count


def new_jobs_frame(topic: Topic, first_seq: int, count: int, jobs: NewJobs) -> bytes:
    control = Lease(
        DELAYED if jobs.due else READY,
        [*range(first_seq, first_seq + count)],
        [0] * count,
        deadline=jobs.due,
        priority=jobs.priority,
    )
    return encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=topic.config.durable)
