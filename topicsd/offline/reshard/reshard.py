"""A reshard from its locks to its end, and the plan of one.

R1  The lock of the data directory is held by the caller, so no server starts. An interrupted reshard is
    finished or undone first (`swap.py`).
R2  Each old shard is brought to rest (`rest.py`), and then its lock is held until the end. Outside readers
    must have released theirs: dropped files are not taken along.
R3  The new shards are built and checked (`stage.py`). Until here nothing refers to them.
R4  The commit, and the renames after it (`swap.py`).

Any failure before the commit undoes what was built, and leaves the old shards in use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final

import msgspec

from shared.ipc.placement import Placement
from shared.runtime.clock import Clock
from shared.settings.store_url import store_folder
from topicsd.disk.access import os_error_sentence
from topicsd.disk.atomic_replace import exists
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    SHARD_COUNT_MAX,
    committed_path,
    names_in,
    reshard_command,
    shard_paths,
    staged_path,
)
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.reader_lock import readers_held
from topicsd.engine.shard import Shard
from topicsd.log.file_header import UnknownVersion
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard, store_url_of_shard
from topicsd.offline.reshard.new_placement import new_placement, without_leftovers
from topicsd.offline.reshard.place_files import FilePlacer
from topicsd.offline.reshard.rest import ReshardRefused, RestedShard, bring_to_rest, read_rested
from topicsd.offline.reshard.stage import Stage
from topicsd.offline.reshard.swap import commit, settle
from topicsd.offline.table import path_text, plural
from topicsd.segment.entry import COLD

OpenShard = Callable[[DataDir, int], Shard]
"""A function that opens a shard of the directory as a server does."""
PrintStep = Callable[[str], object]
"""A callback with one line of progress."""

LINKS_A_SECOND: Final = 10_000
"""Files that are linked, synced in their directory and checked; measured on an SSD."""


class ReshardReport(msgspec.Struct, kw_only=True):
    """The result of a reshard, or its plan; the JSON document of the command."""

    directory: str
    shards_before: int
    shards: int
    is_plan: bool = False
    """Whether nothing was changed, because only the plan was asked for."""
    settled: str = ""
    """What was done about an interrupted reshard, as a sentence; else empty."""
    topics: int = 0
    moved_topics: int = 0
    """The number of topics on a shard of another number than before."""
    segments: int = 0
    links: int = 0
    linked_bytes: int = 0
    copies: int = 0
    copied_bytes: int = 0
    log_bytes: int = 0
    """The bytes of the log files that checkpoints copied, or will copy at most, into segments."""
    ended_sessions: int = 0
    dropped_exceptions: list[str] = []
    """The topics that were moved to a shard of their own, and that the rule places from now on."""
    free_bytes: int = 0
    seconds: float = 0.0
    """The time that it took; in a plan, the expected time."""


def refuse_count(shards: int) -> None:
    if not 1 <= shards <= SHARD_COUNT_MAX:
        raise ReshardRefused(f"--shards: must be 1 to {SHARD_COUNT_MAX}, got {shards}")


def refuse_stateless(data_dir: DataDir) -> None:
    if not data_dir.layout.shards:
        raise ReshardRefused(f"{data_dir.path}: belongs to a stateless node, which has no shards to change")


def reshard(
    fs: Fs, clock: Clock, data_dir: DataDir, shards: int, open_shard: OpenShard, on_step: PrintStep
) -> ReshardReport:
    """Change the number of shards; the caller holds the lock of the data directory."""
    refuse_stateless(data_dir)
    refuse_count(shards)
    started, before = clock.monotonic(), data_dir.layout.shards
    report = ReshardReport(directory=path_text(data_dir.path), shards_before=before, shards=shards)
    if shards == before:
        return report
    for path in (staged_path(data_dir.path), committed_path(data_dir.path)):
        if exists(fs, path):
            raise ReshardRefused(
                f"{path}: an earlier reshard left files in the cold directory; mount it and run this again"
            )
    refuse_unnamed_cold(data_dir)
    cold_dir = store_folder(data_dir.store_url)
    data_dir = data_dir._replace(store_url=_store_url(data_dir), is_held=True)
    placement, report.dropped_exceptions = new_placement(data_dir.placement, shards)
    with ExitStack() as stack:
        old = _rest(fs, clock, data_dir, open_shard, on_step, stack)
        old = without_leftovers(data_dir.path, data_dir.placement, old)
        stage = Stage(fs, clock, data_dir, old, placement, cold_dir, on_step)
        try:
            stage.build()
        except BaseException:
            settle(fs, data_dir.path)
            raise
        commit(fs, data_dir.path)
        on_step(f"committed: the directory has {plural(shards, 'shard')}")
        try:
            settle(fs, data_dir.path)
        except OSError as error:
            raise ReshardRefused(
                f"committed, but not finished: {os_error_sentence(error)}; fix the cause and run: "
                f"{reshard_command(data_dir.path)}"
            ) from error
    _count(report, stage.placer)
    report.topics = sum(len(one.topics) for one in old)
    report.segments = sum(len(topic.segments) for one in old for topic in one.topics)
    report.moved_topics = _moved(old, placement)
    report.ended_sessions = stage.ended_sessions
    report.seconds = round(clock.monotonic() - started, 3)
    return report


def plan(fs: Fs, clock: Clock, data_dir: DataDir, shards: int) -> ReshardReport:
    """Return what a reshard would do, without a lock and without writing anything.

    The time is extrapolated from the loading of the shards: a reshard loads each old shard three times.
    """
    refuse_count(shards)
    refuse_stateless(data_dir)
    before = data_dir.layout.shards
    report = ReshardReport(
        directory=path_text(data_dir.path), shards_before=before, shards=shards, is_plan=True
    )
    report.free_bytes = fs.free_bytes(data_dir.path)
    if shards == before:
        return report
    refuse_unnamed_cold(data_dir)
    placement, report.dropped_exceptions = new_placement(data_dir.placement, shards)
    started = clock.monotonic()
    for number in range(before):
        with closing(LoadedShard(data_dir, number, clock)) as loaded:
            loaded.walk()
            if problem := loaded.problem or loaded.log.problem:
                raise ReshardRefused(f"{data_dir.paths(number).root}: {problem}")
            for topic_id in loaded.state.topics_by_id:
                report.topics += 1
                report.moved_topics += placement.shard_of(topic_id) != number
            if number >= shards:
                report.ended_sessions += len(loaded.state.watch_sessions)
            report.log_bytes += sum(tally.end for tally in loaded.log.tallies.values())
        _count_segments(fs, data_dir, number, report)
    loading = clock.monotonic() - started
    report.seconds = round(3 * loading + report.links / LINKS_A_SECOND, 1)
    return report


def refuse_unnamed_cold(data_dir: DataDir) -> None:
    """Raise ReshardRefused for a shard with segments in a cold directory that the caller does not name.

    The manifest names one, but a copy of a data directory has the manifest of its original, whose cold
    directory must not be changed. Segments in an object store need no name: nothing there is changed.
    """
    for number in range(0 if store_folder(data_dir.store_url) else data_dir.layout.shards):
        try:
            manifest = read_manifest(data_dir.fs, data_dir.paths(number))
        except (FileNotFoundError, ManifestDamage, UnknownVersion):
            continue
        segments = [segment for topic in manifest.topics for segment in topic.segments]
        count = sum(one.tier == COLD and not one.object_stem for one in segments)
        if count:
            known = f"; its last server used {manifest.cold_dir}" if manifest.cold_dir else ""
            raise ReshardRefused(
                f"shard {number:02d} has {plural(count, 'cold segment')}: name the cold directory with "
                f"--cold-dir, since its files are moved too{known}"
            )


def _store_url(data_dir: DataDir) -> str:
    """Return the URL of the object store that the caller or else the manifests name.

    It is written into the new manifests, so that outside readers find the objects.
    """
    urls = {store_url_of_shard(data_dir, number) for number in range(data_dir.layout.shards)} - {""}
    if len(urls) > 1:
        raise ReshardRefused(
            f"the shards name different object stores: {', '.join(sorted(urls))}; name one with --store-url"
        )
    return next(iter(urls), "")


def _rest(
    fs: Fs, clock: Clock, data_dir: DataDir, open_shard: OpenShard, on_step: PrintStep, stack: ExitStack
) -> list[RestedShard]:
    for number in range(data_dir.layout.shards):
        paths = data_dir.paths(number)
        started = clock.monotonic()
        bring_to_rest(open_shard(data_dir, number))
        stack.callback(DirLock(fs, paths.lock).release)
        on_step(f"shard {number:02d}: at rest after {clock.monotonic() - started:.1f} s")
    for number in range(data_dir.layout.shards):
        if readers_held(fs, data_dir.paths(number)):
            raise ReshardRefused(
                f"{data_dir.paths(number).readers}: an outside reader, such as a Spark job, holds a lock; "
                "let it end, or stop it, and run this again"
            )
    return [read_rested(data_dir, number, clock) for number in range(data_dir.layout.shards)]


def _count(report: ReshardReport, placer: FilePlacer) -> None:
    report.links, report.linked_bytes = placer.links, placer.linked_bytes
    report.copies, report.copied_bytes = placer.copies, placer.copied_bytes


def _moved(old: list[RestedShard], placement: Placement) -> int:
    return sum(placement.shard_of(topic.topic_id) != one.number for one in old for topic in one.topics)


def _count_segments(fs: Fs, data_dir: DataDir, number: int, report: ReshardReport) -> None:
    """Count the files of a shard's segments in both tiers, as links."""
    roots = [data_dir.paths(number)]
    if cold_dir := store_folder(data_dir.store_url):
        roots.append(shard_paths(cold_dir, number))
    for paths in roots:
        for directory in names_in(fs, paths.topics):
            for name in names_in(fs, os.path.join(paths.topics, directory)):
                report.links += 1
                report.segments += name.endswith(".data")
                report.linked_bytes += fs.stat(os.path.join(paths.topics, directory, name)).size
