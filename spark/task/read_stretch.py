"""Task reads from the files of a shard, as batches of Arrow.

* Each frame is checked whole before a byte of it is used. Damage fails the task with the file, offset and
  seq, or is skipped and counted.
* While a task reads, it holds the reader's lock of its shard, so that files dropped meanwhile stay in trash/.
  A file that is missing anyway was dropped earlier, longer ago than the grace time; the range is then looked
  up again through the current manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.runtime.clock import SystemClock
from spark.errors import DamagedRecord, DataLoss, SourceError
from spark.optimizer.limits import NO_LIMITS, Limits
from spark.source.columns import FROM_ENTRY, FROM_INDEX
from spark.source.read_options import ReadOptions
from spark.task.frame_table import FrameTable, Numbers
from spark.task.record_batch import Rows, batch_of
from spark.task.stretch import LogPieces, Stretch, StretchPartition, stretches_of
from spark.view.kept_store import hold_files, kept_files, kept_path
from spark.view.shard_view import TopicView, load, open_directory
from topicsd.disk.fs import Fs
from topicsd.disk.layout import wal_name
from topicsd.engine.read.page import Frames
from topicsd.engine.records.durable_seq import durable_seq_at
from topicsd.engine.routes.copies import frame_copies
from topicsd.log.frame import FrameDamage
from topicsd.offline.data_dir import DataDir
from topicsd.segment.data_file import check_frame
from topicsd.segment.dead_file import unpack_marks
from topicsd.segment.entry import DATA, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader

BATCH_RECORDS = 1 << 16
BATCH_BYTES = 8 << 20
# With a reader's lock one is enough.
LOOK_UPS = 5

logger = logging.getLogger("topicsd.spark")


def read_partition(
    options: ReadOptions, schema: pa.Schema, part: StretchPartition, limits: Limits = NO_LIMITS
) -> Iterator[pa.RecordBatch]:
    data_dir = open_directory(options.path, options.cold_dir)
    with ExitStack() as stack:
        hold_files(stack, data_dir, part.shard)
        task = stack.enter_context(closing(_Task(data_dir, options, schema, part.shard, limits)))
        for stretch in part.stretches:
            yield from task.read(stretch)
        task.say_what_was_skipped()


class _Gone(Exception):
    """The file of this name is in none of its possible places."""


class _Task:
    def __init__(
        self, data_dir: DataDir, options: ReadOptions, schema: pa.Schema, shard: int, limits: Limits
    ) -> None:
        self._data_dir = data_dir
        self._options = options
        self._schema = schema
        self._limits = limits
        self._needs_index = not FROM_ENTRY.issuperset(schema.names)
        self._needs_frames = not FROM_INDEX.issuperset(schema.names)
        self._paths = data_dir.paths(shard)
        self._files = kept_files(data_dir, shard)
        self._segments = SegmentReader(self._files.hot, self._files.cold)
        self._next_seq = 0
        """The first seq of the current range that was not yielded yet."""
        self._skipped = 0

    def close(self) -> None:
        self._segments.close()

    def read(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        self._next_seq = stretch.first_seq
        rest, tries = [stretch], LOOK_UPS
        while rest:
            try:
                yield from self._batches(rest[0])
                self._next_seq = rest.pop(0).last_seq + 1
            except _Gone as gone:
                if not tries:
                    raise SourceError(
                        f"{gone} of {self._paths.root} is missing, though the manifest names it; "
                        "coldDir says where old segments are when they were moved again"
                    ) from None
                tries -= 1
                rest = self._look_up(stretch)

    def say_what_was_skipped(self) -> None:
        if self._skipped:
            logger.warning("%d damaged records were skipped (mode=PERMISSIVE)", self._skipped)

    def _batches(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        if stretch.segment is not None:
            return self._of_segment(stretch, *stretch.segment)
        assert stretch.log is not None
        return self._of_log(stretch, stretch.log)

    def _look_up(self, stretch: Stretch) -> list[Stretch]:
        """Return where the rest of a range is now, as far as it still exists."""
        with closing(load(self._data_dir, stretch.shard, SystemClock())) as loaded:
            topic = loaded.state.topics_by_id.get(stretch.topic_id)
            if topic is None or topic.epoch != stretch.epoch:
                return []  # A deleted topic is not data loss.
            if self._next_seq < topic.evict_floor and self._options.fail_on_data_loss:
                reason = topic.reason_for(self._next_seq)
                told = (
                    f"wanted seq {self._next_seq}, and the earliest is {topic.earliest_seq} by now ({reason})"
                )
                raise DataLoss(f'topic "{stretch.topic}": {told}; failOnDataLoss=false reads on without them')
            view = TopicView(topic, stretch.shard, durable_seq_at(topic, loaded.log.synced_position), loaded)
            return list(stretches_of(view, self._next_seq, stretch.last_seq, BATCH_RECORDS))

    def _of_segment(
        self, stretch: Stretch, name: SegmentName, entry: SegmentEntry
    ) -> Iterator[pa.RecordBatch]:
        file = self._file_of(name)
        seqs = np.arange(stretch.first_seq, stretch.last_seq + 1, dtype=np.int64)
        alive = _alive(stretch)
        if not self._needs_index and name.generation == 0:
            # All of its seqs are present or marked dead: generation 0 was never compacted.
            yield from self._without_frames(stretch, seqs[alive], None)
            return
        try:
            index = self._segments.load_index(name, entry)
        except SegmentDamage as damage:
            self._refuse_damage(damage, name, "")
            self._skipped += stretch.record_count
            return
        low, high = stretch.first_seq - index.first_seq, stretch.last_seq - index.first_seq + 1
        offsets = np.frombuffer(index.offsets, np.uint32)[low:high].astype(np.int64)
        lengths = np.frombuffer(index.lengths, np.uint32)[low:high].astype(np.int64)
        stamps = np.frombuffer(index.stamps, np.uint64)[low:high].astype(np.int64)
        # Damaged records have no known times.
        if self._limits.has_times and not index.has_damage:
            wanted = _between(stamps, self._limits.from_ms, self._limits.to_ms)
            seqs, alive = seqs[wanted], alive[wanted]
            offsets, lengths, stamps = offsets[wanted], lengths[wanted], stamps[wanted]
            if not len(seqs):
                return
        first_seq = int(seqs[0])
        # A compacted segment has length 0 for each record it left out.
        alive &= lengths > 0
        if not self._needs_frames and not index.has_damage:
            yield from self._without_frames(stretch, seqs[alive], stamps[alive])
            return
        for at, upto in _pieces(offsets, lengths):
            while at < upto:
                try:
                    data, start = self._segments.frames(
                        name, entry, index, int(seqs[at]), int(seqs[upto - 1])
                    )
                except SegmentDamage as damage:
                    self._refuse_damage(damage, name, f", offset {index.place_of(damage.first_seq)[0]}")
                    gone = slice(damage.first_seq - first_seq, damage.last_seq - first_seq + 1)
                    self._skipped += int(alive[gone].sum())
                    alive[gone] = False
                    before = damage.first_seq - first_seq
                    if before > at:
                        data, start = self._segments.frames(
                            name, entry, index, int(seqs[at]), int(seqs[before - 1])
                        )
                        keep = _kept(alive, at, before)
                        places = (offsets[keep] - start, lengths[keep], seqs[keep], stamps[keep])
                        yield from self._checked(stretch, file, data, offsets[keep], *places)
                    at = damage.last_seq - first_seq + 1
                    continue
                keep = _kept(alive, at, upto)
                places = (offsets[keep] - start, lengths[keep], seqs[keep], stamps[keep])
                yield from self._checked(stretch, file, data, offsets[keep], *places)
                at = upto

    def _file_of(self, name: SegmentName) -> str:
        for store in self._files:
            if store is not None and store.exists(name.key(DATA)):
                return store.path_of(name.key(DATA))
        raise _Gone(name.key(DATA))

    def _refuse_damage(self, damage: SegmentDamage, name: SegmentName, offset: str) -> None:
        """Raise unless damage is to be skipped; raise `_Gone` if the file was dropped."""
        file = self._file_of(name)
        if not self._options.is_permissive:
            where = f"{file}{offset}, seqs {damage.first_seq} to {damage.last_seq}: {damage.what}"
            raise DamagedRecord(f"{where}; mode=PERMISSIVE skips what is damaged") from None

    def _of_log(self, stretch: Stretch, log: LogPieces) -> Iterator[pa.RecordBatch]:
        offsets = np.frombuffer(log.offsets, np.uint64).astype(np.int64)
        lengths = np.frombuffer(log.lengths, np.uint32).astype(np.int64)
        stamps = np.frombuffer(log.stamps, np.uint64).astype(np.int64)
        seqs = np.arange(stretch.first_seq, stretch.last_seq + 1, dtype=np.int64)
        alive = _alive(stretch)
        if not self._needs_frames:
            yield from self._without_frames(stretch, seqs[alive], stamps[alive])
            return
        fs = self._data_dir.fs
        file, fd = self._open_log(log.file)
        try:
            gathered = _gathered(offsets, lengths)
            for at, upto in _pieces(gathered, lengths):
                data = _gather(fs, fd, offsets[at:upto], lengths[at:upto])
                starts = gathered - gathered[at]
                if log.copies:
                    first, columns = int(seqs[at]), (starts[at:upto], lengths[at:upto], stamps[at:upto])
                    data = _as_copies(stretch, first, data, log.copies[at:upto], *columns)
                keep = _kept(alive, at, upto)
                places = (starts[keep], lengths[keep], seqs[keep], stamps[keep])
                yield from self._checked(stretch, file, data, offsets[keep], *places)
        finally:
            fs.close(fd)

    def _open_log(self, ordinal: int) -> tuple[str, int]:
        fs, path = self._data_dir.fs, self._paths.wal_file(ordinal)
        with suppress(FileNotFoundError):
            return path, fs.open_read(path)
        kept = kept_path(fs, self._paths, wal_name(ordinal))
        if kept is not None:
            with suppress(FileNotFoundError):
                return kept, fs.open_read(kept)
        raise _Gone(wal_name(ordinal))

    def _without_frames(
        self, stretch: Stretch, seqs: Numbers, stamps: Numbers | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches from seqs and times alone; `stamps` is None if no column needs them."""
        if stamps is None:
            stamps = np.zeros(len(seqs), dtype=np.int64)
        for at in range(0, len(seqs), BATCH_RECORDS):
            piece = slice(at, at + BATCH_RECORDS)
            rows = Rows(stretch.topic, stretch.shard, seqs[piece], stamps[piece], None)
            yield batch_of(rows, self._schema)

    def _checked(
        self,
        stretch: Stretch,
        file: str,
        data: bytes,
        offsets: Numbers,
        starts: Numbers,
        lengths: Numbers,
        seqs: Numbers,
        stamps: Numbers,
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the valid frames; raise DamagedRecord for others unless PERMISSIVE.

        `offsets` are offsets in the file, `starts` are offsets in `data`.
        """
        while len(seqs):
            frames = FrameTable(data, starts, lengths, stretch.topic_id, seqs)
            if not frames.bad.any():
                self._next_seq = int(seqs[-1]) + 1
                yield batch_of(Rows(stretch.topic, stretch.shard, seqs, stamps, frames), self._schema)
                return
            if not self._options.is_permissive:
                first = int(np.flatnonzero(frames.bad)[0])
                offset, seq = int(offsets[first]), int(seqs[first])
                what = _what(data, int(starts[first]), int(lengths[first]), stretch.topic_id, seq)
                told = f'{file}, offset {offset}, seq {seq} of topic "{stretch.topic}" is damaged: {what}'
                raise DamagedRecord(f"{told}; mode=PERMISSIVE skips what is damaged")
            good = ~frames.bad
            self._skipped += int(frames.bad.sum())
            offsets, starts, lengths = offsets[good], starts[good], lengths[good]
            seqs, stamps = seqs[good], stamps[good]


def _alive(stretch: Stretch) -> npt.NDArray[np.bool_]:
    if not stretch.dead:
        return np.ones(stretch.record_count, dtype=np.bool_)
    return ~np.frombuffer(unpack_marks(stretch.dead, stretch.record_count), np.bool_)


def _kept(alive: npt.NDArray[np.bool_], at: int, upto: int) -> slice | Numbers:
    """Return the live records of a range, as a slice (which copies nothing) if all are live."""
    piece = alive[at:upto]
    return slice(at, upto) if piece.all() else at + np.flatnonzero(piece)


def _gathered(offsets: Numbers, lengths: Numbers) -> Numbers:
    """Return the frames' offsets after frames that are out of order are laid end to end."""
    back = np.maximum(0, (offsets + lengths)[:-1] - offsets[1:])
    return offsets + np.concatenate(([0], np.cumsum(back)))


def _gather(fs: Fs, fd: int, offsets: Numbers, lengths: Numbers) -> bytes:
    """Read frames with one read for each run that is in order, gaps included."""
    ends = offsets + lengths
    turns = np.flatnonzero(offsets[1:] < ends[:-1]) + 1
    pieces = []
    for at, upto in pairwise([0, *turns.tolist(), len(offsets)]):
        start, size = int(offsets[at]), int(ends[upto - 1] - offsets[at])
        # Missing bytes damage only the frames that lack them.
        pieces.append(fs.pread(fd, size, start).ljust(size, b"\0"))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _as_copies(
    stretch: Stretch,
    first_seq: int,
    data: bytes,
    marks: bytes,
    starts: Numbers,
    lengths: Numbers,
    stamps: Numbers,
) -> bytes:
    """Return frames of originals rewritten as frames of their copies, at the same offsets."""
    found = Frames(first_seq, data, starts.tolist(), lengths.tolist())
    return frame_copies(found, stamps.tolist(), marks, stretch.topic_id, is_durable=False).data


def _between(stamps: Numbers, from_ms: int, to_ms: int) -> slice:
    return slice(int(np.searchsorted(stamps, from_ms)), int(np.searchsorted(stamps, to_ms, side="right")))


def _pieces(offsets: Numbers, lengths: Numbers) -> Iterator[tuple[int, int]]:
    """Yield ranges of records to read at once: at least one record, up to the batch bounds."""
    at, ends = 0, offsets + lengths
    while at < len(offsets):
        upto = int(np.searchsorted(ends, int(offsets[at]) + BATCH_BYTES, side="right"))
        upto = max(at + 1, min(upto, at + BATCH_RECORDS))
        yield at, upto
        at = upto


def _what(data: bytes, at: int, length: int, topic_id: int, seq: int) -> str:
    try:
        check_frame(data, at, length, topic_id, seq)
    except FrameDamage as damage:
        return damage.what
    return "its parts do not add up"
