"""The topics of a backup: its files are read in the store, by the code that reads those of a directory.

The rows are those of the backup's point. The log in a backup ends there, all of it was on the disk, and what
expires by age is decided by the time of the backup and not by ours: an old backup of a topic with a short TTL
still has its records.

Each frame is checked as it is read. A log that ends before the point is damage, since only the manifest says
where it has to end.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from shared.ipc.placement import PLACEMENT_NAME, Placement, PlacementError, decode_placement
from shared.runtime.clock import SystemClock
from spark.errors import SourceError
from spark.source.read_options import ReadOptions
from spark.view.directory_view import views_of
from spark.view.object_place import ObjectPlace, StoredFiles, open_named_store, shown_url
from spark.view.topic_view import FileView, TopicView
from topicsd.backup.manifest import (
    BACKUPS,
    BackupManifest,
    ManifestDamaged,
    ShardContent,
    StoredFile,
    StoredObject,
)
from topicsd.backup.repository import Repository
from topicsd.disk.layout import make_layout
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard
from topicsd.store.object_fs import ObjectFile, ObjectPart

WHOLE_LOG: Final = 1 << 63


class PointClock(SystemClock):
    """A clock whose wall time is that of a backup."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


class BackupView(FileView):
    """The selected topics of one backup."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(shown_url(options.path))
        with self._closed_on_error():
            store = open_named_store(self._stack, "path", options.path)
            manifest = _manifest_of(Repository(store, SystemClock()), options.backup)
            self.location = f"{self.location}/{BACKUPS}{manifest.head.id}"
            files = _files_of(self.location, manifest)
            self._place = ObjectPlace(self.location, files, options.store_url or manifest.store_url)
            self._stored = StoredFiles(self._stack, options.path, self._place)
            data_dir = _data_dir_of(manifest, self._stored, self.location)
            clock = PointClock(manifest.head.created_ms)
            names = options.selection.names
            shards = {data_dir.placement.owner_of(name) for name in names} if names else data_dir.shards
            views: list[TopicView] = []
            for content in manifest.shards:
                if content.shard in shards:
                    loaded = self._load(data_dir, content, clock)
                    views += views_of(loaded, clock.now_ms(), WHOLE_LOG)
            self._select(views, options.selection)

    def place_of(self, shard: int, keys: Iterable[str]) -> ObjectPlace | None:
        return self._place._replace(files=self._stored.some_of(shard, keys))

    def _load(self, data_dir: DataDir, content: ShardContent, clock: PointClock) -> LoadedShard:
        shard = content.shard
        loaded = LoadedShard(data_dir, shard, clock, files=self._stored.segments(shard))
        self._stack.enter_context(closing(loaded))
        loaded.walk()
        problem = loaded.problem or loaded.log.problem or _difference(loaded, content)
        if problem:
            raise SourceError(
                f"cannot read shard {shard:02d} of {self.location}: {problem}; run `topicsd backup verify`"
            )
        return loaded


def _difference(loaded: LoadedShard, content: ShardContent) -> str:
    """Return how the end of the log differs from that of the manifest; empty when it does not."""
    walk = loaded.log.walked
    file, end = 0, 0
    if walk is not None and walk.files:
        file, end = walk.files[-1].wal_file.first_ordinal, walk.files[-1].end
    if (file, end) == (content.log_file, content.log_end):
        return ""
    return f"its log ends at {file}, offset {end}, but the backup at {content.log_file}, {content.log_end}"


def _manifest_of(repository: Repository, backup_id: str) -> BackupManifest:
    location = shown_url(repository.store.url)
    ids = repository.ids()
    if not ids:
        raise SourceError(f"path: {location} has no backup; to read exported topics, set catalog")
    if backup_id and backup_id not in ids:
        raise SourceError(f"backup: {backup_id} is not in {location}")
    backup_id = backup_id or ids[-1]
    try:
        return repository.read(backup_id)
    except FileNotFoundError:
        raise SourceError(f"backup: {backup_id} was deleted from {location}") from None
    except ManifestDamaged as damage:
        raise SourceError(f"backup: {backup_id} in {location} is damaged: {damage}") from None


def _data_dir_of(manifest: BackupManifest, stored: StoredFiles, location: str) -> DataDir:
    shards = manifest.head.shards
    layout = make_layout(shards, bytes.fromhex(manifest.head.instance))
    try:
        placement = Placement(shards)
        if manifest.placement:
            placement = decode_placement(manifest.placement, f"{location}/{PLACEMENT_NAME}", shards)
    except PlacementError as error:
        raise SourceError(f"path: {error}") from None
    return DataDir(stored.fs, location, layout, placement, list(range(shards)), is_held=True)


def _files_of(root: str, manifest: BackupManifest) -> dict[str, ObjectFile]:
    """Return the files of a backup by path."""
    return {
        f"{root}/{file.path}": ObjectFile(file.size, tuple(_parts_of(file, manifest.objects)))
        for shard in manifest.shards
        for file in shard.files
    }


def _parts_of(file: StoredFile, objects: list[StoredObject]) -> Iterable[ObjectPart]:
    offset, rest = file.offset, file.stored_bytes
    for index in file.objects:
        stored = objects[index]
        size = min(stored.size - offset, rest)
        yield ObjectPart(stored.key, offset, size)
        offset, rest = 0, rest - size
