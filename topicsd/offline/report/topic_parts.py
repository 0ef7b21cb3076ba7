"""Queue, schedules, cursors and routes of one topic for `inspect`, as reports and as tables.

Field names are those of the API. Leases kept in memory are in no file, so offline their jobs count as ready.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topicsd.engine.read.cursors import records_after
from topicsd.engine.topic import Topic
from topicsd.offline.table import NOTHING, escape_unprintable, plural, table, utc


class QueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a queue by state."""

    ready: int
    in_flight: int
    delayed: int
    blocked: int
    parked: int
    dead_lettered: int
    paused: bool
    leases_durable: bool


class CursorReport(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str
    from_seq: int
    set_ts: int
    lag_records: int


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    schedule: str
    cron: str
    time_zone: str
    catch_up: str
    paused: bool
    reached_ts: int
    last_seq: int


class RouteReport(msgspec.Struct, kw_only=True):
    """A route into the topic. `position` is the last seq of the source that the route has read."""

    name: str
    source: str
    dest: str
    filter: list[str] | None
    guarantee: str
    position: int
    lag: int | None = None
    """The number of seqs of the source that the route has not read; None when the head is unknown."""
    forwarded_total: int


def queue_report(topic: Topic, now_ms: int) -> QueueReport | None:
    queue = topic.queue
    if queue is None:
        return None
    queue.collect(now_ms)
    counts = queue.counts()
    return QueueReport(
        ready=counts.ready,
        in_flight=counts.in_flight,
        delayed=counts.delayed,
        blocked=counts.blocked,
        parked=counts.parked,
        dead_lettered=counts.dead_lettered,
        paused=topic.config.paused,
        leases_durable=topic.config.leases_durable,
    )


def cursor_reports(topic: Topic) -> list[CursorReport]:
    cursors = sorted(topic.cursors.values(), key=lambda one: one.name)
    lags = records_after(topic, [one.from_seq for one in cursors])
    return [
        CursorReport(cursor=one.name, from_seq=one.from_seq, set_ts=one.set_ms, lag_records=lag)
        for one, lag in zip(cursors, lags, strict=True)
    ]


def schedule_reports(topic: Topic) -> list[ScheduleReport]:
    return [
        ScheduleReport(
            schedule=name,
            cron=one.rule.cron,
            time_zone=one.rule.time_zone,
            catch_up=one.rule.catch_up,
            paused=one.rule.is_paused,
            reached_ts=one.reached_ms,
            last_seq=one.last_seq,
        )
        for name, one in sorted(topic.schedules.items())
    ]


def route_reports(topic: Topic) -> list[RouteReport]:
    return [
        RouteReport(
            name=forward.rule.name,
            source=forward.rule.source,
            dest=forward.rule.dest,
            filter=forward.rule.tags,
            guarantee="exactly_once" if forward.rule.is_exactly_once else "at_least_once",
            position=forward.seq,
            forwarded_total=forward.forwarded_total,
        )
        for _, forward in sorted(topic.routes.items())
    ]


# -- text --------------------------------------------------------------------------------------------------


def queue_table(queues: Iterable[tuple[str, QueueReport]]) -> list[str]:
    headers = (
        "QUEUE",
        ">READY",
        ">IN FLIGHT",
        ">DELAYED",
        ">BLOCKED",
        ">PARKED",
        ">DEAD LETTERED",
        "LEASES",
        "STATE",
    )
    rows = [
        (
            escape_unprintable(name),
            f"{queue.ready:,}",
            f"{queue.in_flight:,}",
            f"{queue.delayed:,}",
            f"{queue.blocked:,}",
            f"{queue.parked:,}",
            f"{queue.dead_lettered:,}",
            "in the log" if queue.leases_durable else "in memory",
            "paused" if queue.paused else "open",
        )
        for name, queue in queues
    ]
    return table(headers, rows) if rows else []


def cursor_table(cursors: Iterable[tuple[str, CursorReport]]) -> list[str]:
    headers = ("CURSOR", "TOPIC", ">FROM SEQ", ">LAG", "SET")
    rows = [
        (
            escape_unprintable(one.cursor),
            escape_unprintable(topic),
            str(one.from_seq),
            f"{one.lag_records:,}",
            utc(one.set_ts),
        )
        for topic, one in cursors
    ]
    return table(headers, rows) if rows else []


def schedule_table(schedules: Iterable[tuple[str, ScheduleReport]]) -> list[str]:
    headers = ("SCHEDULE", "QUEUE", "CRON", "TIME ZONE", "CATCH UP", "REACHED", ">LAST SEQ", "STATE")
    rows = [
        (
            escape_unprintable(one.schedule),
            escape_unprintable(queue),
            escape_unprintable(one.cron),
            escape_unprintable(one.time_zone),
            one.catch_up,
            utc(one.reached_ts),
            str(one.last_seq or NOTHING),
            "paused" if one.paused else "open",
        )
        for queue, one in schedules
    ]
    return table(headers, rows) if rows else []


def route_table(routes: Iterable[RouteReport]) -> list[str]:
    headers = ("ROUTE", "SOURCE", "DEST", ">POSITION", ">LAG", ">COPIED", "GUARANTEE", "FILTER")
    rows = [
        (
            escape_unprintable(one.name),
            escape_unprintable(one.source),
            escape_unprintable(one.dest),
            str(one.position),
            "?" if one.lag is None else f"{one.lag:,}",
            f"{one.forwarded_total:,}",
            one.guarantee,
            filter_text(one.filter),
        )
        for one in routes
    ]
    return table(headers, rows) if rows else []


def filter_text(tags: list[str] | None) -> str:
    """Return the filter of a route as JSON, or "none".

    >>> filter_text(["tag", "Glob", "paid.*"]), filter_text(None)
    ('["tag","Glob","paid.*"]', 'none')
    """
    return "none" if tags is None else escape_unprintable(msgspec.json.encode(tags))


def queue_sentence(queue: QueueReport) -> str:
    counts = {
        "ready": queue.ready,
        "in flight": queue.in_flight,
        "delayed": queue.delayed,
        "blocked": queue.blocked,
        "parked": queue.parked,
        "dead lettered": queue.dead_lettered,
    }
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no jobs"
    where = "" if queue.leases_durable else "; leases are in memory, so a job that is held counts as ready"
    return f"{'paused: ' if queue.paused else ''}{said}{where}"


def cursor_sentence(cursor: CursorReport) -> str:
    lag = plural(cursor.lag_records, "record")
    name = escape_unprintable(cursor.cursor)
    return f"{name}: after seq {cursor.from_seq}, {lag} behind, set {utc(cursor.set_ts)}"


def schedule_sentence(schedule: ScheduleReport) -> str:
    name, cron = escape_unprintable(schedule.schedule), escape_unprintable(schedule.cron)
    state = "paused, " if schedule.paused else ""
    last = f"last job is seq {schedule.last_seq}" if schedule.last_seq else "no job yet"
    zone = escape_unprintable(schedule.time_zone)
    return f"{name}: {state}{cron} in {zone}, reached {utc(schedule.reached_ts)}, {last}"


def route_sentence(route: RouteReport) -> str:
    lag = "unknown" if route.lag is None else f"{route.lag:,}"
    ends = f'from "{escape_unprintable(route.source)}" to "{escape_unprintable(route.dest)}"'
    said = f"{escape_unprintable(route.name)}: {ends}, position {route.position}, lag {lag}"
    copied = f"{plural(route.forwarded_total, 'copy', 'copies')}, {route.guarantee}"
    return f"{said}, {copied}, filter {filter_text(route.filter)}"
