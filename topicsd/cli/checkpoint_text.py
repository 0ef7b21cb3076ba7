"""The report of `inspect --checkpoint` as text and tables for a terminal."""

from __future__ import annotations

from topicsd.cli.inspect_text import NAME_WIDTH
from topicsd.disk.layout import segment_stem, topic_dir_name, wal_name
from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.offline.report.checkpoint import CheckpointReport, PublishedReport, ReaderReport, SnapshotReport
from topicsd.offline.table import NOTHING, escape_unprintable, facts, plural, size, table, utc_or_nothing
from topicsd.segment.entry import SegmentEntry


def checkpoint_text(report: CheckpointReport) -> list[str]:
    lines = [f"shard {report.shard:02d}  {report.path}"]
    lines += facts([("WRONG", problem) for problem in report.problems], name_width=NAME_WIDTH)
    trash = f"{plural(report.trash_files, 'file')}, {size(report.trash_bytes)}"
    lines += facts(
        [
            ("start", _start_sentence(report)),
            ("published", _published_sentence(report.published, report.used)),
            ("trash", trash if report.trash_files else "empty"),
            *(("reader", _reader_sentence(reader)) for reader in report.readers),
        ],
        name_width=NAME_WIDTH,
    )
    if report.snapshots:
        lines += ["", *_snapshots_table(report.snapshots)]
    if report.topics:
        lines += ["", *_topics_table(report.topics)]
    return lines


def _start_sentence(report: CheckpointReport) -> str:
    used = next((one for one in report.snapshots if one.number == report.used), None)
    if used is not None and used.replay_from is not None:
        place = used.replay_from
        return (
            f"uses snapshot {used.number} and reads the log from ordinal {place.ordinal}, at offset "
            f"{place.offset} of {wal_name(place.file)}"
        )
    if report.snapshots:
        return "finds no usable snapshot"
    return "reads the whole log: there is no checkpoint yet"


def _published_sentence(published: PublishedReport | None, used: int | None) -> str:
    if published is None:
        return "nothing for outside readers"
    cold = "" if published.store_url is None else f", object store {escape_unprintable(published.store_url)}"
    topics = plural(published.topic_count, "topic")
    difference = (
        "" if published.number == used else f", while a start uses {NOTHING if used is None else used}"
    )
    return f"snapshot {published.number}, {utc_or_nothing(published.made_ts)}: {topics}{cold}{difference}"


def _reader_sentence(reader: ReaderReport) -> str:
    if reader.held_by is None:
        return f"{escape_unprintable(reader.name)}: stale, or held by a process that is not visible from here"
    return f"{escape_unprintable(reader.name)}: process {reader.held_by} holds the files in trash/"


def _snapshots_table(snapshots: list[SnapshotReport]) -> list[str]:
    headers = ("SNAPSHOT", ">SIZE", "MADE", ">FROM ORDINAL", ">TO", ">TOPICS", ">SEGMENTS", ">KEYS", "STATE")
    rows = []
    for snapshot in snapshots:
        contents = [NOTHING] * 5
        if snapshot.replay_from is not None:
            counts = (snapshot.topic_count, snapshot.segment_count, snapshot.idempotency_keys)
            contents = [
                str(snapshot.replay_from.ordinal),
                str(snapshot.complete_to_ordinal),
                *(f"{n:,}" for n in counts),
            ]
        state = "NOT USED" if snapshot.damage else "good"
        rows.append(
            (snapshot.name, size(snapshot.size_bytes), utc_or_nothing(snapshot.made_ts), *contents, state)
        )
    return table(headers, rows)


def _topics_table(topics: list[SnapshotTopic]) -> list[str]:
    headers = (
        "TOPIC",
        ">HEAD",
        ">EARLIEST",
        ">FLOOR",
        ">COMPLETE TO",
        ">SEGMENTS",
        ">COLD",
        ">RECORDS",
        ">DATA",
    )
    rows = [
        (
            escape_unprintable(topic.name),
            str(topic.head),
            str(topic.earliest_seq),
            str(topic.evict_floor),
            str(topic.complete_to),
            f"{len(topic.segments):,}",
            f"{sum(segment.tier == 'cold' for segment in topic.segments):,}",
            f"{sum(segment.live_count for segment in topic.segments):,}",
            size(sum(segment.data_bytes for segment in topic.segments)),
        )
        for topic in topics
    ]
    return table(headers, rows)


def topic_checkpoint_text(report: CheckpointReport, topic: SnapshotTopic) -> list[str]:
    """Return the lines about one topic in detail, with its segments."""
    lost = [("lost", f"seqs {first} to {last} ({reason})") for first, last, reason in topic.lost]
    sections = [
        ("section", f"{escape_unprintable(name)}: {size(len(state))}")
        for name, state in topic.sections.items()
    ]
    pairs = [
        ("shard", f"{report.shard:02d}, snapshot {report.used}"),
        ("directory", f"topics/{topic_dir_name(topic.topic_id, topic.epoch)}"),
        ("complete", f"includes its frames below ordinal {topic.complete_to}"),
        ("head", f"{topic.head}, ceiling {topic.ceiling}"),
        ("live", f"from seq {topic.earliest_seq}, floor {topic.evict_floor}"),
        *lost,
        ("last write", utc_or_nothing(topic.last_ts)),
        *sections,
    ]
    lines = [f'topic "{escape_unprintable(topic.name)}"', *facts(pairs, name_width=NAME_WIDTH)]
    return [*lines, "", *_segments_table(topic.segments)] if topic.segments else lines


def _segments_table(segments: list[SegmentEntry]) -> list[str]:
    headers = (
        "SEGMENT",
        "TIER",
        "STATE",
        ">SEQS",
        ">LIVE",
        ">DEAD",
        ">DATA",
        "TAGS",
        "FIRST",
        "LAST",
    )
    rows = [
        (
            segment_stem(segment.first_seq, segment.generation),
            escape_unprintable(segment.tier),
            "sealed" if segment.is_sealed else "active",
            f"{segment.first_seq}-{segment.last_seq}" if segment.count else NOTHING,
            f"{segment.live_count:,}",
            f"{segment.dead_count:,}",
            size(segment.data_bytes),
            "yes" if segment.has_tags else "no",
            utc_or_nothing(segment.first_ts),
            utc_or_nothing(segment.last_ts),
        )
        for segment in segments
    ]
    return table(headers, rows)
