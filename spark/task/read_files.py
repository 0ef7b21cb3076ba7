"""Task reads from the files of a shard, as batches of Arrow.

* Each frame is checked whole before a byte of it is used. Damage fails the task with the file, offset and
  seq, or is skipped and counted.
* While a task reads, it holds the reader's lock of its shard, so that files dropped meanwhile stay in trash/.
  A file that is missing anyway was dropped earlier, longer ago than the grace time; the range is then looked
  up again through the current manifest.
* Of a backup or a store the partition names the objects. They need no lock and have no second place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.runtime.clock import SystemClock
from spark.errors import DamagedRecord, DataLoss, SourceError
from spark.optimizer.limits import NO_LIMITS, Limits
from spark.source.columns import FROM_ENTRY, FROM_INDEX
from spark.source.read_options import ReadOptions
from spark.task.file_range import FilePartition, FileRange, LogFrames, file_ranges_of
from spark.task.frame_table import FrameTable, Numbers
from spark.task.record_batch import Rows, batch_of
from spark.view.directory_view import load, open_directory, view_of_topic
from spark.view.object_place import StoredFiles
from spark.view.trash_store import files_with_trash, hold_files, trash_path
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, wal_name
from topicsd.engine.read.page import Frames
from topicsd.engine.routes.copies import frame_copies
from topicsd.log.frame import FrameDamage
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.data_dir import DataDir
from topicsd.segment.data_file import check_frame
from topicsd.segment.dead_file import unpack_marks
from topicsd.segment.entry import DATA, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.store.object_store import StoreRefused, StoreUnavailable

BATCH_RECORDS = 1 << 16
BATCH_BYTES = 8 << 20
# With a reader's lock one is enough.
LOOKUPS_MAX = 5

logger = logging.getLogger("topicsd.spark")


def read_partition(
    options: ReadOptions, schema: pa.Schema, part: FilePartition, limits: Limits = NO_LIMITS
) -> Iterator[pa.RecordBatch]:
    with ExitStack() as stack:
        files = _open_files(stack, options, part)
        task = stack.enter_context(closing(FileTask(files, options, schema, limits)))
        for file_range in part.ranges:
            yield from task.read(file_range)
        task.log_skipped()


class TaskFiles(NamedTuple):
    """The files of the shard that a task reads."""

    fs: Fs
    paths: ShardPaths
    segments: SegmentFiles
    data_dir: DataDir | None
    """None when the files are objects."""


def _open_files(stack: ExitStack, options: ReadOptions, part: FilePartition) -> TaskFiles:
    if part.place is not None:
        stored = StoredFiles(stack, options.path, part.place)
        return TaskFiles(stored.fs, stored.paths(part.shard), stored.segments(part.shard), None)
    data_dir = open_directory(options.path, options.store_url)
    hold_files(stack, data_dir, part.shard)
    return TaskFiles(
        data_dir.fs, data_dir.paths(part.shard), files_with_trash(data_dir, part.shard), data_dir
    )


class _FileMissing(Exception):
    """The file of this name is in none of its possible places."""


class FileTask:
    def __init__(self, files: TaskFiles, options: ReadOptions, schema: pa.Schema, limits: Limits) -> None:
        self._options = options
        self._schema = schema
        self._limits = limits
        self._needs_index = not FROM_ENTRY.issuperset(schema.names)
        self._needs_frames = not FROM_INDEX.issuperset(schema.names)
        self._fs, self._paths, self._files, self._data_dir = files
        self._segments = SegmentReader(*self._files)
        self._next_seq = 0
        """The first seq of the current range that was not yielded yet."""
        self._skipped = 0

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def close(self) -> None:
        self._segments.close()

    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        self._next_seq = file_range.first_seq
        rest, tries = [file_range], LOOKUPS_MAX
        while rest:
            try:
                yield from self.batches(rest[0])
                self._next_seq = rest.pop(0).last_seq + 1
            except _FileMissing as missing:
                if self._data_dir is None:
                    raise SourceError(
                        f"{self._paths.root}: {missing} is missing: the object was deleted after the query "
                        "was planned; run the query again"
                    ) from None
                if not tries:
                    raise SourceError(
                        f"{self._paths.root}: {missing} is missing, although the manifest names it; "
                        "if the object store has moved, set storeUrl to its URL"
                    ) from None
                tries -= 1
                rest = self._look_up(self._data_dir, file_range)
            except (StoreUnavailable, StoreRefused) as error:
                raise SourceError(
                    f"{self._paths.root}: the object store does not answer: {error}; "
                    "if it has moved, set storeUrl to its URL"
                ) from None

    def log_skipped(self) -> None:
        if self._skipped:
            logger.warning("read: skipped damaged records: mode=PERMISSIVE  count=%d", self._skipped)

    def batches(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        self._next_seq = file_range.first_seq
        if file_range.segment is not None:
            return self._of_segment(file_range, *file_range.segment)
        assert file_range.log is not None
        return self._of_log(file_range, file_range.log)

    def _look_up(self, data_dir: DataDir, file_range: FileRange) -> list[FileRange]:
        """Return where the rest of a range is now, as far as it still exists."""
        with closing(load(data_dir, file_range.shard, SystemClock())) as loaded:
            topic = loaded.state.topics_by_id.get(file_range.topic_id)
            if topic is None or topic.epoch != file_range.epoch:
                return []  # A deleted topic is not data loss.
            if self._next_seq < topic.evict_floor and self._options.fail_on_data_loss:
                reason = topic.reason_for(self._next_seq)
                bounds = f"read from seq {self._next_seq}, earliest is now {topic.earliest_seq} ({reason})"
                raise DataLoss(f'topic "{file_range.topic}": {bounds}; set failOnDataLoss=false to continue')
            view = view_of_topic(loaded, topic, loaded.log.synced_position)
            return list(file_ranges_of(view, self._next_seq, file_range.last_seq, BATCH_RECORDS))

    def _of_segment(
        self, file_range: FileRange, name: SegmentName, entry: SegmentEntry
    ) -> Iterator[pa.RecordBatch]:
        file = self.file_of(name, entry)
        seqs = np.arange(file_range.first_seq, file_range.last_seq + 1, dtype=np.int64)
        alive = _alive(file_range)
        if not self._needs_index and name.generation == 0:
            # All of its seqs are present or marked dead: generation 0 was never compacted.
            yield from self._without_frames(file_range, seqs[alive], None)
            return
        try:
            index = self._segments.load_index(name, entry)
        except SegmentDamage as damage:
            self._refuse_damage(damage, name, entry, "")
            self._skipped += file_range.record_count
            return
        low, high = file_range.first_seq - index.first_seq, file_range.last_seq - index.first_seq + 1
        offsets = np.frombuffer(index.offsets, np.uint32)[low:high].astype(np.int64)
        lengths = np.frombuffer(index.lengths, np.uint32)[low:high].astype(np.int64)
        times_ms = np.frombuffer(index.times_ms, np.uint64)[low:high].astype(np.int64)
        # Damaged records have no known times.
        if self._limits.has_times and not index.has_damage:
            in_time = _between(times_ms, self._limits.from_ms, self._limits.to_ms)
            seqs, alive = seqs[in_time], alive[in_time]
            offsets, lengths, times_ms = offsets[in_time], lengths[in_time], times_ms[in_time]
            if not len(seqs):
                return
        first_seq = int(seqs[0])
        # A compacted segment has length 0 for each record it left out.
        alive &= lengths > 0
        if not self._needs_frames and not index.has_damage:
            yield from self._without_frames(file_range, seqs[alive], times_ms[alive])
            return
        for at, end in _read_ranges(offsets, lengths):
            while at < end:
                try:
                    data, start = self._segments.frames(name, entry, index, int(seqs[at]), int(seqs[end - 1]))
                except SegmentDamage as damage:
                    self._refuse_damage(
                        damage, name, entry, f", offset {index.place_of(damage.first_seq)[0]}"
                    )
                    damaged = slice(damage.first_seq - first_seq, damage.last_seq - first_seq + 1)
                    self._skipped += int(alive[damaged].sum())
                    alive[damaged] = False
                    before = damage.first_seq - first_seq
                    if before > at:
                        data, start = self._segments.frames(
                            name, entry, index, int(seqs[at]), int(seqs[before - 1])
                        )
                        keep = _live(alive, at, before)
                        columns = (offsets[keep] - start, lengths[keep], seqs[keep], times_ms[keep])
                        yield from self._checked(file_range, file, data, offsets[keep], *columns)
                    at = damage.last_seq - first_seq + 1
                    continue
                keep = _live(alive, at, end)
                columns = (offsets[keep] - start, lengths[keep], seqs[keep], times_ms[keep])
                yield from self._checked(file_range, file, data, offsets[keep], *columns)
                at = end

    def file_of(self, name: SegmentName, entry: SegmentEntry) -> str:
        place = self._files.place_of(name, entry, DATA)
        if place is None:
            raise _FileMissing(name.key(DATA))
        copies, key = place
        return copies.path_of(key)

    def _refuse_damage(
        self, damage: SegmentDamage, name: SegmentName, entry: SegmentEntry, offset: str
    ) -> None:
        """Raise unless damage is to be skipped; raise `_FileMissing` if the file was dropped."""
        file = self.file_of(name, entry)
        if not self._options.is_permissive:
            where = f"{file}{offset}, seqs {damage.first_seq} to {damage.last_seq}: {damage.what}"
            raise DamagedRecord(f"{where}; set mode=PERMISSIVE to skip damaged records") from None

    def _of_log(self, file_range: FileRange, log: LogFrames) -> Iterator[pa.RecordBatch]:
        offsets = np.frombuffer(log.offsets, np.uint64).astype(np.int64)
        lengths = np.frombuffer(log.lengths, np.uint32).astype(np.int64)
        times_ms = np.frombuffer(log.times_ms, np.uint64).astype(np.int64)
        seqs = np.arange(file_range.first_seq, file_range.last_seq + 1, dtype=np.int64)
        alive = _alive(file_range)
        if not self._needs_frames:
            yield from self._without_frames(file_range, seqs[alive], times_ms[alive])
            return
        fs = self._fs
        file, fd = self._open_log(log.file)
        try:
            packed = _packed_offsets(offsets, lengths)
            for at, end in _read_ranges(packed, lengths):
                data = _read_frames(fs, fd, offsets[at:end], lengths[at:end])
                starts = packed - packed[at]
                if log.copies:
                    first, marks = int(seqs[at]), log.copies[at:end]
                    data = _as_copies(
                        file_range, first, data, marks, starts[at:end], lengths[at:end], times_ms[at:end]
                    )
                keep = _live(alive, at, end)
                columns = (starts[keep], lengths[keep], seqs[keep], times_ms[keep])
                yield from self._checked(file_range, file, data, offsets[keep], *columns)
        finally:
            fs.close(fd)

    def _open_log(self, ordinal: int) -> tuple[str, int]:
        fs, path = self._fs, self._paths.wal_file(ordinal)
        with suppress(FileNotFoundError):
            return path, fs.open_read(path)
        in_trash = trash_path(fs, self._paths, wal_name(ordinal))
        if in_trash is not None:
            with suppress(FileNotFoundError):
                return in_trash, fs.open_read(in_trash)
        raise _FileMissing(wal_name(ordinal))

    def _without_frames(
        self, file_range: FileRange, seqs: Numbers, times_ms: Numbers | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches from seqs and times alone; `times_ms` is None if no column needs them."""
        if times_ms is None:
            times_ms = np.zeros(len(seqs), dtype=np.int64)
        for at in range(0, len(seqs), BATCH_RECORDS):
            part = slice(at, at + BATCH_RECORDS)
            rows = Rows(file_range.topic, file_range.shard, seqs[part], times_ms[part], None)
            yield batch_of(rows, self._schema)

    def _checked(
        self,
        file_range: FileRange,
        file: str,
        data: bytes,
        offsets: Numbers,
        starts: Numbers,
        lengths: Numbers,
        seqs: Numbers,
        times_ms: Numbers,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the valid frames; raise DamagedRecord for others unless PERMISSIVE.

        `offsets` are offsets in the file, `starts` are offsets in `data`.
        """
        while len(seqs):
            frames = FrameTable(data, starts, lengths, file_range.topic_id, seqs)
            if not frames.bad.any():
                self._next_seq = int(seqs[-1]) + 1
                yield batch_of(Rows(file_range.topic, file_range.shard, seqs, times_ms, frames), self._schema)
                return
            if not self._options.is_permissive:
                first = int(np.flatnonzero(frames.bad)[0])
                offset, seq = int(offsets[first]), int(seqs[first])
                what = _what(data, int(starts[first]), int(lengths[first]), file_range.topic_id, seq)
                where = f'{file}, offset {offset}, seq {seq} of topic "{file_range.topic}" is damaged: {what}'
                raise DamagedRecord(f"{where}; set mode=PERMISSIVE to skip damaged records")
            good = ~frames.bad
            self._skipped += int(frames.bad.sum())
            offsets, starts, lengths = offsets[good], starts[good], lengths[good]
            seqs, times_ms = seqs[good], times_ms[good]


def _alive(file_range: FileRange) -> npt.NDArray[np.bool_]:
    if not file_range.dead:
        return np.ones(file_range.record_count, dtype=np.bool_)
    return ~np.frombuffer(unpack_marks(file_range.dead, file_range.record_count), np.bool_)


def _live(alive: npt.NDArray[np.bool_], at: int, end: int) -> slice | Numbers:
    """Return the live records of a range, as a slice (which copies nothing) if all are live."""
    live = alive[at:end]
    return slice(at, end) if live.all() else at + np.flatnonzero(live)


def _packed_offsets(offsets: Numbers, lengths: Numbers) -> Numbers:
    """Return the frames' offsets after frames that are out of order are laid end to end."""
    back = np.maximum(0, (offsets + lengths)[:-1] - offsets[1:])
    return offsets + np.concatenate(([0], np.cumsum(back)))


def _read_frames(fs: Fs, fd: int, offsets: Numbers, lengths: Numbers) -> bytes:
    """Read frames with one read for each run that is in order, gaps included."""
    ends = offsets + lengths
    breaks = np.flatnonzero(offsets[1:] < ends[:-1]) + 1
    parts = []
    for at, end in pairwise([0, *breaks.tolist(), len(offsets)]):
        start, size = int(offsets[at]), int(ends[end - 1] - offsets[at])
        # Missing bytes damage only the frames that lack them.
        parts.append(fs.pread(fd, size, start).ljust(size, b"\0"))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _as_copies(
    file_range: FileRange,
    first_seq: int,
    data: bytes,
    marks: bytes,
    starts: Numbers,
    lengths: Numbers,
    times_ms: Numbers,
) -> bytes:
    """Return frames of originals rewritten as frames of their copies, at the same offsets."""
    frames = Frames(first_seq, data, starts.tolist(), lengths.tolist())
    return frame_copies(frames, times_ms.tolist(), marks, file_range.topic_id, is_durable=False).data


def _between(times_ms: Numbers, from_ms: int, to_ms: int) -> slice:
    """Return the part with all records of this time range; in shared topics times may fall."""
    matches = np.flatnonzero((times_ms >= from_ms) & (times_ms <= to_ms))
    return slice(int(matches[0]), int(matches[-1]) + 1) if len(matches) else slice(0, 0)


def _read_ranges(offsets: Numbers, lengths: Numbers) -> Iterator[tuple[int, int]]:
    """Yield ranges of records to read at once: at least one record, up to the batch bounds."""
    at, ends = 0, offsets + lengths
    while at < len(offsets):
        end = int(np.searchsorted(ends, int(offsets[at]) + BATCH_BYTES, side="right"))
        end = max(at + 1, min(end, at + BATCH_RECORDS))
        yield at, end
        at = end


def _what(data: bytes, at: int, length: int, topic_id: int, seq: int) -> str:
    try:
        check_frame(data, at, length, topic_id, seq)
    except FrameDamage as damage:
        return damage.what
    return "the lengths of its parts do not add up to its size"
