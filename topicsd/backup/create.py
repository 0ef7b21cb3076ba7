"""The creation of a backup.

The order of the steps is the guarantee:

1.  A mark in the store keeps a prune from deleting objects (`repository.py`).
2.  Reader locks in all shards keep files that the server drops from now on.
3.  Everything that the newest snapshots name is stored, and once more what newer snapshots name, until little
    is new. So the point is near the end of the backup, and little log follows the snapshots.
4.  The point is taken: one place in the log of each shard, all of it on the disk.
5.  The logs are stored from the snapshots to the point.
6.  When the backup refers to exported segments, their list is put into the store of the server, which keeps
    them from being deleted, and then each is looked up (`segment/referred_stems.py`).
7.  The manifest is created last. Before it there is no backup, only objects that the next attempt finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.program_version import program_version
from topicsd.backup.check import check_references
from topicsd.backup.manifest import (
    BackupHead,
    BackupManifest,
    ShardContent,
    StoredObject,
    encode_manifest,
    manifest_key,
)
from topicsd.backup.point import Point, take_point
from topicsd.backup.repository import CREATING, MARK_HOURS, PRUNING, BackupError, Repository
from topicsd.backup.segment_places import FileMissing, SegmentPlaces
from topicsd.backup.server_call import Source
from topicsd.backup.shard_files import ShardFiles
from topicsd.backup.upload import Uploader
from topicsd.disk.atomic_replace import read_all
from topicsd.disk.fs import Fs
from topicsd.disk.key_file import KEYS_BYTES_MAX, keys_path
from topicsd.disk.placement_file import PLACEMENT_BYTES_MAX, placement_path
from topicsd.engine.checkpoint.reader_lock import ReaderLock
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import store_url_of_shard
from topicsd.segment.entry import DATA
from topicsd.segment.referred_stems import BackupReferences, encode_references
from topicsd.store.create_object import create_object
from topicsd.store.object_store import ObjectStore
from topicsd.store.open_store import open_store

PASSES_MAX: Final = 4
LITTLE_BYTES: Final = 64 << 20
MARGIN_SECONDS: Final = 3600
POINTS_MAX: Final = 100


class CreateOptions(NamedTuple):
    source: Source
    rate: int = 0
    """Bytes a second; 0 is no limit."""
    is_full: bool = False
    """Whether every file is read, and every object looked up."""
    refers: bool = False
    """Whether exported segments are only named, not copied."""


class Creator:
    """The creation of one backup."""

    def __init__(
        self,
        fs: Fs,
        data_dir: DataDir,
        repository: Repository,
        options: CreateOptions,
        on_bytes: Callable[[int], object],
    ) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._repository = repository
        self._options = options
        self._on_bytes = on_bytes

    def run(self) -> BackupHead:
        """Create the backup; raise BackupError, or an OSError of the disk or of the store."""
        repository = self._repository
        started = repository.clock.monotonic()
        backup_id = repository.new_id()
        with ExitStack() as stack:
            now_ms = stack.enter_context(repository.marked(CREATING, backup_id))
            if marks := repository.marks(PRUNING, now_ms):
                raise BackupError(
                    f"a prune is running in this store; try again when it has ended, or delete {marks[0]} "
                    "if it was killed"
                )
            for shard in self._data_dir.shards:
                lock = ReaderLock(self._data_dir.paths(shard).readers, f"backup-{os.getpid()}", self._fs)
                stack.enter_context(lock)
            previous = None if self._options.is_full else self._previous()
            uploader = Uploader(repository, previous, self._options.rate, self._on_bytes)
            stack.callback(uploader.close)
            # Before the pool is closed: threads that wait for the store end at once after a failure.
            stack.callback(repository.stopping.set)
            manifest = self._store(uploader, backup_id, stack)
            # A prune trusts the mark no longer than this (X3).
            if repository.clock.monotonic() - started > MARK_HOURS * 3600 - MARGIN_SECONDS:
                raise BackupError(
                    f"the backup took almost {MARK_HOURS} h; what it stored serves the next attempt"
                )
            self._keep_references(manifest)
            create_object(
                repository.store, manifest_key(backup_id), [encode_manifest(manifest)], repository.retries()
            )
            return manifest.head

    def _keep_references(self, manifest: BackupManifest) -> None:
        """Have the objects that a backup refers to kept, and check that they exist (B1)."""
        stems = {one.key.removesuffix(DATA) for shard in manifest.shards for one in shard.references}
        if not stems:
            return
        repository = self._repository
        references = BackupReferences(manifest.head.id, repository.store.url, sorted(stems))
        with closing(open_store(manifest.store_url, self._fs)) as store:
            create_object(store, references.key, [encode_references(references)], repository.retries())
            if problems := check_references(manifest, repository.clock):
                store.delete(references.key)
                raise FileMissing(f"{problems[0]}; try again")

    def _previous(self) -> BackupManifest | None:
        instance = self._data_dir.layout.instance
        for listed in self._repository.backups():
            if listed.manifest is not None and listed.manifest.head.instance == instance:
                return listed.manifest
        return None

    def _store(self, uploader: Uploader, backup_id: str, stack: ExitStack) -> BackupManifest:
        data_dir = self._data_dir
        shards = self._shard_files(uploader, stack)
        snapshots = self._store_snapshots(shards, uploader)
        point, placement = self._take_point(snapshots)
        for shard, snapshot, end in zip(shards, snapshots, point.ends, strict=True):
            shard.store_log(snapshot, end)
        objects: dict[StoredObject, int] = {}
        contents = [
            ShardContent(
                number,
                uploader.finish(shard.paths, objects),
                end.file,
                end.offset,
                end.are_heads_exact,
                shard.references,
            )
            for number, (shard, end) in enumerate(zip(shards, point.ends, strict=True))
        ]
        head = self._head(backup_id, contents, point, uploader)
        store_url = next(filter(None, map(partial(store_url_of_shard, data_dir), data_dir.shards)), "")
        return BackupManifest(
            head,
            list(objects),
            contents,
            placement,
            store_url if self._options.refers else "",
            self._content(keys_path(data_dir.path), KEYS_BYTES_MAX),
        )

    def _shard_files(self, uploader: Uploader, stack: ExitStack) -> list[ShardFiles]:
        fs, data_dir = self._fs, self._data_dir
        stores: dict[str, ObjectStore] = {}
        shards = []
        for shard in data_dir.shards:
            url = store_url_of_shard(data_dir, shard)
            if url and url not in stores:
                stores[url] = open_store(url, fs)
                stack.callback(stores[url].close)
            places = SegmentPlaces(fs, data_dir.paths(shard), shard, url, stores.get(url))
            refers = self._options.refers
            shards.append(ShardFiles(fs, data_dir, shard, places, uploader, self._repository, refers=refers))
        return shards

    def _take_point(self, snapshots: list[Snapshot | None]) -> tuple[Point, bytes]:
        """Take a point during which the placement did not change, and return both.

        A topic that moves is on two shards until the placement says which one drops it, so another placement
        than that of the point could have both drop it.
        """
        for _ in range(POINTS_MAX):
            before = self._placement()
            point = take_point(self._fs, self._data_dir, self._options.source, snapshots)
            if self._placement() == before:
                return point, before
        raise BackupError("topics are being moved between shards all the time; try again later")

    def _placement(self) -> bytes:
        return self._content(placement_path(self._data_dir.path), PLACEMENT_BYTES_MAX)

    def _content(self, path: str, bytes_max: int) -> bytes:
        """Return the content of a file of the whole directory; empty without the file."""
        try:
            return read_all(self._fs, path, bytes_max)
        except FileNotFoundError:
            return b""

    def _store_snapshots(self, shards: list[ShardFiles], uploader: Uploader) -> list[Snapshot | None]:
        for passes_left in reversed(range(PASSES_MAX)):
            before = uploader.uploaded_bytes
            try:
                snapshots = [shard.store_snapshot() for shard in shards]
            except FileMissing:
                if not passes_left:
                    raise
                continue  # An object that a newer snapshot does not name was deleted.
            if uploader.uploaded_bytes - before < LITTLE_BYTES:
                break
        return snapshots

    def _head(
        self, backup_id: str, contents: list[ShardContent], point: Point, uploader: Uploader
    ) -> BackupHead:
        files = [file for content in contents for file in content.files]
        return BackupHead(
            backup_id,
            self._repository.clock.now_ms(),
            self._data_dir.layout.instance,
            self._data_dir.layout.shards,
            program_version(),
            len(files),
            sum(file.stored_bytes for file in files),
            uploader.uploaded_bytes,
            point.pause_ms,
        )
