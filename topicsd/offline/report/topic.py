"""The report about one topic, which is printed as JSON or as text.

Field names are those of the API where the API has the same field. Counts and floors are those that a reader
would receive now: records older than the topic's TTL count as evicted, even before a server evicts them.

An ephemeral topic has no records in the log, so only a running server knows its head and counts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contract.topic_config import TopicConfig
from topicsd.engine.records.durable_seq import durable_seq_at
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.retention.retention import expire
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import lost_tail
from topicsd.offline.report.topic_parts import (
    CursorReport,
    QueueReport,
    RouteReport,
    ScheduleReport,
    cursor_reports,
    queue_report,
    route_reports,
    schedule_reports,
)

DEFAULTS = TopicConfig().members()


class LostSeqs(msgspec.Struct, frozen=True):
    """A range of lost seqs and the reason."""

    gap_from: int
    gap_to: int
    reason: str


class AfterRestart(msgspec.Struct, frozen=True):
    """The head at which a start would resume the topic now, and the seqs lost by it."""

    head_seq: int
    lost: LostSeqs | None


class OwnershipReport(msgspec.Struct, frozen=True):
    """What the shard knows of the topic's row in the catalog."""

    owner_epoch: int
    """0 before the row is known to exist."""
    ceiling: int
    """No seq above it is given out."""
    exported_to: int
    """The last seq of the segments that are in the object store without a gap; 0 if there are none."""
    is_sealing: bool
    """Whether a seal was sent whose answer is not known: a start repeats it."""


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one topic. None means that only a running server knows the value."""

    topic: str
    topic_id: str
    epoch: int
    durability: str
    head_seq: int | None
    durable_seq: int
    """The highest seq that the log proves to be on the disk; later ones may be there too."""
    earliest_seq: int | None
    evict_floor: int | None
    evicted_to: dict[str, int]
    """The last live seq lost to eviction, by reason."""
    lost_ranges: list[LostSeqs]
    count: int | None
    bytes: int | None
    ceiling: int
    last_write_ts: int
    config: dict[str, Any]
    config_not_default: dict[str, Any]
    after_restart: AfterRestart
    queue: QueueReport | None
    cursors: list[CursorReport]
    schedules: list[ScheduleReport]
    routes: list[RouteReport]
    """The routes into this topic."""
    ownership: OwnershipReport | None = None
    """None without a catalog."""


def topic_report(topic: Topic, synced_position: int, heads_exact: bool, now_ms: int) -> TopicReport:
    expire(topic, now_ms)
    config = topic.config.members()
    is_logged = not topic.is_ephemeral
    return TopicReport(
        topic=topic.name,
        topic_id=f"{topic.topic_id:016x}",
        epoch=topic.epoch,
        durability=topic.config.durability,
        head_seq=topic.head if is_logged else None,
        durable_seq=durable_seq_at(topic, synced_position),
        earliest_seq=topic.earliest_seq if is_logged else None,
        evict_floor=topic.evict_floor if is_logged else None,
        evicted_to=dict(topic.evicted_to),
        lost_ranges=[LostSeqs(*lost) for lost in topic.lost.ranges],
        count=topic.live_count if is_logged else None,
        bytes=topic.live_bytes if is_logged else None,
        ceiling=topic.ceiling,
        last_write_ts=topic.last_ts,
        config=config,
        config_not_default={name: value for name, value in config.items() if value != DEFAULTS[name]},
        after_restart=_after_restart(topic, heads_exact),
        queue=queue_report(topic, now_ms),
        cursors=cursor_reports(topic),
        schedules=schedule_reports(topic),
        routes=route_reports(topic),
        ownership=_ownership(topic),
    )


def _ownership(topic: Topic) -> OwnershipReport | None:
    owned = topic.ownership
    if owned is None:
        return None
    exported_to = 0
    for run in topic.runs:
        if not isinstance(run, SealedRun) or not run.entry.object_stem:
            break
        exported_to = run.next_seq - 1
    return OwnershipReport(owned.owner_epoch, owned.ceiling, exported_to, owned.seal_key != "")


def _after_restart(topic: Topic, heads_exact: bool) -> AfterRestart:
    if topic.is_ephemeral:
        everything = LostSeqs(1, topic.ceiling, "crash") if topic.ceiling else None
        return AfterRestart(topic.ceiling, everything)
    lost = lost_tail(topic, heads_exact)
    if lost is None:
        return AfterRestart(topic.head, None)
    return AfterRestart(lost.last, LostSeqs(*lost))


def fill_lags(topics: list[TopicReport], sources: list[TopicReport] | None = None) -> None:
    """Set the lag of each route into `topics`; `sources` has the routes' sources, else `topics`."""
    heads = {topic.topic: topic.head_seq for topic in (topics if sources is None else sources)}
    for topic in topics:
        for route in topic.routes:
            head = heads.get(route.source)
            route.lag = None if head is None else max(0, head - route.position)
