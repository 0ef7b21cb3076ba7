"""A shard as a start would load it: its chosen snapshot, and the log replayed after it.

Nothing is written, so a server may run at the same time. That server may write a newer snapshot at any time
and drop files that the previous snapshot needs. A failed load is therefore retried, `TRIES` loads in all, as
long as the newest snapshot changes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from shared.settings.store_url import folder_url, store_folder
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, shard_paths
from topicsd.engine.checkpoint.load import DeadSets, choose_loadable_snapshot, load_snapshot
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.snapshot_files import snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.replay import Replay
from topicsd.engine.shard_data import ShardData
from topicsd.log.file_header import UnknownVersion
from topicsd.log.reader import WalBatch
from topicsd.log.walk import SnapshotLogState
from topicsd.log.writer import Identity
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.command_error import CommandError
from topicsd.offline.data_dir import DataDir
from topicsd.offline.shard_log import ShardLog
from topicsd.segment.dead_file import DeadDamage
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore
from topicsd.store.object_store import StoreRefused
from topicsd.store.open_store import open_store
from topicsd.store.remote_objects import ExtraMissing

TRIES = 5


class ChosenSnapshot(NamedTuple):
    """The snapshot that a start chooses before it reads the log."""

    snapshot: Snapshot | None
    complaints: list[str]
    """Messages about newer snapshots that a start cannot use."""
    problem: str
    """Why a start stops here; empty when it does not."""
    dead: DeadSets | None = None
    """The dead sets that were read to choose the snapshot."""
    skipped: Sequence[int] = ()
    """The numbers of the snapshots that are newer than the chosen one."""

    @property
    def known(self) -> SnapshotLogState | None:
        return None if self.snapshot is None else known_of(self.snapshot)

    @property
    def captured_to(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.head.end_ordinal

    @property
    def names(self) -> dict[int, str]:
        """Return the names of the topics by topic id."""
        topics = [] if self.snapshot is None else self.snapshot.topics
        return {topic.topic_id: topic.name for topic in topics}

    @property
    def heads(self) -> dict[int, int]:
        topics = [] if self.snapshot is None else self.snapshot.topics
        return {topic.topic_id: topic.head for topic in topics}


def known_of(snapshot: Snapshot) -> SnapshotLogState:
    return SnapshotLogState(snapshot.head.start, snapshot.head.end_file, snapshot.head.end_offset)


def choose_snapshot(fs: Fs, paths: ShardPaths, identity: Identity, segments: SegmentReader) -> ChosenSnapshot:
    numbers = snapshot_numbers(fs, paths)
    try:
        snapshot, complaints, dead = choose_loadable_snapshot(fs, paths, segments)
    except UnknownVersion as error:
        return ChosenSnapshot(None, [], f"a newer program wrote the newest snapshot: {error}")
    if snapshot is not None and (snapshot.head.instance, snapshot.head.shard) != identity:
        head = snapshot.head
        origin = f"shard {head.shard:02d} of instance {head.instance.hex()}"
        return ChosenSnapshot(None, complaints, f"snapshot {head.number} belongs to {origin}")
    skipped = [number for number in numbers if snapshot is not None and number > snapshot.head.number]
    return ChosenSnapshot(snapshot, complaints, "", dead, skipped)


class ReadOnlyStore(LocalStore):
    """A read-only segment store: files that a reader rebuilds stay in memory."""

    def put(self, key: str, source_read: Callable[[int, int], bytes], size: int) -> NoReturn:
        raise OSError(errno.EROFS, "the store is read-only", self.path_of(key))


def segment_files(data_dir: DataDir, shard: int) -> SegmentFiles:
    """Return read-only stores for all places of a shard's segments."""
    hot = ReadOnlyStore(data_dir.fs, data_dir.paths(shard).root)
    url = store_url_of_shard(data_dir, shard)
    folder = store_folder(url)
    cold = ReadOnlyStore(data_dir.fs, shard_paths(folder, shard).root) if folder else None
    return SegmentFiles(hot, cold, objects_of(url, data_dir.fs))


def objects_of(url: str, fs: Fs) -> SegmentObjects | None:
    """Return the objects of the store that a URL names; CommandError when it cannot be opened here."""
    if not url:
        return None
    try:
        return SegmentObjects(open_store(url, fs))
    except (ExtraMissing, StoreRefused) as error:
        raise CommandError(f"object store: {error}") from None


def store_url_of_shard(data_dir: DataDir, shard: int) -> str:
    """Return the URL of the object store from the command line, else from the manifest, else ""."""
    if data_dir.store_url:
        return data_dir.store_url
    try:
        manifest = read_manifest(data_dir.fs, data_dir.paths(shard))
    except (FileNotFoundError, ManifestDamage, UnknownVersion):
        return ""
    return manifest.store_url or folder_url(manifest.cold_dir or "")


class LoadedShard:
    """The state of one shard as a start would load it. Close it after use."""

    def __init__(
        self,
        data_dir: DataDir,
        shard: int,
        clock: Clock,
        chosen: ChosenSnapshot | None = None,
        files: SegmentFiles | None = None,
    ) -> None:
        """Load the snapshot; `chosen` and `files` replace those that a start would use."""
        self._override = chosen
        self._files = segment_files(data_dir, shard) if files is None else files
        self.data_dir = data_dir
        self.shard = shard
        self._clock = clock
        self.problem = ""
        """Why a start would stop before it reads the log; empty when it would not."""
        for left in reversed(range(TRIES)):
            self._open()
            is_in_doubt = self.problem or self.log.problem or self.log.has_missing_file
            if not left or not is_in_doubt or not self.is_outdated:
                break
            self.close()

    @property
    def identity(self) -> Identity:
        return self.data_dir.identity(self.shard)

    def close(self) -> None:
        self.log.close()
        self.segments.close()

    def walk(self) -> None:
        """Replay the log and judge its end; an obstacle is in `problem` or `log.problem`."""
        if self.problem:
            return
        try:
            self.log.walk(self.identity, self.replay_batch)
        except (SegmentDamage, DeadDamage, UnknownVersion) as damage:
            self.log.problem = f"cannot replay a frame of the log: {damage}"

    def replay_batch(self, batch: WalBatch, position: int) -> None:
        self._replay.batch(batch, position)

    def _open(self) -> None:
        fs, paths = self.data_dir.fs, self.data_dir.paths(self.shard)
        self._newest = snapshot_numbers(fs, paths)[:1]
        self.segments = SegmentReader(*self._files)
        self.chosen = chosen = self._override or choose_snapshot(fs, paths, self.identity, self.segments)
        self.problem = chosen.problem
        self.log = ShardLog(fs, paths, chosen.known, self.data_dir.is_held)
        self.state = state = ShardData(self._clock, Settings(), self.log.read_again, self.segments)
        self._replay = Replay(state, chosen.captured_to)
        if chosen.snapshot is None:
            return
        try:
            load_snapshot(state, chosen.snapshot, self._files.hot, chosen.dead)
        except FileNotFoundError as error:
            self.problem = f"{os.path.basename(str(error.filename))} is missing: {error.filename}"
        except (SegmentDamage, DeadDamage, UnknownVersion, OSError) as error:
            self.problem = str(error)

    @property
    def is_outdated(self) -> bool:
        """Whether the newest snapshot is no longer the one that was newest at the load."""
        return self._newest != snapshot_numbers(self.data_dir.fs, self.data_dir.paths(self.shard))[:1]
