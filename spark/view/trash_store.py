"""The files of a shard, including dropped ones: trash/ keeps them for a grace time.

Files stay in trash/ longer while a reader holds its lock.

A job follows a plan that is older than its last task. A file that is not in its place is therefore searched
where the server moves it: the directory of a topic that is being deleted, and trash/ under its name there. A
file in none of these was dropped longer ago than the grace time, or was dropped from the cold directory,
which keeps nothing.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_trash_name
from topicsd.engine.checkpoint.reader_lock import ReaderLock
from topicsd.engine.checkpoint.trash import DELETED_SUFFIX
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import ReadOnlyStore, segment_files
from topicsd.segment.store import SegmentStore

logger = logging.getLogger("topicsd.spark")


def hold_files(stack: ExitStack, data_dir: DataDir, shard: int) -> None:
    """Keep what the shard drops from now on; without write access only the grace time applies."""
    try:
        stack.enter_context(ReaderLock(data_dir.paths(shard).readers, f"spark-{os.getpid()}"))
    except OSError as error:
        logger.info(
            "reader lock: not taken, dropped files stay for the grace time only: %s  shard=%d", error, shard
        )


class TrashStore(ReadOnlyStore):
    """Segments by their keys, in the shard's directory or its trash.

    The trash of a busy shard is long, so the cold directory is checked before the trash is searched.
    """

    def __init__(self, fs: Fs, paths: ShardPaths, cold: SegmentStore | None) -> None:
        super().__init__(fs, paths.root)
        self._fs = fs
        self._paths = paths
        self._cold = cold

    def path_of(self, key: str) -> str:
        path = super().path_of(key)
        directory, name = os.path.split(path)
        for candidate in (path, os.path.join(directory + DELETED_SUFFIX, name)):
            if exists(self._fs, candidate):
                return candidate
        if self._cold is not None and self._cold.exists(key):
            return path
        return trash_path(self._fs, self._paths, ".".join(key.split("/")[1:])) or path

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        try:
            return super().read_range(key, offset, size)
        except FileNotFoundError:
            # The file may have moved between the check and the open; the second attempt finds its next place.
            return super().read_range(key, offset, size)


def trash_path(fs: Fs, paths: ShardPaths, name: str) -> str | None:
    """Return the path in trash/ of the file that was dropped last under this name, or None."""
    for trash_name in reversed(names_in(fs, paths.trash)):
        parsed = parse_trash_name(trash_name) if trash_name.endswith(name) else None
        if parsed is not None and parsed[2] == name:
            return os.path.join(paths.trash, trash_name)
    return None


def files_with_trash(data_dir: DataDir, shard: int) -> SegmentFiles:
    """Return all places of a shard's segments. The cold directory keeps no dropped files."""
    _, cold, objects = segment_files(data_dir, shard)
    return SegmentFiles(TrashStore(data_dir.fs, data_dir.paths(shard), cold), cold, objects)
