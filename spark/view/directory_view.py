"""The topics of a shard as a `diff` request would see them now, from the files alone.

MANIFEST.json lists the segments with a few numbers each; the log after it is replayed by the code with which
a server starts. The engine's own rules therefore decide which records are deleted, evicted or expired, and
none is written twice. The cost is the list of segments, the active segment of each topic, and the log since
the last checkpoint, which the server keeps short.

The readable part of each topic ends at `durable`: a power cut may take back a frame after it, so such frames
are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from shared.ipc.placement import PlacementError
from shared.runtime.clock import Clock, SystemClock
from spark.errors import SourceError
from spark.source.read_options import ReadOptions
from spark.view.topic_view import FileView, TopicView
from spark.view.trash_store import files_with_trash, hold_files
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import LAYOUT_NAME, LayoutError, read_layout
from topicsd.disk.placement_file import read_placement
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.engine.checkpoint.manifest import Manifest, ManifestDamage, read_manifest
from topicsd.engine.ownership.departed import refuse_departed
from topicsd.engine.records.durable_seq import durable_seq_at
from topicsd.engine.retention.retention import expire
from topicsd.engine.topic import Topic
from topicsd.log.file_header import UnknownVersion
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import ChosenSnapshot, LoadedShard
from topicsd.offline.manifest_snapshot import snapshot_of

TRIES = 20
"""Retries while newer manifests appear; more than this do not appear in a row."""


class DirectoryView(FileView):
    """The topics of the selected shards of a data directory."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None, fs: Fs | None = None) -> None:
        super().__init__(options.path)
        self._clock = SystemClock() if clock is None else clock
        self.data_dir = open_directory(options.path, options.store_url, fs)
        selection = options.selection
        shards = sorted({self._owner(name) for name in selection.names}) or self.data_dir.shards
        with self._closed_on_error():
            views = [view for shard in shards for view in self._look(shard)]
            self._select(views, selection)

    def hold(self, stack: ExitStack) -> None:
        for shard in sorted({topic.shard for topic in self.topics.values()}):
            hold_files(stack, self.data_dir, shard)

    def _owner(self, name: str) -> int:
        return self.data_dir.placement.owner_of(name)

    def _look(self, shard: int) -> list[TopicView]:
        # Files named by a manifest are kept only if the lock was taken before reading the manifest.
        hold_files(self._stack, self.data_dir, shard)
        loaded = self._stack.enter_context(closing(load(self.data_dir, shard, self._clock)))
        departed = loaded.state.departed.values()
        self.departed |= {one.name: refuse_departed(one).message for one in departed}
        return list(views_of(loaded, self._clock.now_ms(), loaded.log.synced_position))


def views_of(loaded: LoadedShard, now_ms: int, synced: int) -> Iterator[TopicView]:
    """Yield the topics of a shard, after what expires at `now_ms`; readable up to the position `synced`."""
    for topic in loaded.state.topics.values():
        expire(topic, now_ms)
        yield view_of_topic(loaded, topic, synced)


def view_of_topic(loaded: LoadedShard, topic: Topic, synced: int) -> TopicView:
    walk = loaded.log.walked
    assert walk is not None
    return TopicView(topic, loaded.shard, durable_seq_at(topic, synced), loaded.segments, walk.files)


class OwnerlessFs(ReadOnlyFs):
    """A file system that skips lock owners: reads do not need them, and Linux takes 10 ms each."""

    def lock_owner(self, path: str) -> int | None:
        return None


def open_directory(path: str, store_url: str, fs: Fs | None = None) -> DataDir:
    read_only = OwnerlessFs(RealFs() if fs is None else fs)
    try:
        layout = read_layout(read_only, path)
        if layout is None:
            raise SourceError(f"path: {path} is not a data directory: it has no {LAYOUT_NAME}")
        placement = read_placement(read_only, path, layout.shards)
    except (LayoutError, PlacementError) as error:
        raise SourceError(f"path: {error}") from None
    return DataDir(read_only, path, layout, placement, list(range(layout.shards)), store_url)


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
