"""From the ranges of a query to the partitions its tasks read, from files or from a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.optimizer.limits import NO_LIMITS, Limits
from spark.source.columns import FROM_ENTRY, FROM_INDEX, RECORDS
from spark.source.counts import count_rows
from spark.source.read_options import ReadOptions
from spark.task.file_range import (
    FilePartition,
    FileRange,
    PartitionSize,
    file_ranges_of,
    split_into_partitions,
)
from spark.task.read_files import read_partition
from spark.task.read_pages import RangePartition, SeqRange, ranges_of, read_ranges
from spark.task.read_shared import read_shared
from spark.task.record_batch import join_batches
from spark.task.shared_ranges import ExtentRange, SharedPartition, shared_partitions, shared_ranges
from spark.view.backup_view import BackupView
from spark.view.catalog_view import CatalogView
from spark.view.directory_view import DirectoryView
from spark.view.server_view import ServerView
from spark.view.shared_topics import SharedTopicView
from spark.view.topic_view import FileView, TopicView

# Approximate size of a task that reads the bytes of its records.
BYTES_PER_PARTITION = 128 << 20
# Size of a task that only counts: a task costs more than examining a thousand segments.
RECORDS_PER_COUNT = 10_000_000


class QueryRange(NamedTuple):
    topic: str
    first_seq: int
    last_seq: int
    is_front: bool = False


def view_of(options: ReadOptions) -> FileView | ServerView:
    if not options.path:
        return ServerView(options)
    if options.is_directory:
        return DirectoryView(options)
    return CatalogView(options) if options.catalog else BackupView(options)


def partitions_for(
    view: FileView | ServerView,
    ranges: Iterable[QueryRange],
    options: ReadOptions,
    schema: pa.Schema,
    limits: Limits = NO_LIMITS,
) -> list[InputPartition]:
    if isinstance(view, ServerView):
        seq_ranges = []
        for name, first, last, is_front in ranges:
            topic = view.topics[name]
            low, high = max(first, topic.earliest), min(last, topic.durable)
            if low <= high:
                seq_ranges.append(SeqRange(name, topic.epoch, topic.shard, low, high, is_front))
        return list(ranges_of(seq_ranges, options.max_records, options.min_partitions))
    size = size_of_partitions(options, schema)
    needs_bytes = not FROM_ENTRY.issuperset({*schema.names} - {RECORDS})
    file_ranges: list[FileRange] = []
    extent_ranges: list[ExtentRange] = []
    views: dict[str, TopicView] = {}
    for name, first, last, _ in ranges:
        one = view.topics[name]
        if isinstance(one, SharedTopicView):
            extent_ranges += shared_ranges(one, first, last, options, needs_bytes)
            continue
        views[name] = one
        file_ranges += limits.with_tags(one, file_ranges_of(one, first, last, size.records_max))
    partitions = split_into_partitions(file_ranges, views, size)
    for partition in partitions:
        keys = {key for file_range in partition.ranges for key in file_range.keys}
        partition.place = view.place_of(partition.shard, keys)
    return [*partitions, *shared_partitions(extent_ranges, size)]


def size_of_partitions(options: ReadOptions, schema: pa.Schema) -> PartitionSize:
    """Return the partition bounds of a read from files; a count ignores `minPartitions`."""
    if RECORDS in schema.names:
        return PartitionSize(RECORDS_PER_COUNT)
    bytes_max = None if FROM_INDEX.issuperset(schema.names) else BYTES_PER_PARTITION
    return PartitionSize(options.max_records, bytes_max, options.min_partitions)


def read(
    options: ReadOptions,
    schema: pa.Schema,
    partition: InputPartition | None,
    limits: Limits = NO_LIMITS,
) -> Iterator[pa.RecordBatch]:
    read_columns = partial(read_records, options, partition, limits)
    if RECORDS in schema.names:
        yield from count_rows(read_columns, schema)
    else:
        yield from join_batches(read_columns(schema))


def read_records(
    options: ReadOptions, partition: InputPartition | None, limits: Limits, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read one partition; it is None when Spark was given an empty list of partitions."""
    if isinstance(partition, FilePartition):
        yield from read_partition(options, schema, partition, limits)
    elif isinstance(partition, SharedPartition):
        yield from read_shared(options, schema, partition, limits)
    elif isinstance(partition, RangePartition):
        yield from read_ranges(options, schema, partition)
