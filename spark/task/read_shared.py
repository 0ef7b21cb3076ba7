"""Task reads of shared topics from the objects in a store, as batches of Arrow.

* A slice of a blob is cut into frames by their lengths, and small slices are decoded together. Each frame is
  checked whole. A slice in which something is wrong is decoded again by `decode_frames`, whose rules say
  which seqs are damaged (F2).
* A compacted object is a segment: it is read by the code that reads those of a data directory.
* An object that is missing was replaced by a compaction, or its records were trimmed, after the query was
  planned. Only then the task asks the catalog, and reads the same seqs where they are now.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark.errors import DamagedRecord, DataLoss, SourceError
from spark.optimizer.limits import NO_LIMITS, Limits
from spark.source.read_options import SEQ_MAX, ReadOptions
from spark.task.file_range import FileRange
from spark.task.frame_table import FrameTable, Numbers
from spark.task.read_files import BATCH_RECORDS, FileTask, TaskFiles
from spark.task.record_batch import JOINED_BYTES, Rows, batch_of
from spark.task.shared_ranges import ExtentRange, SharedPartition, present_ranges
from spark.task.slice_bytes import FetchedSlice, SliceBytes
from spark.view.object_place import ObjectPlace, ReadOnceFiles, shown_url
from spark.view.shared_topics import LOOKUPS_MAX, SHARD, SharedTopicView, open_shared
from topicsd.broker.frames_v1 import (
    FRAMES_V1,
    TOPIC_ID_MASK,
    DamagedSeqs,
    Decoded,
    OtherTopic,
    Rebase,
    UnknownEncoding,
    decode_frames,
)
from topicsd.broker.segment_v1 import segment_of
from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.shared.shared_catalog import SharedExtent
from topicsd.disk.layout import shard_paths
from topicsd.log.frame import HEADER, LEN_BYTES, U32, FrameType, Record, encode_frame, payload_with_meta
from topicsd.segment.entry import DATA, INDEX, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES
from topicsd.store.object_fs import ObjectFile, ObjectPart
from topicsd.store.object_store import StoreRefused, StoreUnavailable

logger = logging.getLogger("topicsd.spark")


def read_shared(
    options: ReadOptions,
    schema: pa.Schema,
    part: SharedPartition,
    limits: Limits = NO_LIMITS,
    lookups_left: int = LOOKUPS_MAX,
) -> Iterator[pa.RecordBatch]:
    with ExitStack() as stack:
        task = _SharedTask(stack, options, schema, limits, part.ranges, lookups_left)
        try:
            yield from task.batches()
        except (StoreUnavailable, StoreRefused) as error:
            root = shown_url(options.path)
            raise SourceError(f"{root}: the object store does not answer: {error}") from None
        task.log_skipped()


class _CutSlice(NamedTuple):
    """The frames of a slice that a range needs."""

    range: ExtentRange
    fetched: FetchedSlice
    starts: Numbers
    """Offsets from the start of the slice."""
    lengths: Numbers
    numbers: Numbers


class _SharedTask:
    def __init__(
        self,
        stack: ExitStack,
        options: ReadOptions,
        schema: pa.Schema,
        limits: Limits,
        ranges: list[ExtentRange],
        lookups_left: int,
    ) -> None:
        self._options = options
        self._schema = schema
        self._limits = limits
        self._ranges = ranges
        self._lookups_left = lookups_left
        self._skipped = 0
        place = _place_of(shown_url(options.path), ranges)
        stored = ReadOnceFiles(stack, options.path, place)
        self._objects = stored.objects
        files = TaskFiles(stored.fs, stored.paths(SHARD), stored.segments(SHARD), None)
        self._segments = stack.enter_context(closing(_SegmentTask(files, options, schema, limits)))
        slices = [one.extent for one in ranges if one.extent is not None and not one.is_segment]
        self._slices = SliceBytes(stack, self._objects.store.read, slices)
        self._pending: list[_CutSlice] = []
        self._pending_bytes = 0

    def log_skipped(self) -> None:
        self._segments.log_skipped()
        if self._skipped:
            logger.warning("read: skipped damaged records: mode=PERMISSIVE  count=%d", self._skipped)

    def batches(self) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(self._ranges):
            one = self._ranges[at]
            at += 1
            if one.extent is None:
                yield from self._without_frames(one)
                continue
            if one.is_segment:
                yield from self._flush()
                missing_from = yield from self._segment(one, one.extent)
            else:
                missing_from = yield from self._slice(one, one.extent)
            if missing_from:
                yield from self._flush()
                end = self._end_of_run(at)
                yield from self._look_up(one, missing_from, self._ranges[end - 1].last_seq)
                for other in self._ranges[at:end]:
                    if other.extent is not None and not other.is_segment:
                        self._slices.skip(other.extent)
                at = end
        yield from self._flush()

    def _without_frames(self, one: ExtentRange) -> Iterator[pa.RecordBatch]:
        for first in range(one.first_seq, one.last_seq + 1, BATCH_RECORDS):
            seqs = np.arange(first, min(first + BATCH_RECORDS, one.last_seq + 1), dtype=np.int64)
            yield batch_of(Rows(one.topic, SHARD, seqs, np.zeros_like(seqs), None), self._schema)

    # -- objects that are missing

    def _end_of_run(self, at: int) -> int:
        """Return the end of the ranges before and from `at` that follow each other in one topic.

        What replaced one slice has probably replaced the next ones too: one lookup finds all.
        """
        before = self._ranges[at - 1]
        while at < len(self._ranges):
            one = self._ranges[at]
            if one.topic != before.topic or one.first_seq != before.last_seq + 1:
                break
            before = one
            at += 1
        return at

    def _look_up(self, one: ExtentRange, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Read seqs from where they are now, as far as they still exist; a deleted topic is no data loss."""
        assert one.extent is not None
        path = self._objects.path_of(one.extent.key)
        if not self._lookups_left:
            raise SourceError(f"{path} is missing, although the catalog names it")
        try:
            with closing(open_shared(self._options)) as catalog:
                (row,) = catalog.topics([one.topic])
                if row is None or row.incarnation != one.incarnation:
                    return
                view = SharedTopicView(row, catalog, self._objects, 0)
                ranges = present_ranges(view, first, last, self._options)
        except DataLoss:
            raise
        except (CatalogExtraMissing, CatalogRefused, CatalogUnavailable, SourceError) as error:
            raise SourceError(
                f"{path} was replaced after the query was planned, and this executor cannot look up by what: "
                f"{error}; give it access to the catalog, or run the query again"
            ) from None
        if ranges:
            part = SharedPartition(ranges)
            yield from read_shared(self._options, self._schema, part, self._limits, self._lookups_left - 1)

    # -- compacted objects

    def _segment(self, one: ExtentRange, extent: SharedExtent) -> Generator[pa.RecordBatch, None, int]:
        """Read a range of a compacted object; return the first seq of what is missing, or 0."""
        name, entry = _segment_of(one, extent)
        origin = (one.topic, name.topic_id, 0, SHARD)
        file_range = FileRange(*origin, one.first_seq, one.last_seq, b"", one.size_bytes, (name, entry), None)
        self._segments.object_paths[name] = self._objects.path_of(extent.key)
        try:
            yield from self._segments.batches(file_range)
        except StoreRefused as error:
            if error.errno != errno.ENOENT:
                raise
            return self._segments.next_seq
        return 0

    # -- slices of blobs

    def _slice(self, one: ExtentRange, extent: SharedExtent) -> Generator[pa.RecordBatch, None, int]:
        """Add a slice to those that are decoded together; return its first seq if it is missing, or 0."""
        try:
            fetched = self._slices.get(extent)
        except FileNotFoundError:
            return one.first_seq
        cut = _cut(one, extent, fetched)
        if cut is None:
            yield from self._flush()
            yield from self._damaged(one, extent, fetched.body)
            return 0
        if self._pending and self._pending[-1].range.topic != one.topic:
            yield from self._flush()
        self._pending.append(cut)
        self._pending_bytes += extent.byte_length
        if self._pending_bytes >= JOINED_BYTES:
            yield from self._flush()
        return 0

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Decode the slices that were added, together if all is well."""
        cuts, self._pending, self._pending_bytes = self._pending, [], 0
        if not cuts:
            return
        batch = self._batch_of(cuts)
        if batch is not None:
            yield batch
            return
        for one in cuts:
            batch = self._batch_of([one])
            if batch is not None:
                yield batch
                continue
            assert one.range.extent is not None
            yield from self._damaged(one.range, one.range.extent, one.fetched.body)

    def _batch_of(self, cuts: list[_CutSlice]) -> pa.RecordBatch | None:
        """Return the records of slices of one topic; None when a frame is not what it should be."""
        if len(cuts) == 1:
            data, starts = cuts[0].fetched.data, cuts[0].starts + cuts[0].fetched.at
        else:
            bodies = [memoryview(one.fetched.data)[one.fetched.at : one.fetched.end] for one in cuts]
            ends = np.cumsum([len(body) for body in bodies])
            data = b"".join(bodies)
            starts = np.concatenate(
                [one.starts + end - len(body) for one, end, body in zip(cuts, ends, bodies, strict=True)]
            )
        lengths = np.concatenate([one.lengths for one in cuts])
        numbers = np.concatenate([one.numbers for one in cuts])
        seqs = np.concatenate(
            [np.arange(one.range.first_seq, one.range.last_seq + 1, dtype=np.int64) for one in cuts]
        )
        whole = cuts[0].range
        frames = FrameTable(data, starts, lengths, whole.incarnation & TOPIC_ID_MASK, numbers)
        if frames.bad.any():
            return None
        return batch_of(Rows(whole.topic, SHARD, seqs, frames.times_ms, frames), self._schema)

    def _damaged(self, one: ExtentRange, extent: SharedExtent, body: bytes) -> Iterator[pa.RecordBatch]:
        """Read what is intact in a slice."""
        path = f"{self._objects.path_of(extent.key)}, offset {extent.byte_offset}"
        rebase = Rebase(one.incarnation, extent.first_seq, extent.last_seq)
        try:
            decoded = decode_frames(body, rebase, one.first_seq, None, extent.encoding)
        except OtherTopic as other:
            # The catalog had the incarnation before and after it named the extent, so this is damage.
            decoded = Decoded([], [DamagedSeqs(one.first_seq, one.last_seq, str(other))], 0, 0)
        except UnknownEncoding as error:
            raise SourceError(f'{path}: topic "{one.topic}": {error}') from None
        for first, last, what in decoded.damaged:
            if first > one.last_seq:
                break
            last = min(last, one.last_seq)
            if not self._options.is_permissive:
                where = f'{path}, seqs {first} to {last} of topic "{one.topic}": damaged: {what}'
                raise DamagedRecord(f"{where}; set mode=PERMISSIVE to skip damaged records")
            self._skipped += last - first + 1
        records = [record for record in decoded.records if record.seq <= one.last_seq]
        if records:
            yield self._batch_of_records(one, records)

    def _batch_of_records(self, one: ExtentRange, records: list[Record]) -> pa.RecordBatch:
        """Return records that have no frames next to each other, as frames of their own."""
        topic_id = one.incarnation & TOPIC_ID_MASK
        parts = [_frame_of(record, topic_id) for record in records]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        seqs = np.array([record.seq for record in records], dtype=np.int64)
        frames = FrameTable(b"".join(parts), np.cumsum(lengths) - lengths, lengths, topic_id, seqs)
        return batch_of(Rows(one.topic, SHARD, seqs, frames.times_ms, frames), self._schema)


class _SegmentTask(FileTask):
    """Reads compacted objects, which messages name by their keys."""

    def __init__(self, files: TaskFiles, options: ReadOptions, schema: pa.Schema, limits: Limits) -> None:
        super().__init__(files, options, schema, limits)
        self.object_paths: dict[SegmentName, str] = {}

    def file_of(self, name: SegmentName, entry: SegmentEntry) -> str:
        return self.object_paths[name]


def _segment_of(one: ExtentRange, extent: SharedExtent) -> tuple[SegmentName, SegmentEntry]:
    count = extent.last_seq - extent.first_seq + 1
    data_bytes = extent.byte_length - count * ENTRY_BYTES - FOOTER_BYTES
    return segment_of(Rebase(one.incarnation, extent.first_seq, extent.last_seq), data_bytes)


def _place_of(root: str, ranges: list[ExtentRange]) -> ObjectPlace:
    """Return the files of the segments that are in compacted objects."""
    files: dict[str, ObjectFile] = {}
    folder = shard_paths(root, SHARD).root
    for one in ranges:
        if one.extent is not None and one.is_segment:
            name, entry = _segment_of(one, one.extent)
            key, at, end = one.extent.key, entry.data_bytes, one.extent.byte_length
            files[f"{folder}/{name.key(DATA)}"] = ObjectFile(at, (ObjectPart(key, 0, at),))
            files[f"{folder}/{name.key(INDEX)}"] = ObjectFile(end - at, (ObjectPart(key, at, end - at),))
    return ObjectPlace(root, files, "")


def _cut(one: ExtentRange, extent: SharedExtent, fetched: FetchedSlice) -> _CutSlice | None:
    """Cut a slice into the frames of a range; None when their lengths do not lead to its end (F1)."""
    data, begin, end = fetched
    if extent.encoding != FRAMES_V1 or end - begin != extent.byte_length:
        return None
    count = extent.last_seq - extent.first_seq + 1
    starts: list[int] = []
    add, length_at = starts.append, U32.unpack_from
    at = begin
    try:
        first_number = HEADER.unpack_from(data, begin)[4]
        while at < end:
            add(at)
            at += LEN_BYTES + length_at(data, at)[0]
    except struct.error:
        return None
    if at != end or len(starts) != count or first_number > SEQ_MAX - count:
        return None
    bounds = np.array([*starts, end], dtype=np.int64) - begin
    span = slice(one.first_seq - extent.first_seq, one.last_seq - extent.first_seq + 1)
    numbers = np.arange(first_number, first_number + count, dtype=np.int64)[span]
    return _CutSlice(one, fetched, bounds[:-1][span], np.diff(bounds)[span], numbers)


def _frame_of(record: Record, topic_id: int) -> bytes:
    has_meta = record.meta is not None
    payload = record.data if record.meta is None else payload_with_meta(record.data, record.meta)
    return encode_frame(
        FrameType.APPEND,
        topic_id=topic_id,
        seq=record.seq,
        ts=record.ts,
        tag=record.tag,
        node=record.node,
        payload=payload,
        has_meta=has_meta,
        is_bytes=record.is_bytes,
    )
