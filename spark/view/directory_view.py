"""The topics of a shard as a `diff` request would see them now, from the files alone.

MANIFEST.json lists the segments with a few numbers each; the log after it is replayed by the code with which
a server starts. The engine's own rules therefore decide which records are deleted, evicted or expired, and
none is written twice. The cost is the list of segments, the active segment of each topic, and the log since
the last checkpoint, which the server keeps short.

The readable part of each topic ends at `durable`: a power cut may take back a frame after it, so such frames
are never read.
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
from spark.view.trash_store import files_with_trash, hold_files
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
from topicsd.offline.loaded_shard import ChosenSnapshot, LoadedShard
from topicsd.offline.manifest_snapshot import snapshot_of
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.spark")

TRIES = 20
"""Retries while newer manifests appear; more than this do not appear in a row."""


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
        """The last seq that was assigned, whether it is on disk or not."""
        return self.topic.head

    @property
    def end(self) -> int:
        """The seq after the last readable one."""
        return self.durable + 1

    @property
    def epoch(self) -> int:
        return self.topic.epoch

    @property
    def earliest(self) -> int:
        return self.topic.earliest_seq

    def seq_at(self, ts: int) -> int | None:
        """Return the first seq whose record is not older than `ts`.

        Calls may pass times in any order, unlike the expiry lookup.
        """
        for run in self.topic.runs:
            if run.first_seq < run.next_seq:
                find = run.find_seq_at_or_after if isinstance(run, SealedRun) else run.seq_at_or_after
                seq = find(ts)
                if seq < run.next_seq:
                    return max(seq, self.topic.earliest_seq)
        return None

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Return the first and last seq that cover the records of this time range.

        Other records of the same segments may be included: indexes are not read.
        """
        first, last = self.end, 0
        for run in self.topic.runs:
            if isinstance(run, SealedRun):
                if run.entry.last_ts >= from_ms and run.entry.first_ts <= to_ms:
                    first, last = min(first, run.first_seq), run.next_seq - 1
            else:
                low, high = run.seq_at_or_after(from_ms), run.seq_at_or_after(to_ms + 1) - 1
                if low <= high:
                    first, last = min(first, low), high
        return first, last

    def lost(self, start: int, end: int) -> LostRange | None:
        """Return the first lost range from `start` up to `end`; deleted records are not lost."""
        topic = self.topic
        if start < topic.evict_floor:
            return LostRange(start, topic.evict_floor - 1, topic.reason_for(start))
        lost = topic.lost.next_after(start - 1)
        if lost is None or lost.first >= end:
            return None
        return LostRange(max(start, lost.first), lost.last, lost.reason)

    def bytes_between(self, start: int, end: int) -> int:
        return bytes_between(self.topic, start, end)

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        return end_within(self.topic, start, end, bytes_max)

    @property
    def wal_starts(self) -> list[int]:
        """The log position at which each file begins."""
        return [file.start_position for file in self._walked]

    def wal_file(self, number: int) -> tuple[int, int]:
        """Return the file's first ordinal and its start position."""
        file = self._walked[number]
        return file.wal_file.first_ordinal, file.start_position

    @property
    def _walked(self) -> list[WalkedFile]:
        walk = self.loaded.log.walked
        assert walk is not None
        return walk.files


class DirectoryView:
    """The topics of the selected shards. Close it after use."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None, fs: Fs | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.data_dir = open_directory(options.path, options.cold_dir, fs)
        self.location = options.path
        self._stack = ExitStack()
        self.topics: dict[str, TopicView] = {}
        """The topics that the options select, by name, sorted."""
        selection = options.selection
        shards = sorted({self._owner(name) for name in selection.names}) or self.data_dir.shards
        try:
            views = [view for shard in shards for view in self._look(shard) if selection.matches(view.name)]
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        for view in sorted(views, key=lambda view: view.name):
            if not view.topic.is_ephemeral:
                self.topics[view.name] = view
            elif selection.pattern:
                logger.info("read: topic skipped: an ephemeral topic has no files  topic=%s", view.name)
            else:
                self.close()
                raise SourceError(
                    f'topic "{view.name}" is ephemeral: it has no files; set url to read it from the server'
                )

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> DirectoryView:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        self.close()
        if isinstance(error, SegmentDamage):
            # Looking up a position by time or size needs a segment's index.
            message = f"{self.location}: {error}"
            raise DamagedRecord(
                f"{message}; if the cold directory has moved, set coldDir to its path"
            ) from None

    def _owner(self, name: str) -> int:
        return shard_of(topic_id(name), self.data_dir.layout.shards)

    def _look(self, shard: int) -> list[TopicView]:
        # Files named by a manifest are kept only if the lock was taken before reading the manifest.
        hold_files(self._stack, self.data_dir, shard)
        loaded = self._stack.enter_context(closing(load(self.data_dir, shard, self._clock)))
        now_ms, synced = self._clock.now_ms(), loaded.log.synced_position
        views = []
        for topic in loaded.state.topics.values():
            expire(topic, now_ms)
            views.append(TopicView(topic, shard, durable_seq_at(topic, synced), loaded))
        return views


class OwnerlessFs(ReadOnlyFs):
    """A file system that skips lock owners: reads do not need them, and Linux takes 10 ms each."""

    def lock_owner(self, path: str) -> int | None:
        return None


def open_directory(path: str, cold_dir: str, fs: Fs | None = None) -> DataDir:
    read_only = OwnerlessFs(RealFs() if fs is None else fs)
    try:
        layout = read_layout(read_only, path)
    except LayoutError as error:
        raise SourceError(f"path: {error}") from None
    if layout is None:
        raise SourceError(f"path: {path} is not a data directory: it has no {LAYOUT_NAME}")
    return DataDir(read_only, path, layout, list(range(layout.shards)), cold_dir)


def load(data_dir: DataDir, shard: int, clock: Clock) -> LoadedShard:
    """Load the shard from its newest manifest and the log; retry if a newer manifest appears."""
    for left in reversed(range(TRIES)):
        manifest = _manifest(data_dir, shard)
        snapshot = None if manifest is None else snapshot_of(manifest, data_dir.identity(shard))
        loaded = LoadedShard(
            data_dir, shard, clock, ChosenSnapshot(snapshot, [], ""), files_with_trash(data_dir, shard)
        )
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
    raise SourceError(f"cannot read shard {shard:02d} of {data_dir.path}: {problem}")


def _number(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.number


def _manifest(data_dir: DataDir, shard: int) -> Manifest | None:
    """Return the manifest, or None before the first checkpoint."""
    paths = data_dir.paths(shard)
    try:
        manifest = read_manifest(data_dir.fs, paths)
    except FileNotFoundError:
        return None
    except (ManifestDamage, UnknownVersion) as error:
        raise SourceError(f"{paths.manifest}: {error}") from None
    if (bytes.fromhex(manifest.instance), manifest.shard) != data_dir.identity(shard):
        raise SourceError(f"{paths.manifest} belongs to another shard or data directory")
    return manifest
