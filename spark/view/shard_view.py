"""The topics of a shard as a reader of `diff` has them at this moment, from the files alone.

How: MANIFEST.json says what is in segments, a few numbers each; the log behind it is replayed by the very
code with which a server starts. So what is deleted, evicted by a cap or expired is what the engine says, and
no rule of its is written a second time. It costs the segments, the active one of each topic, and the log
since the last checkpoint, which the server keeps short.

What is on the disk itself ends for each topic at `durable`: a frame behind it may be taken back by a power
cut and is never read.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import NamedTuple

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from shared.runtime.clock import Clock, SystemClock
from spark.errors import DamagedRecord, SourceError
from spark.source.admission import bytes_between, end_within
from spark.source.read_options import ReadOptions
from spark.view.kept_store import hold_files, kept_files
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import LAYOUT_NAME, LayoutError, read_layout
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.engine.checkpoint.manifest import Manifest, ManifestDamage, read_manifest
from topicsd.engine.records.durable_seq import durable_seq_at
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.retention.retention import expire
from topicsd.engine.topic import Topic
from topicsd.log.file_header import UnknownVersion
from topicsd.log.walk import WalkedFile
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import Basis, LoadedShard
from topicsd.offline.repair.diagnosis import snapshot_of
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.spark")

TRIES = 20
"""A retry is for a manifest that came meanwhile; more of them than this do not come in a row."""


class TopicView(NamedTuple):
    topic: Topic
    shard: int
    durable: int
    """The last seq that is on the disk itself."""
    loaded: LoadedShard

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def head(self) -> int:
        """The last seq that was given out, whether it is on the disk or not."""
        return self.topic.head

    @property
    def end(self) -> int:
        """The seq behind the last one that may be read."""
        return self.durable + 1

    @property
    def epoch(self) -> int:
        return self.topic.epoch

    @property
    def earliest(self) -> int:
        return self.topic.earliest_seq

    def seq_at(self, ts: int) -> int | None:
        """The first seq whose record is not older than `ts`. Asked in any order, unlike by what expires."""
        for run in self.topic.runs:
            if run.first_seq < run.next_seq:
                find = run.first_not_older_of_all if isinstance(run, SealedRun) else run.first_not_older
                found = find(ts)
                if found < run.next_seq:
                    return max(found, self.topic.earliest_seq)
        return None

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """The first and the last seq of all records of this time, and of others in the same segments: what is
        known without their indexes."""
        first, last = self.end, 0
        for run in self.topic.runs:
            if isinstance(run, SealedRun):
                if run.entry.last_ts >= from_ms and run.entry.first_ts <= to_ms:
                    first, last = min(first, run.first_seq), run.next_seq - 1
            else:
                low, high = run.first_not_older(from_ms), run.first_not_older(to_ms + 1) - 1
                if low <= high:
                    first, last = min(first, low), high
        return first, last

    def lost(self, start: int, end: int) -> LostRange | None:
        """The first records from `start` up to `end` that are gone and that nobody deleted."""
        topic = self.topic
        if start < topic.evict_floor:
            return LostRange(start, topic.evict_floor - 1, topic.reason_for(start))
        found = topic.lost.next_after(start - 1)
        if found is None or found.first >= end:
            return None
        return LostRange(max(start, found.first), found.last, found.reason)

    def bytes_between(self, start: int, end: int) -> int:
        return bytes_between(self.topic, start, end)

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        return end_within(self.topic, start, end, bytes_max)

    @property
    def wal_starts(self) -> list[int]:
        """From which position on each file of the log has frames."""
        return [file.start_position for file in self._walked]

    def wal_file(self, number: int) -> tuple[int, int]:
        """That file by its first ordinal, and the position."""
        file = self._walked[number]
        return file.found.first_ordinal, file.start_position

    @property
    def _walked(self) -> list[WalkedFile]:
        walk = self.loaded.log.walked
        assert walk is not None
        return walk.files


class DirectoryView:
    """What the wanted shards hold; close it when done."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None, fs: Fs | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.data_dir = open_directory(options.path, options.cold_dir, fs)
        self.place = options.path
        self._stack = ExitStack()
        self.topics: dict[str, TopicView] = {}
        """Those that the options select, by name in their order."""
        selection = options.selection
        shards = sorted({self._owner(name) for name in selection.names}) or self.data_dir.shards
        try:
            found = [view for shard in shards for view in self._look(shard) if selection.matches(view.name)]
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        for view in sorted(found, key=lambda view: view.name):
            if not view.topic.is_ephemeral:
                self.topics[view.name] = view
            elif selection.pattern:
                logger.info('topic "%s" is ephemeral: its records are in no file, skipped', view.name)
            else:
                self.close()
                raise SourceError(
                    f'topic "{view.name}" is ephemeral: its records are in no file; read it from the server'
                )

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> DirectoryView:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        self.close()
        if isinstance(error, SegmentDamage):
            # Where a place by time or size is looked up, an index is needed.
            told = f"{self.place}: {error}"
            raise DamagedRecord(f"{told}; coldDir says where old segments are") from None

    def _owner(self, name: str) -> int:
        return shard_of(topic_id(name), self.data_dir.layout.shards)

    def _look(self, shard: int) -> list[TopicView]:
        # What a manifest names stays for who had the lock before reading it.
        hold_files(self._stack, self.data_dir, shard)
        loaded = self._stack.enter_context(closing(load(self.data_dir, shard, self._clock)))
        now_ms, synced = self._clock.now_ms(), loaded.log.synced_position
        views = []
        for topic in loaded.state.topics.values():
            expire(topic, now_ms)
            views.append(TopicView(topic, shard, durable_seq_at(topic, synced), loaded))
        return views


class OwnerlessFs(ReadOnlyFs):
    """Does not look who holds a shard: what is read is the same, and Linux takes ten milliseconds to tell."""

    def lock_owner(self, path: str) -> int | None:
        return None


def open_directory(path: str, cold_dir: str, fs: Fs | None = None) -> DataDir:
    looking = OwnerlessFs(RealFs() if fs is None else fs)
    try:
        layout = read_layout(looking, path)
    except LayoutError as error:
        raise SourceError(f"path: {error}") from None
    if layout is None:
        raise SourceError(f"path: {path} is no data directory: it has no {LAYOUT_NAME}")
    return DataDir(looking, path, layout, list(range(layout.shards)), cold_dir)


def load(data_dir: DataDir, shard: int, clock: Clock) -> LoadedShard:
    """The shard as its newest manifest and the log have it; again when a newer one came meanwhile."""
    for left in reversed(range(TRIES)):
        manifest = _manifest(data_dir, shard)
        snapshot = None if manifest is None else snapshot_of(manifest, data_dir.identity(shard))
        loaded = LoadedShard(data_dir, shard, clock, Basis(snapshot, [], ""), kept_files(data_dir, shard))
        try:
            loaded.walk()
        except BaseException:
            loaded.close()
            raise
        problem = loaded.problem or loaded.log.problem
        if not problem:
            return loaded
        loaded.close()
        if not left or _number(_manifest(data_dir, shard)) == _number(manifest):
            break
    raise SourceError(f"shard {shard:02d} of {data_dir.path} cannot be read: {problem}")


def _number(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.number


def _manifest(data_dir: DataDir, shard: int) -> Manifest | None:
    """None before the first checkpoint."""
    paths = data_dir.paths(shard)
    try:
        manifest = read_manifest(data_dir.fs, paths)
    except FileNotFoundError:
        return None
    except (ManifestDamage, UnknownVersion) as error:
        raise SourceError(f"{paths.manifest}: {error}") from None
    if (bytes.fromhex(manifest.instance), manifest.shard) != data_dir.identity(shard):
        raise SourceError(f"{paths.manifest} is of another shard or directory")
    return manifest
