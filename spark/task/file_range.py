"""The ranges of seqs that a task reads, each in one segment or in one file of the log.

A range carries everything needed to read it: files and numbers, the dead marks, and for the log the offset of
each frame, since no index has it. It holds the records that were live when the query was planned, whatever
happens to the topic afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from pyspark.sql.datasource import InputPartition

from spark.view.object_place import ObjectPlace
from spark.view.topic_view import TopicView
from topicsd.disk.layout import wal_name
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.segment.dead_file import pack_marks
from topicsd.segment.entry import DATA, INDEX, SegmentEntry, SegmentName


class LogFrames(NamedTuple):
    """Records in one file of the log: arrays of numbers, as bytes."""

    file: int
    """The first ordinal of the file."""
    offsets: bytes
    lengths: bytes
    times_ms: bytes
    copies: bytes
    """A mark for each record that is a copy whose original is in this place; empty if none is."""


class FileRange(NamedTuple):
    topic: str
    topic_id: int
    epoch: int
    shard: int
    first_seq: int
    last_seq: int
    dead: bytes
    """A bitmap from `first_seq`; empty if all records are live."""
    size_bytes: int
    """The approximate size of the frames."""
    segment: tuple[SegmentName, SegmentEntry] | None
    log: LogFrames | None

    @property
    def record_count(self) -> int:
        return self.last_seq - self.first_seq + 1

    @property
    def keys(self) -> list[str]:
        """The files that a task needs, as paths below the directory of the shard."""
        if self.segment is not None:
            return [self.segment[0].key(DATA), self.segment[0].key(INDEX)]
        assert self.log is not None
        return [f"wal/{wal_name(self.log.file)}"]


class FilePartition(InputPartition):
    """Ranges of one shard, read by one task."""

    def __init__(self, shard: int, ranges: list[FileRange]) -> None:
        super().__init__((shard, ranges[0].topic, ranges[0].first_seq))
        self.shard = shard
        self.ranges = ranges
        self.place: ObjectPlace | None = None
        """The objects that hold the files; None when they are in a data directory."""


def file_ranges_of(view: TopicView, first: int, last: int, records_max: int) -> Iterator[FileRange]:
    """Yield the live, durable seqs from `first` to `last`, at most `records_max` in each range."""
    topic = view.topic
    last = min(last, view.durable)
    for run in topic.runs:
        low, high = max(first, run.first_seq, topic.earliest_seq), min(last, run.next_seq - 1)
        if isinstance(run, SealedRun) and not run.live_count:
            continue
        while low <= high:
            end = min(high, low + records_max - 1)
            if run.next_live(low) <= end:
                if isinstance(run, SealedRun):
                    yield _of_segment(view, run.name, run.entry, run.dead, low, end)
                elif isinstance(run, TailRun) and run.source is not None:
                    # Such a run holds only what a checkpoint has copied.
                    yield _of_segment(view, run.source.name, run.source.entry, run.dead, low, end)
                elif isinstance(run, TailRun):
                    yield from _of_log(view, run, low, end)
            low = end + 1


def _marks(dead: bytearray | None, first_seq: int, low: int, high: int) -> bytes:
    marks = b"" if dead is None else dead[low - first_seq : high - first_seq + 1]
    return pack_marks(marks) if any(marks) else b""


def _of_segment(
    view: TopicView, name: SegmentName, entry: SegmentEntry, dead: bytearray | None, low: int, high: int
) -> FileRange:
    topic = view.topic
    size = entry.data_bytes * (high - low + 1) // max(1, entry.count)
    marks = _marks(dead, entry.first_seq, low, high)
    origin = (topic.name, topic.topic_id, topic.epoch, view.shard)
    return FileRange(*origin, low, high, marks, size, (name, entry), None)


def _of_log(view: TopicView, run: TailRun, low: int, high: int) -> Iterator[FileRange]:
    """Yield a range for each file of the log; with copies, frames are not in seq order there."""
    topic = view.topic
    at, stop = low - run.first_seq, high - run.first_seq + 1
    positions = np.array(run.bytes_positions[at:stop], dtype=np.int64)
    starts = [file.start_position for file in view.wal_files]
    numbers = np.searchsorted(starts, positions, side="right") - 1
    changes = np.flatnonzero(np.diff(numbers)) + 1
    for begin, end in pairwise([0, *changes.tolist(), stop - at]):
        walked = view.wal_files[int(numbers[begin])]
        offsets = positions[begin:end] - walked.start_position + FILE_HEADER_BYTES
        span = slice(at + begin, at + end)
        lengths, times_ms = run.lengths[span], run.times_ms[span]
        copies = run.copies(span.start, span.stop) or b""
        frames = LogFrames(
            walked.wal_file.first_ordinal,
            offsets.astype(np.uint64).tobytes(),
            lengths.tobytes(),
            times_ms.tobytes(),
            copies,
        )
        first, last = low + begin, low + end - 1
        dead = _marks(run.dead, run.first_seq, first, last)
        origin = (topic.name, topic.topic_id, topic.epoch, view.shard)
        yield FileRange(*origin, first, last, dead, sum(lengths), None, frames)


class PartitionSize(NamedTuple):
    records_max: int
    bytes_max: int | None = None
    partitions_min: int = 1


def split_into_partitions(
    ranges: list[FileRange], views: Mapping[str, TopicView], size: PartitionSize
) -> list[FilePartition]:
    """Group ranges into partitions, split so that there are at least as many as requested."""
    total = sum(file_range.record_count for file_range in ranges)
    records_max = max(1, min(size.records_max, -(-total // size.partitions_min)))
    if records_max < size.records_max:
        ranges = [
            part
            for one in ranges
            for part in file_ranges_of(views[one.topic], one.first_seq, one.last_seq, records_max)
        ]
    return partitions_of(ranges, records_max, size.bytes_max)


def partitions_of(
    ranges: Sequence[FileRange], records_max: int, bytes_max: int | None
) -> list[FilePartition]:
    """Group neighbouring ranges of a shard into partitions of about equal size, up to the bounds.

    A task costs more than a segment of 10,000 records, and unequal partitions would delay the query. Spark
    turns an empty list into one partition that is None; the reader must handle it.
    """
    partitions = []
    for shard, members in groupby(sorted(ranges, key=_shard), key=_shard):
        groups = even_groups(list(members), records_max, bytes_max)
        partitions += [FilePartition(shard, group) for group in groups]
    return partitions


def _shard(file_range: FileRange) -> int:
    return file_range.shard


class ToRead(Protocol):
    """What belongs to one task."""

    @property
    def record_count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


R = TypeVar("R", bound=ToRead)


def even_groups(ranges: Sequence[R], records_max: int, bytes_max: int | None) -> list[list[R]]:
    """Group neighbours up to the bounds, all groups of about equal size."""
    full = _groups(ranges, records_max, bytes_max, 1)
    even = _groups(ranges, records_max, bytes_max, len(full))
    return even if len(even) == len(full) else full


def _groups(ranges: Sequence[R], records_max: int, bytes_max: int | None, count: int) -> list[list[R]]:
    """Group ranges up to the bounds, starting a new group at each of `count` equal parts."""
    total = sum(one.size_bytes for one in ranges)
    groups: list[list[R]] = []
    records = size = before = 0
    for one in ranges:
        one_bytes = one.size_bytes
        records += one.record_count
        size += one_bytes
        fits = records <= records_max and (bytes_max is None or size <= bytes_max)
        if groups and fits and before * count < len(groups) * total:
            groups[-1].append(one)
        else:
            groups.append([one])
            records, size = one.record_count, one_bytes
        before += one_bytes
    return groups
