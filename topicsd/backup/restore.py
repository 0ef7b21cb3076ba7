"""The restore of a backup into an empty directory.

LAYOUT.json is written last, as in a new directory: until then no server starts there. A note with the id of
the backup comes first, by which an interrupted restore is recognised and continued. Each file is synced
before it has its name, so a file that exists is whole.

The restored directory needs no other store: `.data` of exported segments is in it, so its snapshot names no
object, and it lists none to be deleted. Otherwise two servers would delete the objects of each other. After a
backup that refers to objects, the snapshot names them, and the server needs the same store.

CURRENT says that the log ended cleanly at the point, when the log held every seq that was given out. So heads
resume exactly there. Otherwise they resume at their ceilings, as after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec
import xxhash

from topicsd.backup.manifest import BackupManifest, ShardContent, StoredFile
from topicsd.backup.repository import BackupError, Repository
from topicsd.backup.upload import THREADS
from topicsd.disk.atomic_replace import (
    TEMPORARY_SUFFIX,
    exists,
    read_all,
    recreate_file,
    replace_file,
    write_all,
)
from topicsd.disk.fs import Fs
from topicsd.disk.key_file import keys_path
from topicsd.disk.layout import LAYOUT_NAME, RESTORING_NAME, make_dirs, make_layout, shard_paths, write_layout
from topicsd.disk.placement_file import placement_path
from topicsd.engine.checkpoint.job import FILES_TO_DROP, OBJECTS_TO_DELETE
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line, write_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers, write_whole
from topicsd.engine.checkpoint.snapshot_format import (
    SnapshotTopic,
    encode_keys,
    encode_topic,
    snapshot_parts,
)
from topicsd.log.current_file import Current, write_current
from topicsd.segment.entry import COLD, HOT
from topicsd.store.block_cache import BlockCache
from topicsd.store.create_object import repeat_request

CACHE_BYTES: Final = 64 << 20
READ_BYTES: Final = 8 << 20
ID_BYTES_MAX: Final = 100
DEBTS: Final = frozenset((FILES_TO_DROP, OBJECTS_TO_DELETE))
"""Sections of what the original still had to drop."""


class Restorer:
    """The restore of one backup."""

    def __init__(
        self,
        fs: Fs,
        repository: Repository,
        manifest: BackupManifest,
        target: str,
        on_bytes: Callable[[int], object],
    ) -> None:
        self._fs = fs
        self._repository = repository
        self._manifest = manifest
        self._target = os.path.abspath(target)
        self._on_bytes = on_bytes
        self._cache = BlockCache(repository.store, CACHE_BYTES)

    def run(self) -> None:
        """Restore everything; raise BackupError, or an OSError of the disk or of the store."""
        fs, manifest = self._fs, self._manifest
        files = [file for shard in manifest.shards for file in shard.files]
        self._begin()
        for shard in manifest.shards:
            paths = shard_paths(self._target, shard.shard)
            for directory in (paths.root, *paths.optional_dirs):
                make_dirs(fs, directory)
        for directory in sorted({os.path.dirname(self._path_of(file)) for file in files}):
            make_dirs(fs, directory)
        # Files of one object one after the other: it is then read once, from its beginning to its end.
        files.sort(key=lambda file: (file.objects[:1], file.offset))
        pool = ThreadPoolExecutor(THREADS)
        try:
            for done in [pool.submit(self._restore_file, file) for file in files]:
                done.result()
        except BaseException:
            self._repository.stopping.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        for directory in {os.path.dirname(self._path_of(file)) for file in files}:
            fs.sync_dir(directory)
        for shard in manifest.shards:
            self._write_snapshot(shard.shard)
            if shard.log_file:
                self._write_current(shard)
        if manifest.placement:
            replace_file(fs, placement_path(self._target), manifest.placement)
        if manifest.keys:
            replace_file(fs, keys_path(self._target), manifest.keys)
        write_layout(
            fs, self._target, make_layout(manifest.head.shards, bytes.fromhex(manifest.head.instance))
        )
        fs.unlink(os.path.join(self._target, RESTORING_NAME))
        fs.sync_dir(self._target)

    def _begin(self) -> None:
        """Check that the target is empty, or of an interrupted restore of the same backup; make it."""
        note = os.path.join(self._target, RESTORING_NAME)
        backup_id = self._manifest.head.id.encode()
        make_dirs(self._fs, self._target)
        names = [name for name in self._fs.list_dir(self._target) if not name.startswith(RESTORING_NAME)]
        if exists(self._fs, note) and LAYOUT_NAME not in names:
            started = read_all(self._fs, note, ID_BYTES_MAX)
            if started != backup_id:
                raise BackupError(
                    f"{self._target} has an unfinished restore of backup {started.decode(errors='replace')}; "
                    "continue that one, or use an empty directory"
                )
            return
        if names and names != ["lost+found"]:
            raise BackupError(f"{self._target} is not empty; a restore needs an empty directory")
        replace_file(self._fs, note, backup_id)

    def _path_of(self, file: StoredFile) -> str:
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise BackupError(f"{file.path}: not a path below a data directory")
        return os.path.join(self._target, file.path)

    def _restore_file(self, file: StoredFile) -> None:
        fs, path = self._fs, self._path_of(file)
        if exists(fs, path) and fs.stat(path).size == file.size:
            self._on_bytes(file.stored_bytes)
            return
        fd = recreate_file(fs, path + TEMPORARY_SUFFIX)
        try:
            if file.digest:
                data = self._read(file.objects[0], file.offset, file.stored_bytes) if file.objects else b""
                if xxhash.xxh3_128_digest(data) != file.digest:
                    raise BackupError(f"{file.path}: damaged in the backup; run `topicsd backup verify`")
                write_all(fs, fd, data, 0)
            else:
                self._restore_parts(fd, file)
            if file.size > file.stored_bytes:
                fs.truncate(fd, file.size)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(path + TEMPORARY_SUFFIX, path)
        self._on_bytes(file.stored_bytes)

    def _restore_parts(self, fd: int, file: StoredFile) -> None:
        at = 0
        for index in file.objects:
            stored = self._manifest.objects[index]
            data = self._repository.read_part(stored.key, 0, stored.size)
            if xxhash.xxh3_128_digest(data) != stored.digest:
                raise BackupError(f"{stored.key}: damaged in the store; run `topicsd backup verify`")
            write_all(self._fs, fd, data, at)
            at += len(data)

    def _read(self, index: int, offset: int, size: int) -> bytes:
        key = self._manifest.objects[index].key
        if not size:
            return b""
        return repeat_request(partial(self._cache.read, key, offset, size), self._repository.retries())

    def _write_snapshot(self, shard: int) -> None:
        """Replace the snapshot by one of the restored files, and write MANIFEST.json for outside readers."""
        fs, paths, store_url = self._fs, shard_paths(self._target, shard), self._manifest.store_url
        for number in snapshot_numbers(fs, paths):
            snapshot = read_snapshot(fs, paths, number)
            topics = [_restored_topic(entry, has_store=bool(store_url)) for entry in snapshot.topics]
            sections = {
                name: section for name, section in snapshot.head.sections.items() if name not in DEBTS
            }
            head = msgspec.structs.replace(snapshot.head, sections=sections)
            if (head, topics) != (snapshot.head, snapshot.topics):
                parts = snapshot_parts(
                    head, [encode_topic(one) for one in topics], [encode_keys(one) for one in snapshot.keys]
                )
                write_whole(fs, paths.snapshot(number), parts)
            lines = [topic_line(entry, entry.head) for entry in topics]
            write_manifest(fs, paths, manifest_parts(manifest_head(head, store_url), lines))

    def _write_current(self, shard: ShardContent) -> None:
        fs, paths = self._fs, shard_paths(self._target, shard.shard)
        stat = fs.stat(paths.wal_file(shard.log_file))
        state = Current(
            state="clean" if shard.are_heads_exact else "running",
            file=shard.log_file,
            end=shard.log_end if shard.are_heads_exact else 0,
            boot_id=fs.boot_id() if shard.are_heads_exact else "",
            device=stat.device,
            wal_inode=stat.inode,
        )
        write_current(fs, paths.current, state)


def _restored_topic(entry: SnapshotTopic, *, has_store: bool) -> SnapshotTopic:
    """Return the entry of a topic after its restore; with `has_store` exported segments are in that only."""
    segments = [
        msgspec.structs.replace(one, tier=COLD)
        if has_store and one.object_stem
        else msgspec.structs.replace(one, tier=HOT, object_stem="")
        for one in entry.segments
    ]
    return msgspec.structs.replace(entry, segments=segments)
