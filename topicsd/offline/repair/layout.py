"""The reconstruction of a lost or damaged LAYOUT.json from the files of the shards.

The number of shards is the number of their directories. The instance is in the header of every log file,
snapshot, manifest and segment. Missing shards at the end of the range cannot be detected: no file of the
other shards records the number of shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    INSTANCE_BYTES,
    LAYOUT_NAME,
    SHARD_COUNT_MAX,
    Layout,
    ShardPaths,
    make_layout,
    names_in,
    shard_numbers,
    shard_paths,
    write_layout,
)
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import SnapshotDamage
from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import FrameDamage
from topicsd.log.walk import UnreadableLog, open_wal_files
from topicsd.offline.table import plural
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, parse_segment_header
from topicsd.segment.entry import DATA

DAMAGED_NAME = f"{LAYOUT_NAME}.damaged"


class LayoutRefused(Exception):
    """The error that the files of the shards are insufficient or contradictory."""


class DerivedLayout(NamedTuple):
    """The layout derived from the shards, with the step and the risk of writing it."""

    layout: Layout
    step: str
    """The step of the repair, in words."""
    risk: str
    """The assumption that no file can confirm."""


def derive_layout(fs: Fs, data_dir: str) -> DerivedLayout:
    """Return the layout that fits the shards; LayoutRefused when no layout fits."""
    numbers = shard_numbers(fs, data_dir)
    count = len(numbers)
    if numbers != list(range(count)):
        missing = next(number for number in range(SHARD_COUNT_MAX) if number not in numbers)
        raise LayoutRefused(f"shards/{missing:02d} is missing. Restore it from a backup")
    instance = _instance(fs, data_dir, numbers)
    layout = make_layout(count, instance or os.urandom(INSTANCE_BYTES))
    if instance is None:
        origin = "a new instance, since no file names the old one"
    else:
        origin = f"instance {layout.instance}, which their files name"
    step = f"write {LAYOUT_NAME} for {plural(count, 'shard')}, one for each directory, and {origin}"
    risk = f"shards/{count - 1:02d} must be the last shard: no file records the number of shards"
    return DerivedLayout(layout, step, risk)


def write_derived(fs: Fs, data_dir: str, layout: Layout) -> None:
    """Write the layout; a damaged LAYOUT.json is kept under another name."""
    path = os.path.join(data_dir, LAYOUT_NAME)
    if exists(fs, path):
        fs.rename(path, os.path.join(data_dir, DAMAGED_NAME))
    write_layout(fs, data_dir, layout)


def _instance(fs: Fs, data_dir: str, numbers: list[int]) -> bytes | None:
    """Return the instance that all shards name, or None when no file names one.

    Segments name the shard and the instance that wrote them, which differ after a reshard or an adopt. So
    their shard is not used, and their instance only if it is the only evidence and they agree.
    """
    first_shards: dict[bytes, int] = {}
    of_writers: set[bytes] = set()
    for number in numbers:
        paths = shard_paths(data_dir, number)
        identities = [*_of_log(fs, paths)] or [*_of_snapshots(fs, paths)] or [*_of_manifest(fs, paths)]
        for instance, shard in identities:
            if shard != number:
                raise LayoutRefused(
                    f"shards/{number:02d} contains files of shard {shard:02d}. Rename the directory back"
                )
            first_shards.setdefault(instance, number)
        if not identities:
            of_writers.update(_of_segments(fs, paths))
    if len(first_shards) > 1:
        shards = " and ".join(
            f"shards/{number:02d} belongs to {one.hex()}" for one, number in first_shards.items()
        )
        raise LayoutRefused(f"the shards belong to different data directories: {shards}")
    named = first_shards or (of_writers if len(of_writers) == 1 else ())
    return next(iter(named), None)


def _of_log(fs: Fs, paths: ShardPaths) -> Iterator[tuple[bytes, int]]:
    try:
        files = open_wal_files(fs, paths)
    except UnreadableLog as error:
        raise LayoutRefused(f"{paths.wal}: {error}") from None
    for file in files:
        fs.close(file.fd)
        if file.header is not None:
            yield file.header.instance, file.header.shard


def _of_snapshots(fs: Fs, paths: ShardPaths) -> Iterator[tuple[bytes, int]]:
    for number in snapshot_numbers(fs, paths):
        try:
            head = read_snapshot(fs, paths, number).head
        except (SnapshotDamage, UnknownVersion):
            continue
        yield head.instance, head.shard


def _of_manifest(fs: Fs, paths: ShardPaths) -> Iterator[tuple[bytes, int]]:
    try:
        manifest = read_manifest(fs, paths)
    except (FileNotFoundError, ManifestDamage, UnknownVersion):
        return
    yield bytes.fromhex(manifest.instance), manifest.shard


def _of_segments(fs: Fs, paths: ShardPaths) -> Iterator[bytes]:
    for directory in names_in(fs, paths.topics):
        for name in names_in(fs, os.path.join(paths.topics, directory)):
            if name.endswith(DATA):
                fd = fs.open_read(os.path.join(paths.topics, directory, name))
                try:
                    header = parse_segment_header(fs.pread(fd, SEGMENT_HEADER_BYTES, 0))
                except (FrameDamage, UnknownVersion):
                    continue
                finally:
                    fs.close(fd)
                yield header.instance
