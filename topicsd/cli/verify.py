"""`topicsd verify DIR`: read everything; report faults with file, offset, topic and seq.

Exit code 0 is a promise: every byte that counts was read, and a server starts with it. The command writes
nothing, takes no lock, and may run at the same time as a server; its result is then valid for the bytes that
were written when it read them.
"""

from __future__ import annotations

import argparse
import os

import msgspec

from shared.runtime.clock import SystemClock
from topicsd.cli.command import Command, write_json
from topicsd.cli.progress import Progress
from topicsd.disk.key_file import key_file_problem
from topicsd.disk.layout import names_in, parse_wal_name
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.shard_check import ShardVerdict, check_shard
from topicsd.offline.command_error import EXIT_OK, EXIT_PROBLEM
from topicsd.offline.data_dir import DataDir, add_directory, open_data_dir, reshard_leftovers, stray_shards
from topicsd.offline.table import escape_unprintable, facts, path_text, plural, size

DESCRIPTION = """\
Read everything in a data directory and check it: snapshots, segments with their indexes, tags and deletes,
and the log with every batch, frame and seq. Each problem is reported with file, offset, topic and seq, and
the exit code is then 1. The command changes nothing and takes no lock.

Segments that only the object store has are read there, and both copies of those that are also local: in a
remote store, whose requests are billed, with --objects only.

An outdated copy cannot be detected: a copy that lacks what its original wrote later is complete in itself.
"""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    is_fine: bool
    files: int
    segments: int
    batches: int
    frames: int
    records: int
    bytes: int
    shards: list[ShardVerdict]
    notes: list[str]
    problem: str
    """What is wrong with KEYS.json; empty when nothing is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument(
        "--objects",
        action="store_true",
        help="also read the objects of segments that are local too; a store in a folder needs no option",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    progress = Progress()
    data_dir = open_data_dir(args, progress.read)._replace(checks_objects=args.objects)
    progress.begin(sum(stored_bytes(data_dir, shard) for shard in data_dir.shards))
    shards = []
    for shard in data_dir.shards:
        progress.label = f"shard {shard:02d}"
        shards.append(check_shard(data_dir, shard, SystemClock()))
    progress.clear()
    problem = key_file_problem(data_dir.fs, data_dir.path)
    report = VerifyReport(
        directory=path_text(data_dir.path),
        is_fine=not problem and not any(shard.problems for shard in shards),
        files=sum(shard.files for shard in shards),
        segments=sum(shard.segments for shard in shards),
        batches=sum(shard.batches for shard in shards),
        frames=sum(shard.frames for shard in shards),
        records=sum(shard.records for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=shards,
        notes=[f"shards/{name}: LAYOUT.json does not name this shard" for name in stray_shards(data_dir)]
        + reshard_leftovers(data_dir),
        problem=problem,
    )
    if args.json:
        write_json(report)
    else:
        print(*_text(report), sep="\n")
    return EXIT_OK if report.is_fine else EXIT_PROBLEM


def stored_bytes(data_dir: DataDir, shard: int) -> int:
    """Return about how many bytes a check reads; files may be dropped during the count."""
    fs, paths = data_dir.fs, data_dir.paths(shard)
    total = 0
    try:
        names = [name for name in names_in(fs, paths.wal) if parse_wal_name(name) is not None]
        total += sum(fs.stat(os.path.join(paths.wal, name)).size for name in names)
        for topic in names_in(fs, paths.topics):
            folder = os.path.join(paths.topics, topic)
            total += sum(fs.stat(os.path.join(folder, name)).size for name in fs.list_dir(folder))
    except OSError:
        pass
    return total


def _text(report: VerifyReport) -> list[str]:
    lines = []
    for shard in report.shards:
        lines.append(f"shard {shard.shard:02d}  {_counts(shard)}")
        lines += facts(
            [(_label(finding), finding_text(finding)) for finding in shard.problems]
            + [("note", escape_unprintable(note)) for note in shard.notes],
            name_width=8,
        )
    lines += facts([("note", escape_unprintable(note)) for note in report.notes], indent=0)
    if report.problem:
        lines += facts([("WRONG", escape_unprintable(report.problem))], name_width=8, indent=0)
    findings = [finding for shard in report.shards for finding in shard.problems]
    if report.problem:
        result = f"{plural(len(findings) + 1, 'problem')} found"
    elif not findings:
        result = "all is well"
    elif all(finding.level is Level.HARMLESS for finding in findings):
        result = f"{plural(len(findings), 'harmless finding')}, no data is lost"
    else:
        result = f"{plural(len(findings), 'problem')} found"
    return [*lines, f"{result}: read {plural(len(report.shards), 'shard')}, {_counts(report)}"]


def _label(finding: Finding) -> str:
    return "harmless" if finding.level is Level.HARMLESS else "WRONG"


def _counts(report: ShardVerdict | VerifyReport) -> str:
    return (
        f"{plural(report.files, 'file')}, {_segments(report)}{plural(report.batches, 'batch', 'batches')}, "
        f"{plural(report.frames, 'frame')}, {plural(report.records, 'record')}, {size(report.bytes)}"
    )


def _segments(report: ShardVerdict | VerifyReport) -> str:
    return f"{plural(report.segments, 'segment')}, " if report.segments else ""


def finding_text(finding: Finding) -> str:
    place = [] if finding.file is None else [finding.file]
    if finding.offset is not None:
        place.append(f"at offset {finding.offset}")
    if finding.seq is not None:
        place.append(
            f"seq {finding.seq}" + (f' of topic "{finding.topic}"' if finding.topic is not None else "")
        )
    return escape_unprintable(f"{', '.join(place)}: {finding.what}" if place else finding.what)


COMMAND = Command(
    name="verify",
    summary="read everything and report problems; changes nothing",
    description=DESCRIPTION,
    example="  topicsd verify ./topics-data && echo fine",
    add_arguments=add_arguments,
    run=run,
)
