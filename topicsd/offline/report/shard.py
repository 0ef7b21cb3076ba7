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
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.walk import LogFileFound
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import Basis, LoadedShard
from topicsd.offline.report.topic import TopicReport, topic_report
from topicsd.offline.shard_log import End, FileTally, ShardLog
from topicsd.offline.table import plural, readable, size, utc
from topicsd.segment.entry import SegmentDamage

BEYOND = "is not part of the log; a start puts it into quarantine"


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
    problems: list[str] = []
    notes: list[str] = []


class LastRun(NamedTuple):
    """How the last run ended: a code for programs, and a sentence."""

    code: str
    means: str


def shard_report(data_dir: DataDir, shard: int, clock: Clock) -> ShardReport:
    paths = data_dir.paths(shard)
    report = ShardReport(shard=shard, path=readable(paths.root))
    try:
        with closing(LoadedShard(data_dir, shard, clock)) as loaded:
            loaded.walk()
            log, state = loaded.log, loaded.state
            _fill(report, loaded)
            report.idempotency_keys = state.dedupe.count
            try:
                report.topics = [
                    topic_report(topic, log.synced_position, log.heads_exact, clock.now_ms())
                    for _, topic in sorted(state.topics.items())
                ]
            except SegmentDamage as damage:
                report.problems.append(f"what is alive cannot be told: {damage}")
    except OSError as error:
        where = readable(str(error.filename or paths.root))
        report.problems.append(f"it cannot be read: {where}: {os_error_reason(error)}")
    return report


def _fill(report: ShardReport, loaded: LoadedShard) -> None:
    log, snapshot = loaded.log, loaded.basis.snapshot
    run = last_run(log)
    report.in_use_by = log.owner
    report.last_run, report.last_run_means = run
    report.heads_exact = log.heads_exact
    report.end = log.end.value
    report.snapshot = None if snapshot is None else snapshot.head.number
    report.files = [_past_report(file) for file in log.past]
    report.files += [_file_report(log, file) for file in log.files]
    report.quarantine = [NamedSize(*found) for found in log.quarantined()]
    report.leftovers = log.leftovers()
    report.problems, report.notes = (
        problems(log, loaded.basis, loaded.problem),
        snapshot_note(loaded.basis) + notes(log),
    )
    report.starts = not (log.problem or loaded.problem)


def last_run(log: ShardLog) -> LastRun:
    """Return how the last run of the shard ended, and the effect on its heads."""
    current = log.current
    state = None if current is None else current.state
    if log.owner is not None:
        failed = "; a sync has failed, so it will restart" if state == "sync_failed" else ""
        return LastRun(
            "in_use", f"it has not ended: process {log.owner} holds the shard and may write to it{failed}"
        )
    is_new = log.known is None and not log.tallies and log.end is End.HERE
    if current is None and not log.has_current_file and is_new:
        return LastRun("never_written", "nothing was ever written here")
    if current is None:
        wrong = "is damaged" if log.has_current_file else "is missing"
        return LastRun(
            "unknown", f"nobody can say: CURRENT {wrong}; what a failed sync would leave is assumed"
        )
    if state == "clean":
        return LastRun("clean", "it stopped cleanly: all of the log was synced")
    if state == "sync_failed":
        return LastRun(
            "sync_failed",
            "a sync failed: the disk refused data, and what was not synced before may be gone; "
            "the next start believes only what the disk itself returns. Look at the disk",
        )
    if log.is_same_place:
        return LastRun(
            "process_died",
            "the process died or was killed; the machine has run on since, so all that it wrote is there",
        )
    if not current.boot_id:
        return LastRun(
            "start_ended",
            "a start ended before it had noted what the run before it may have lost",
        )
    if current.boot_id != log.fs.boot_id():
        return LastRun(
            "machine_restarted",
            "the machine went down, or is another one: what was not synced then may be missing at the end",
        )
    return LastRun(
        "moved",
        "the process died or was killed, and these files are copies of those that it wrote: "
        "whether they hold all of it, nobody can say",
    )


def problems(log: ShardLog, basis: Basis, problem: str = "") -> list[str]:
    """Return the faults of the shard; `problem` is why a start would stop before the log."""
    first = problem or basis.problem or log.problem
    found = [f"{first}. A server does not start this shard"] if first else []
    return found + basis.complaints + problems_around(log)


def problems_around(log: ShardLog) -> list[str]:
    """Return the faults that do not prevent reading the log."""
    found = []
    if log.current is None and (log.tallies or log.known is not None):
        wrong = "is damaged" if log.has_current_file else "is missing, though there is a log"
        found.append(
            f"CURRENT {wrong}. A start reads the log from the disk itself and takes no head for exact"
        )
    for file in log.files:
        header = file.header
        if header is not None and file.size_bytes < header.file_bytes:
            found.append(
                f"{file.name} has {file.size_bytes} bytes and was made with {header.file_bytes}: it was cut "
                "from outside, and no head in it counts as exact"
            )
    return found


def snapshot_note(basis: Basis) -> list[str]:
    """Return a sentence about the snapshot that a start loads, if any."""
    if basis.snapshot is None:
        return []
    head = basis.snapshot.head
    place = f"{wal_name(head.start.file)} from offset {head.start.offset}"
    return [f"a start goes on from snapshot {head.number} of {utc(head.created_ms)}, and reads {place}"]


def notes(log: ShardLog) -> list[str]:
    """Return sentences about useful facts that are no faults."""
    found = []
    walk = log.walked
    if walk is not None and log.end is not End.HERE and log.end is not End.DAMAGED:
        where, count = f"offset {walk.offset} of {walk.place}", walk.remains_end - walk.offset
        if log.end is End.BEING_WRITTEN:
            found.append(f"it is being written: read up to its last whole batch, which ends at {where}")
        elif log.end is End.CUT_BEFORE:
            found.append(
                f"{plural(count, 'byte')} at {where} were cut off by an earlier start and are never read"
            )
        else:
            found.append(
                f"a torn tail: {plural(count, 'byte')} at {where} are no whole batch. Nothing of it was "
                "acked as synced; a start puts it into quarantine and goes on in front of it"
            )
    if log.current is not None and log.current.state == "sync_failed":
        found.append("what is shown went through the page cache, which may hold more than the disk does")
    if walk is not None and log.end is End.TORN:
        found += [f"{file.name} {BEYOND}" for file in walk.beyond if file.name != walk.place]
    if log.quarantined():
        count = sum(bytes_kept for _, bytes_kept in log.quarantined())
        found.append(
            f"quarantine holds {size(count)} from a start or a repair; no server reads or deletes it"
        )
    for name in log.leftovers():
        found.append(
            f"{name} was made ahead for what comes next"
            if log.owner is not None
            else f"{name} was left by a run that did not end cleanly; the next start removes it"
        )
    found += [f"{name} in wal/ is nothing of ours" for name in log.unknown_names()]
    return found


def _past_report(file: LogFileFound) -> FileReport:
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
        end="in the snapshot; kept for the one before it",
    )


def _file_report(log: ShardLog, file: LogFileFound) -> FileReport:
    tally = log.tallies.get(file.name, FileTally())
    walked = log.walked.files if log.walked is not None else []
    at = next((index for index, one in enumerate(walked) if one.found.name == file.name), None)
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


def _file_end(log: ShardLog, file: LogFileFound, goes_on: bool) -> str:
    if file.header is None:
        return file.damage
    walk = log.walked
    if walk is None:
        return "not read"
    if goes_on:
        return "the next file goes on"
    if any(one.name == file.name for one in walk.beyond):
        return "stands behind the damage" if log.end is End.DAMAGED else BEYOND
    if log.end is End.TORN and walk.place == file.name:
        return f"torn tail of {size(walk.remains_end - walk.offset)} at {walk.offset}"
    if log.end is End.DAMAGED and walk.place == file.name:
        return f"damaged at {walk.offset}"
    if log.end is End.CUT_BEFORE:
        return f"ends at {walk.offset}"
    if log.end is End.BEING_WRITTEN:
        return "being written"
    return "ends here"
