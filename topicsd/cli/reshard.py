"""`topicsd reshard DIR --shards N`: change the number of shards of a stopped data directory.

Without --shards the command finishes or undoes an interrupted reshard, as the start of a server does. With
--dry-run nothing is written and no lock is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shared.ipc.placement import PlacementDamaged, PlacementError
from shared.runtime.clock import SystemClock
from shared.runtime.disk_thread import start_threads
from shared.settings.settings import Settings
from topicsd.cli.command import Command, write_json
from topicsd.disk.atomic_replace import exists
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import (
    LayoutError,
    committed_path,
    doctor_command,
    lock_path,
    rebuild_advice,
    restore_empty_dirs,
)
from topicsd.disk.placement_file import read_placement
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.engine.shard import Shard
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog
from topicsd.offline.command_error import EXIT_OK, EXIT_PROBLEM, CommandError
from topicsd.offline.data_dir import DataDir, add_store, data_dir_of, layout_of
from topicsd.offline.reshard.reshard import (
    OpenShard,
    ReshardReport,
    plan,
    refuse_count,
    reshard,
)
from topicsd.offline.reshard.rest import ReshardRefused
from topicsd.offline.reshard.swap import JournalDamaged, settle
from topicsd.offline.table import facts, plural, size
from topicsd.store.object_store import StoreRefused
from topicsd.store.remote_objects import ExtraMissing

DESCRIPTION = """\
Change the number of shards of a data directory whose server is stopped. Topics keep their names, seqs,
epochs, cursors, producers, queues and routes. Segments are linked into the new shards, not copied, where the
file system has hard links.

The command can be interrupted at any time and run again: until its commit the old shards stay in use, and
after it the next run, or the next start of a server, finishes it. Copy the directory first if you can.
"""

WAL_FILE_BYTES = 1 << 20
"""A shard that is brought to rest logs a few frames at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the data directory, which contains LAYOUT.json")
    parser.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="the new number of shards; without it, only finish or undo an interrupted reshard",
    )
    add_store(parser)
    parser.set_defaults(shard=None)
    parser.add_argument("--dry-run", action="store_true", help="show what would happen; writes nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    try:
        report = _planned(args) if args.dry_run else _resharded(args)
    except (LayoutError, ReshardRefused, JournalDamaged) as error:
        raise CommandError(str(error), EXIT_PROBLEM) from None
    except PlacementError as error:
        advice = rebuild_advice(args.directory) if isinstance(error, PlacementDamaged) else ""
        raise CommandError(f"{error}{advice}", EXIT_PROBLEM) from None
    except (ExtraMissing, StoreRefused) as error:
        raise CommandError(f"object store: {error}") from None
    except (RecoveryRefused, UnreadableLog) as error:
        advice = f"run: {doctor_command(args.directory)}"
        raise CommandError(f"a shard does not start: {error}; {advice}", EXIT_PROBLEM) from None
    except DirectoryInUse as error:
        raise CommandError(f"{error}; stop the server first") from None
    if args.json:
        write_json(report)
    else:
        print(*_text(report), sep="\n")
    return EXIT_OK


def _planned(args: argparse.Namespace) -> ReshardReport:
    if args.shards is None:
        raise CommandError("--dry-run: must be used with --shards")
    refuse_count(args.shards)
    data_dir = _data_dir(args, ReadOnlyFs(RealFs()))
    return plan(data_dir.fs, SystemClock(), data_dir, args.shards)


def _resharded(args: argparse.Namespace) -> ReshardReport:
    fs = RealFs()
    if args.shards is not None:
        refuse_count(args.shards)
    if not exists(fs, committed_path(args.directory)):
        layout_of(fs, args.directory)  # Refuse before a lock file is made in some other directory.
    with _locked(fs, args.directory), open_shards() as open_shard:
        settled = settle(fs, args.directory)
        if settled:
            _print_step(settled)
        data_dir = _data_dir(args, fs)
        restore_empty_dirs(fs, data_dir.path, data_dir.layout)
        shards = data_dir.layout.shards if args.shards is None else args.shards
        report = reshard(fs, SystemClock(), data_dir, shards, open_shard, _print_step)
    report.settled = settled
    return report


@contextmanager
def open_shards() -> Iterator[OpenShard]:
    """Yield a function that opens a shard on a loop that never runs: nothing happens in the background."""
    loop = asyncio.new_event_loop()

    def open_shard(data_dir: DataDir, number: int) -> Shard:
        settings = Settings(store_url=data_dir.store_url, wal_file_bytes=WAL_FILE_BYTES)
        threads = start_threads(loop, number)
        paths, identity = data_dir.paths(number), data_dir.identity(number)
        try:
            return Shard(
                RealFs(), SystemClock(), loop, threads, paths, identity, settings, lambda error: None
            )
        except BaseException:
            for thread in threads:
                thread.stop()
            raise

    try:
        yield open_shard
    finally:
        loop.close()


@contextmanager
def _locked(fs: Fs, path: str) -> Iterator[None]:
    try:
        lock = DirLock(fs, lock_path(path))
    except DirectoryInUse:
        owner = fs.lock_owner(lock_path(path))
        holder = "another process" if owner is None else f"process {owner}"
        raise CommandError(f"{path}: in use by {holder}; stop the server first") from None
    try:
        yield
    finally:
        lock.release()


def _data_dir(args: argparse.Namespace, fs: Fs) -> DataDir:
    layout = layout_of(fs, args.directory)
    return data_dir_of(args, fs, layout, read_placement(fs, args.directory, layout.shards))


def _print_step(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _text(report: ReshardReport) -> list[str]:
    before, after = plural(report.shards_before, "shard"), plural(report.shards, "shard")
    if report.shards_before == report.shards:
        return [f"{report.directory}: {after}; nothing to change"]
    is_plan = report.is_plan
    rows = [
        ("topics", f"{report.topics:,}, {report.moved_topics:,} of them on another shard"),
        ("segments", f"{report.segments:,} in {report.links + report.copies:,} files"),
        ("links", f"{size(report.linked_bytes)}{', if the file system has hard links' if is_plan else ''}"),
    ]
    if report.copies:
        rows.append(("copies", f"{plural(report.copies, 'file')}, {size(report.copied_bytes)}"))
    if is_plan:
        rows.append(("log", f"{size(report.log_bytes)} to copy into segments, at most"))
        needed = report.log_bytes
        space = f"{size(report.free_bytes)} free; {size(needed)} needed with links, "
        rows.append(("space", f"{space}{size(needed + report.linked_bytes)} without"))
    if report.ended_sessions:
        rows.append(("sessions", f"{plural(report.ended_sessions, 'watch session')} of removed shards ended"))
    if report.dropped_exceptions:
        names = ", ".join(f'"{name}"' for name in report.dropped_exceptions)
        rows.append(("placement", f"no exceptions any more: {names}"))
    rows.append(("time", f"about {report.seconds:.1f} s" if is_plan else f"{report.seconds:.1f} s"))
    title = f"{report.directory}: {before} to {after}"
    return [f"{title}: plan, nothing was changed" if is_plan else title, *facts(rows)]


COMMAND = Command(
    name="reshard",
    summary="change the number of shards of a stopped data directory",
    description=DESCRIPTION,
    example="  topicsd reshard DIR --shards 8 --dry-run\n  topicsd reshard DIR --shards 8",
    add_arguments=add_arguments,
    run=run,
    exit_codes="exit codes: 0 done, 1 problems in the data, 2 the command could not run",
)
