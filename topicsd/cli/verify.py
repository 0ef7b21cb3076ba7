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
from topicsd.cli.command import Command
from topicsd.cli.json_document import write_json
from topicsd.cli.progress import Progress
from topicsd.disk.layout import names_in, parse_wal_name
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.shard_check import ShardVerdict, check_shard
from topicsd.offline.command_error import FINE, WRONG
from topicsd.offline.data_dir import DataDir, add_directory, open_data_dir, stray_shards
from topicsd.offline.table import facts, harmless, plural, readable, size

DESCRIPTION = """\
Read everything in a data directory and check it: snapshots, segments with their indexes, tags and deletes,
and the log with every batch, frame and seq. What is wrong is named with file, offset, topic and seq, and the
exit code is 1. It changes nothing and takes no lock.

That nothing is wrong does not say that nothing is missing: a copy that is older than what its original went
on to write is whole in itself, and nothing in it can tell.
"""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(given: argparse.Namespace) -> int:
    progress = Progress()
    data_dir = open_data_dir(given, progress.read)
    progress.begin(sum(stored_bytes(data_dir, shard) for shard in data_dir.shards))
    shards = []
    for shard in data_dir.shards:
        progress.label = f"shard {shard:02d}"
        shards.append(check_shard(data_dir, shard, SystemClock()))
    progress.clear()
    verdict = Verdict(
        directory=readable(data_dir.path),
        is_fine=not any(shard.problems for shard in shards),
        files=sum(shard.files for shard in shards),
        segments=sum(shard.segments for shard in shards),
        batches=sum(shard.batches for shard in shards),
        frames=sum(shard.frames for shard in shards),
        records=sum(shard.records for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=shards,
        notes=[f"shards/{name} is no shard that the layout names" for name in stray_shards(data_dir)],
    )
    if given.json:
        write_json(verdict)
    else:
        print(*_text(verdict), sep="\n")
    return FINE if verdict.is_fine else WRONG


def stored_bytes(data_dir: DataDir, shard: int) -> int:
    """Return about how many bytes a check reads; files may be dropped during the count."""
    fs, paths = data_dir.fs, data_dir.paths(shard)
    found = 0
    try:
        names = [name for name in names_in(fs, paths.wal) if parse_wal_name(name) is not None]
        found += sum(fs.stat(os.path.join(paths.wal, name)).size for name in names)
        for topic in names_in(fs, paths.topics):
            folder = os.path.join(paths.topics, topic)
            found += sum(fs.stat(os.path.join(folder, name)).size for name in fs.list_dir(folder))
    except OSError:
        pass
    return found


def _text(verdict: Verdict) -> list[str]:
    lines = []
    for shard in verdict.shards:
        lines.append(f"shard {shard.shard:02d}  {_counts(shard)}")
        lines += facts(
            [(_label(found), finding_text(found)) for found in shard.problems]
            + [("note", harmless(note)) for note in shard.notes],
            name_width=8,
        )
    lines += facts([("note", harmless(note)) for note in verdict.notes], indent=0)
    wrong = [found for shard in verdict.shards for found in shard.problems]
    if not wrong:
        said = "all is well"
    elif all(found.level is Level.HARMLESS for found in wrong):
        said = f"{plural(len(wrong), 'harmless finding')}, no data is lost"
    else:
        said = f"{plural(len(wrong), 'problem')} found"
    return [*lines, f"{said}: read {plural(len(verdict.shards), 'shard')}, {_counts(verdict)}"]


def _label(found: Finding) -> str:
    return "harmless" if found.level is Level.HARMLESS else "WRONG"


def _counts(read: ShardVerdict | Verdict) -> str:
    return (
        f"{plural(read.files, 'file')}, {_segments(read)}{plural(read.batches, 'batch', 'batches')}, "
        f"{plural(read.frames, 'frame')}, {plural(read.records, 'record')}, {size(read.bytes)}"
    )


def _segments(read: ShardVerdict | Verdict) -> str:
    return f"{plural(read.segments, 'segment')}, " if read.segments else ""


def finding_text(found: Finding) -> str:
    place = [] if found.file is None else [found.file]
    if found.offset is not None:
        place.append(f"at offset {found.offset}")
    if found.seq is not None:
        place.append(f"seq {found.seq}" + (f' of topic "{found.topic}"' if found.topic is not None else ""))
    return harmless(f"{', '.join(place)}: {found.what}" if place else found.what)


COMMAND = Command(
    name="verify",
    summary="read everything and name what is wrong; changes nothing",
    description=DESCRIPTION,
    example="  topicsd verify ./topics-data && echo fine",
    add_arguments=add_arguments,
    run=run,
)
