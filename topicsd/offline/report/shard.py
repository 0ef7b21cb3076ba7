"""The report about one shard: how its last run ended, its files, and its topics.

Every sentence is written for an operator in an emergency: it states a fact and its effect on a start. A fault
is a `problem`; other useful information is a `note`.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import msgspec

from shared.runtime.clock import Clock
from topicsd.disk.access import os_error_reason
from topicsd.disk.layout import wal_name
from topicsd.engine.ownership.departed import Departed
from topicsd.engine.shard_data import ShardData
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.walk import OpenWalFile
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import ChosenSnapshot, LoadedShard
from topicsd.offline.report.topic import TopicReport, topic_report
from topicsd.offline.shard_log import End, FileTally, ShardLog
from topicsd.offline.table import path_text, plural, size, utc
from topicsd.segment.entry import SegmentDamage

BEYOND = "is not part of the log; a start moves it to quarantine"


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One WAL file. `frames` are those in batches, without the frame that ends each."""

    name: str
    size_bytes: int
    used_bytes: int
    first_ordinal: int
    last_ordinal: int
    batches: int
    frames: int
    synced_offset: int
    """The offset up to which the file is known to be on the disk itself."""
    made_ts: int
    remains_bytes: int
    """The number of bytes after the last batch that are not part of the log."""
    end: str


class DepartedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that the node must not serve any more."""

    topic: str
    topic_id: str
    epoch: int
    state: str
    node: str
    owner_epoch: int
    since_ts: int
    head_seq: int | None
    """The last seq in the files that are kept; None when none are."""


class NamedSize(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int


class ShardReport(msgspec.Struct, kw_only=True):
    """The state of one shard as `inspect` shows it."""

    shard: int
    path: str
    in_use_by: int | None = None
    """The process that holds the shard's lock."""
    last_run: str = ""
    last_run_means: str = ""
    heads_exact: bool = False
    starts: bool = False
    """Whether a server would start the shard."""
    end: str = ""
    snapshot: int | None = None
    """The number of the snapshot that a start loads."""
    files: list[FileReport] = []
    quarantine: list[NamedSize] = []
    leftovers: list[str] = []
    idempotency_keys: int = 0
    topics: list[TopicReport] = []
    departed: list[DepartedReport] = []
    rows_to_forget: int = 0
    """Deleted topics whose rows in the catalog are still to be removed."""
    problems: list[str] = []
    notes: list[str] = []


class LastRun(NamedTuple):
    """How the last run ended: a code for programs, and a sentence."""

    code: str
    means: str


def shard_report(data_dir: DataDir, shard: int, clock: Clock) -> ShardReport:
    paths = data_dir.paths(shard)
    report = ShardReport(shard=shard, path=path_text(paths.root))
    try:
        with closing(LoadedShard(data_dir, shard, clock)) as loaded:
            loaded.walk()
            log, state = loaded.log, loaded.state
            _fill(report, loaded)
            report.idempotency_keys = state.idempotency_keys.count
            report.departed = [_departed_report(state, one) for _, one in sorted(state.departed.items())]
            report.rows_to_forget = len(state.to_forget)
            try:
                report.topics = [
                    topic_report(topic, log.synced_position, log.heads_exact, clock.now_ms())
                    for _, topic in sorted(state.topics.items())
                ]
            except SegmentDamage as damage:
                report.problems.append(f"the live records are unknown: {damage}")
    except OSError as error:
        where = path_text(str(error.filename or paths.root))
        report.problems.append(f"cannot read {where}: {os_error_reason(error)}")
    return report


def _fill(report: ShardReport, loaded: LoadedShard) -> None:
    log, snapshot = loaded.log, loaded.chosen.snapshot
    run = last_run(log)
    report.in_use_by = log.owner
    report.last_run, report.last_run_means = run
    report.heads_exact = log.heads_exact
    report.end = log.end.value
    report.snapshot = None if snapshot is None else snapshot.head.number
    report.files = [_past_report(file) for file in log.past]
    report.files += [_file_report(log, file) for file in log.files]
    report.quarantine = [NamedSize(*entry) for entry in log.quarantine_file()]
    report.leftovers = log.leftovers()
    report.problems, report.notes = (
        problems(log, loaded.chosen, loaded.problem),
        snapshot_note(loaded.chosen) + notes(log),
    )
    report.starts = not (log.problem or loaded.problem)


def _departed_report(state: ShardData, one: Departed) -> DepartedReport:
    topic = state.topics_by_id.get(one.topic_id)
    has_files = topic is not None and topic.epoch == one.epoch
    return DepartedReport(
        topic=one.name,
        topic_id=f"{one.topic_id:016x}",
        epoch=one.epoch,
        state=one.state,
        node=one.node,
        owner_epoch=one.owner_epoch,
        since_ts=one.since_ms,
        head_seq=topic.head if topic is not None and has_files else None,
    )


def last_run(log: ShardLog) -> LastRun:
    """Return how the last run of the shard ended, and the effect on its heads."""
    current = log.current
    state = None if current is None else current.state
    if log.owner is not None:
        failed = "; a sync failed, so the process will restart" if state == "sync_failed" else ""
        return LastRun(
            "in_use", f"still running: process {log.owner} holds the shard and may write to it{failed}"
        )
    is_new = log.known is None and not log.tallies and log.end is End.HERE
    if current is None and not log.has_current_file and is_new:
        return LastRun("never_written", "nothing was written yet")
    if current is None:
        fault = "is damaged" if log.has_current_file else "is missing"
        return LastRun("unknown", f"unknown: CURRENT {fault}; a start assumes that a sync failed")
    if state == "clean":
        return LastRun("clean", "stopped cleanly: the whole log was synced")
    if state == "sync_failed":
        return LastRun(
            "sync_failed",
            "a sync failed: the disk refused data, and data that was not synced before may be lost; the next "
            "start trusts only what the disk itself returns. Check the disk",
        )
    if log.is_same_place:
        return LastRun(
            "process_died",
            "the process died or was killed; the machine has not restarted, so all that it wrote is there",
        )
    if not current.boot_id:
        return LastRun(
            "start_ended",
            "a start ended before it recorded what the run before it may have lost",
        )
    if current.boot_id != log.fs.boot_id():
        return LastRun(
            "machine_restarted",
            "the machine restarted, or is another one: data that was not synced may be missing at the end",
        )
    return LastRun(
        "moved",
        "the process died or was killed, and these files are copies of those that it wrote: it is unknown "
        "whether they are complete",
    )


def problems(log: ShardLog, chosen: ChosenSnapshot, problem: str = "") -> list[str]:
    """Return the faults of the shard; `problem` is why a start would stop before the log."""
    first = problem or chosen.problem or log.problem
    sentences = [f"{first}. A server does not start this shard"] if first else []
    return sentences + chosen.complaints + problems_around(log)


def problems_around(log: ShardLog) -> list[str]:
    """Return the faults that do not prevent reading the log."""
    sentences = []
    if log.current is None and (log.tallies or log.known is not None):
        fault = "is damaged" if log.has_current_file else "is missing, although the log exists"
        sentences.append(
            f"CURRENT {fault}. A start reads the log from the disk itself and treats no head as exact"
        )
    for file in log.files:
        header = file.header
        if header is not None and file.size_bytes < header.file_bytes:
            sentences.append(
                f"{file.name} has {file.size_bytes} of its {header.file_bytes} bytes: another program "
                "truncated it, and a start treats no head as exact"
            )
    return sentences


def snapshot_note(chosen: ChosenSnapshot) -> list[str]:
    """Return a sentence about the snapshot that a start loads, if any."""
    if chosen.snapshot is None:
        return []
    head = chosen.snapshot.head
    place = f"{wal_name(head.start.file)} from offset {head.start.offset}"
    return [f"a start loads snapshot {head.number} of {utc(head.created_ms)}, and replays {place}"]


def notes(log: ShardLog) -> list[str]:
    """Return sentences about useful facts that are no faults."""
    sentences = []
    walk = log.walked
    if walk is not None and log.end is not End.HERE and log.end is not End.DAMAGED:
        where, count = f"offset {walk.offset} of {walk.place}", walk.remains_end - walk.offset
        if log.end is End.BEING_WRITTEN:
            sentences.append(
                f"the log is being written: read up to its last whole batch, which ends at {where}"
            )
        elif log.end is End.CUT_BEFORE:
            sentences.append(
                f"an earlier start cut off {plural(count, 'byte')} at {where}, which are never read"
            )
        else:
            sentences.append(
                f"torn tail: {plural(count, 'byte')} at {where} are not a whole batch. No write in it was "
                "acknowledged as synced; a start moves it to quarantine and continues before it"
            )
    if log.current is not None and log.current.state == "sync_failed":
        sentences.append("this report was read through the page cache, which may have more than the disk")
    if walk is not None and log.end is End.TORN:
        sentences += [f"{file.name} {BEYOND}" for file in walk.beyond if file.name != walk.place]
    if log.quarantine_file():
        count = sum(bytes_kept for _, bytes_kept in log.quarantine_file())
        sentences.append(
            f"quarantine has {size(count)} from a start or a repair; a server neither reads nor deletes it"
        )
    for name in log.leftovers():
        sentences.append(
            f"{name} is prepared for the next file"
            if log.owner is not None
            else f"{name} is left over from an unclean stop; the next start removes it"
        )
    sentences += [f"{name} in wal/ is not a file of topicsd" for name in log.unknown_names()]
    return sentences


def _past_report(file: OpenWalFile) -> FileReport:
    return FileReport(
        name=file.name,
        size_bytes=file.size_bytes,
        used_bytes=0,
        first_ordinal=file.first_ordinal,
        last_ordinal=file.first_ordinal - 1,
        batches=0,
        frames=0,
        synced_offset=0,
        made_ts=0 if file.header is None else file.header.ts,
        remains_bytes=0,
        end="in the snapshot; kept for the previous snapshot",
    )


def _file_report(log: ShardLog, file: OpenWalFile) -> FileReport:
    tally = log.tallies.get(file.name, FileTally())
    walked = log.walked.files if log.walked is not None else []
    at = next((index for index, one in enumerate(walked) if one.wal_file.name == file.name), None)
    synced = 0
    if at is not None and log.synced_position >= walked[at].start_position:
        synced = min(walked[at].end, log.synced_position - walked[at].start_position + FILE_HEADER_BYTES)
    used = walked[at].end if at is not None else 0
    return FileReport(
        name=file.name,
        size_bytes=file.size_bytes,
        used_bytes=used,
        first_ordinal=file.first_ordinal,
        last_ordinal=max(tally.next_ordinal, file.first_ordinal) - 1,
        batches=tally.batches,
        frames=tally.frames,
        synced_offset=synced,
        made_ts=0 if file.header is None else file.header.ts,
        remains_bytes=log.remains_bytes(file, used) if at is not None else 0,
        end=_file_end(log, file, at is not None and at + 1 < len(walked)),
    )


def _file_end(log: ShardLog, file: OpenWalFile, has_next: bool) -> str:
    if file.header is None:
        return file.damage
    walk = log.walked
    if walk is None:
        return "not read"
    if has_next:
        return "continues in the next file"
    if any(one.name == file.name for one in walk.beyond):
        return "after the damage" if log.end is End.DAMAGED else BEYOND
    if log.end is End.TORN and walk.place == file.name:
        return f"torn tail of {size(walk.remains_end - walk.offset)} at {walk.offset}"
    if log.end is End.DAMAGED and walk.place == file.name:
        return f"damaged at {walk.offset}"
    if log.end is End.CUT_BEFORE:
        return f"ends at {walk.offset}"
    if log.end is End.BEING_WRITTEN:
        return "being written"
    return "ends here"
