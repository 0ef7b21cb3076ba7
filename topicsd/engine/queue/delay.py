"""Delayed jobs: the time from which new records are ready, and the frame that logs it.

The frame follows the records in the same batch, so both exist or neither does. A write whose time has passed
already is an ordinary one.
"""

from __future__ import annotations

from typing import Final

from shared.contract.errors import Refusal, excluded, invalid
from shared.text.units import duration_ms, instant_ms
from topicsd.engine.queue.job import DELAYED
from topicsd.engine.requests import AppendRequest
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import Lease, encode_control

DELAY_MS_MAX: Final = 366 * 86_400_000


def due_of(topic: Topic, request: AppendRequest, now_ms: int) -> int | Refusal:
    """Return when the records are ready, 0 for at once. For requests with a delay field only."""
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


def delay_frame_bytes(count: int) -> int:
    """Return an upper bound of the frame size for `count` records."""
    return 128 + 10 * count


def delay_frame(topic: Topic, first_seq: int, count: int, due: int) -> bytes:
    control = Lease(DELAYED, [*range(first_seq, first_seq + count)], [0] * count, deadline=due)
    return encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=topic.config.durable)
