"""The report of `inspect` as text and tables for a terminal.

The most urgent facts are first: problems, how the last run ended, whether the shard starts, and where heads
resume. The inventory follows.
"""

from __future__ import annotations

import msgspec

from shared.ipc.placement import PLACEMENT_NAME, Placement
from topicsd.offline.report.shard import DepartedReport, FileReport, ShardReport
from topicsd.offline.report.topic import LostSeqs, OwnershipReport, TopicReport
from topicsd.offline.report.topic_parts import (
    cursor_sentence,
    cursor_table,
    queue_sentence,
    queue_table,
    route_sentence,
    route_table,
    schedule_sentence,
    schedule_table,
)
from topicsd.offline.table import (
    NOTHING,
    escape_unprintable,
    facts,
    plural,
    size,
    table,
    utc,
    utc_or_nothing,
)

COPY_NOTE = (
    "An outdated copy cannot be detected: a copy of a data directory that lacks what its original wrote "
    "later looks complete."
)

NAME_WIDTH = 10
EXCEPTIONS_SHOWN = 20


def placement_text(placement: Placement) -> list[str]:
    """Return a line about the exceptions, if there are any, and one for each of the first of them."""
    if not placement.exceptions:
        return []
    exceptions = [f'  topic "{name}" has shard {shard}' for name, shard in placement.exceptions.items()]
    left = len(exceptions) - EXCEPTIONS_SHOWN
    title = f"  {PLACEMENT_NAME}: version {placement.version}, {plural(len(exceptions), 'exception')}"
    more = [f"    and {left} more; --json shows all"] if left > 0 else []
    return [title, *(f"  {line}" for line in exceptions[:EXCEPTIONS_SHOWN]), *more]


def shard_text(report: ShardReport) -> list[str]:
    lines = [f"shard {report.shard:02d}  {report.path}"]
    lines += facts([("WRONG", problem) for problem in report.problems], name_width=NAME_WIDTH)
    lines += facts(
        [
            ("last run", report.last_run_means or NOTHING),
            ("heads", heads_sentence(report)),
            ("log", _log_sentence(report)),
            *(("note", note) for note in report.notes),
            *_catalog_note(report),
        ],
        name_width=NAME_WIDTH,
    )
    if report.files:
        lines += ["", *_files_table(report.files)]
    if report.quarantine:
        rows = [(escape_unprintable(file.name), size(file.size_bytes)) for file in report.quarantine]
        lines += ["", *table(("QUARANTINE", ">SIZE"), rows)]
    if report.topics:
        lines += ["", *_topics_table(report.topics)]
    if report.departed:
        lines += ["", *_departed_table(report.departed)]
    for table_of in (_queues, _schedules, _routes, _cursors):
        if section := table_of(report.topics):
            lines += ["", *section]
    losses = [line for topic in report.topics for line in _loss_lines(topic, report.starts)]
    if losses:
        lines += ["", *losses]
    return lines


def _catalog_note(report: ShardReport) -> list[tuple[str, str]]:
    count = report.rows_to_forget
    return [("catalog", f"{plural(count, 'row')} of deleted topics still to be removed")] if count else []


def heads_sentence(report: ShardReport) -> str:
    """Return a sentence about the heads of the topics after a start."""
    if not report.starts:
        return "unknown: the shard cannot start until it is repaired"
    if report.heads_exact:
        when = "if the process died now, " if report.in_use_by is not None else ""
        return f"exact: {when}a start resumes where the log ends"
    losing_topics = [
        topic for topic in report.topics if topic.after_restart.lost is not None and not _is_memory(topic)
    ]
    if not losing_topics:
        return (
            "not known to be exact, but no topic has a ceiling above its head: nothing would be reported lost"
        )
    return (
        "NOT EXACT: a start resumes each head at its ceiling, so that no seq is used twice, and reports "
        f"the seqs in between as lost: {plural(len(losing_topics), 'topic')}, see below"
    )


def _log_sentence(report: ShardReport) -> str:
    if not report.files:
        return "empty"
    batches = sum(file.batches for file in report.files)
    frames = sum(file.frames for file in report.files)
    used = sum(file.used_bytes for file in report.files)
    counts = [plural(len(report.files), "file"), plural(batches, "batch", "batches"), plural(frames, "frame")]
    return f"{', '.join(counts)}, {size(used)}; {report.end}"


def _files_table(files: list[FileReport]) -> list[str]:
    headers = (
        "FILE",
        ">SIZE",
        ">USED",
        ">ORDINALS",
        ">BATCHES",
        ">FRAMES",
        ">SYNCED TO",
        "MADE",
        "END",
    )
    rows = [
        (
            file.name,
            size(file.size_bytes),
            size(file.used_bytes),
            f"{file.first_ordinal}-{file.last_ordinal}" if file.batches else NOTHING,
            f"{file.batches:,}",
            f"{file.frames:,}",
            str(file.synced_offset),
            utc_or_nothing(file.made_ts),
            file.end,
        )
        for file in files
    ]
    return table(headers, rows)


def _topics_table(topics: list[TopicReport]) -> list[str]:
    headers = (
        "TOPIC",
        "CLASS",
        ">HEAD",
        ">EARLIEST",
        ">FLOOR",
        ">DURABLE",
        ">RECORDS",
        ">BYTES",
        ">CEILING",
        "LAST WRITE",
    )
    rows = [
        (
            escape_unprintable(topic.topic),
            topic.durability,
            _number(topic.head_seq),
            _number(topic.earliest_seq),
            _number(topic.evict_floor),
            str(topic.durable_seq),
            _number(topic.count),
            NOTHING if topic.bytes is None else size(topic.bytes),
            str(topic.ceiling) if topic.durability != "fsync" else NOTHING,
            utc_or_nothing(topic.last_write_ts),
        )
        for topic in topics
    ]
    return table(headers, rows)


def _departed_table(departed: list[DepartedReport]) -> list[str]:
    headers = ("DEPARTED", "STATE", "NODE", ">OWNER EPOCH", ">KEPT UP TO", "SINCE")
    rows = [
        (
            escape_unprintable(one.topic),
            one.state,
            one.node or NOTHING,
            str(one.owner_epoch),
            _number(one.head_seq),
            utc(one.since_ts),
        )
        for one in departed
    ]
    return table(headers, rows)


def _queues(topics: list[TopicReport]) -> list[str]:
    return queue_table((topic.topic, topic.queue) for topic in topics if topic.queue is not None)


def _schedules(topics: list[TopicReport]) -> list[str]:
    return schedule_table((topic.topic, schedule) for topic in topics for schedule in topic.schedules)


def _routes(topics: list[TopicReport]) -> list[str]:
    return route_table(route for topic in topics for route in topic.routes)


def _cursors(topics: list[TopicReport]) -> list[str]:
    return cursor_table((topic.topic, cursor) for topic in topics for cursor in topic.cursors)


def _loss_lines(topic: TopicReport, starts: bool) -> list[str]:
    """Return the losses that readers of the topic see, now or after a start if the shard starts."""
    name = escape_unprintable(topic.topic)
    sentences = [
        f'topic "{name}" lost records up to seq {last} by {reason}'
        for reason, last in topic.evicted_to.items()
    ]
    sentences += [f'topic "{name}" lost {_range(lost)}' for lost in topic.lost_ranges]
    lost = topic.after_restart.lost
    if starts and lost is not None:
        head = topic.after_restart.head_seq
        sentences.append(
            f'topic "{name}" is in memory only: after a start its head is {head} and it has no records'
            if _is_memory(topic)
            else f'topic "{name}" WOULD RESUME at {head} and report {_range(lost)} as lost'
        )
    return [f"  {line}" for line in sentences]


def topic_text(report: ShardReport, topic: TopicReport) -> list[str]:
    """Return the lines about one topic in detail."""
    pairs = [
        ("shard", f"{report.shard:02d}"),
        ("id", f"{topic.topic_id}, epoch {topic.epoch} (the ordinal of its creation in the log)"),
        ("class", topic.durability),
        ("head", "in memory only" if topic.head_seq is None else str(topic.head_seq)),
        ("durable", _durable_sentence(topic)),
        ("restart", _restart_sentence(report, topic)),
    ]
    if topic.head_seq is not None:
        live = f"{plural(topic.count or 0, 'record')}, {size(topic.bytes or 0)}"
        pairs += [("live", f"{live}, from seq {topic.earliest_seq}"), ("floor", _floor_sentence(topic))]
    if topic.durability != "fsync":
        pairs.append(("ceiling", f"{topic.ceiling}: no seq above it was ever used"))
    pairs += [("lost", _range(lost)) for lost in topic.lost_ranges]
    if topic.ownership is not None:
        pairs.append(("owner", _ownership_sentence(topic.ownership)))
    if topic.queue is not None:
        pairs.append(("queue", queue_sentence(topic.queue)))
    pairs += [("schedule", schedule_sentence(schedule)) for schedule in topic.schedules]
    pairs += [("route", route_sentence(route)) for route in topic.routes]
    pairs += [("cursor", cursor_sentence(cursor)) for cursor in topic.cursors]
    pairs.append(("last write", utc(topic.last_write_ts) if topic.last_write_ts else "never"))
    changed = ", ".join(f"{name}={_value(value)}" for name, value in topic.config_not_default.items())
    pairs.append(("config", changed or "all defaults"))
    return [f'topic "{escape_unprintable(topic.topic)}"', *facts(pairs, name_width=NAME_WIDTH)]


def _durable_sentence(topic: TopicReport) -> str:
    if topic.head_seq is None:
        return "nothing: its records are in memory only"
    if topic.durable_seq >= topic.head_seq:
        return "every record is known to be on the disk"
    return f"records up to seq {topic.durable_seq} are known to be on the disk; later ones may not be"


def _restart_sentence(report: ShardReport, topic: TopicReport) -> str:
    after = topic.after_restart
    if not report.starts:
        return "none: the shard cannot start"
    if _is_memory(topic):
        return f"the head would be {after.head_seq}, and no record would be left"
    if after.lost is None:
        return f"the head would be {after.head_seq}, and nothing would be reported lost"
    head = f"the head would be {after.head_seq}, its ceiling"
    return f"{head}, and {_range(after.lost)} would be reported as lost"


def _ownership_sentence(owned: OwnershipReport) -> str:
    if not owned.owner_epoch:
        return "this node; the catalog is not known to have a row of the topic yet"
    said = f"this node, owner epoch {owned.owner_epoch}, ceiling {owned.ceiling}"
    seal = "; a seal was sent, and a start repeats it" if owned.is_sealing else ""
    return f"{said}, exported to seq {owned.exported_to}{seal}"


def _floor_sentence(topic: TopicReport) -> str:
    if not topic.evicted_to:
        return f"{topic.evict_floor}: no records were lost to a cap or to age"
    reasons = ", ".join(f"up to {last} by {reason}" for reason, last in topic.evicted_to.items())
    return f"{topic.evict_floor}: records were lost {reasons}"


def _range(lost: LostSeqs) -> str:
    return f"seqs {lost.gap_from} to {lost.gap_to} ({lost.reason})"


def _is_memory(topic: TopicReport) -> bool:
    return topic.durability == "ephemeral"


def _number(number: int | None) -> str:
    return NOTHING if number is None else str(number)


def _value(value: object) -> str:
    return msgspec.json.encode(value).decode()
