"""The backup point: the end of the log of each shard, from the running server, or from files without one.

Without a server the locks of the directory are held while the logs are read to their ends. A server that
starts later changes no byte before these ends.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from shared.contract.backup_point import decode_point
from shared.ipc.link import SUPERVISOR
from topicsd.backup.repository import BackupError
from topicsd.backup.server_call import ServerRequest, Source, call_server
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs
from topicsd.disk.layout import lock_path
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.log.reader import WalBatch
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import known_of
from topicsd.offline.shard_log import ShardLog

POINT: Final = ServerRequest("create_backup_point", "/v0/backup-points", SUPERVISOR, "a backup point", 60.0)


class ShardEnd(NamedTuple):
    """The end of the log of one shard; file 0 is no log."""

    file: int
    offset: int
    are_heads_exact: bool


class Point(NamedTuple):
    ends: list[ShardEnd]
    pause_ms: float | None
    """The pause of writes; None without a server."""


def take_point(fs: Fs, data_dir: DataDir, source: Source, snapshots: list[Snapshot | None]) -> Point:
    """Take a point that is not before any of the snapshots."""
    if source.url:
        return _decode(call_server(fs, data_dir.path, source, POINT), data_dir)
    try:
        with ExitStack() as stack:
            stack.callback(DirLock(fs, lock_path(data_dir.path)).release)
            for shard in data_dir.shards:
                stack.callback(DirLock(fs, data_dir.paths(shard).lock).release)
            return Point([_end_of(data_dir, shard, snapshots[shard]) for shard in data_dir.shards], None)
    except DirectoryInUse:
        return _decode(call_server(fs, data_dir.path, source, POINT), data_dir)


def _decode(answer: bytes, data_dir: DataDir) -> Point:
    point = decode_point(answer)
    if len(point.shards) != data_dir.layout.shards:
        raise BackupError(
            f"the server has {len(point.shards)} shards, but {data_dir.path} has {data_dir.layout.shards}: "
            "it is the server of another directory"
        )
    return Point([ShardEnd(one.file, one.offset, True) for one in point.shards], point.pause_ms)


def _end_of(data_dir: DataDir, shard: int, snapshot: Snapshot | None) -> ShardEnd:
    known = None if snapshot is None else known_of(snapshot)
    with closing(ShardLog(data_dir.fs, data_dir.paths(shard), known, is_held=True)) as log:
        log.walk(data_dir.identity(shard), _ignore)
        if log.problem or log.walked is None:
            raise BackupError(
                f"shard {shard:02d}: {log.problem}; a backup is made of data that a server starts with: run "
                f"`topicsd doctor {data_dir.path}`"
            )
        if not log.walked.files:
            return ShardEnd(0, 0, True)
        last = log.walked.files[-1]
        return ShardEnd(last.wal_file.first_ordinal, last.end, log.heads_exact)


def _ignore(batch: WalBatch, position: int) -> None:
    del batch, position
