"""From where a query stands to what its tasks read: by files or by a server, whichever the options name.

Must not know: positions, how records are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.filters import NO_LIMITS, Limits
from spark.read_options import ReadOptions
from spark.read_pages import RangePartition, SeqRange, ranges_of, read_ranges
from spark.read_stretch import read_partition
from spark.server_view import ServerView
from spark.shard_view import DirectoryView
from spark.stretch import Stretch, StretchPartition, divided, stretches_of


class Wanted(NamedTuple):
    topic: str
    first_seq: int
    last_seq: int
    is_front: bool = False


def view_of(options: ReadOptions) -> DirectoryView | ServerView:
    return DirectoryView(options) if options.path else ServerView(options)


def partitions_for(
    view: DirectoryView | ServerView,
    wanted: Iterable[Wanted],
    options: ReadOptions,
    limits: Limits = NO_LIMITS,
) -> list[InputPartition]:
    records_max, partitions_min = options.max_records, options.min_partitions
    if isinstance(view, ServerView):
        ranges = []
        for name, first, last, is_front in wanted:
            topic = view.topics[name]
            low, high = max(first, topic.earliest), min(last, topic.durable)
            if low <= high:
                ranges.append(SeqRange(name, topic.epoch, topic.shard, low, high, is_front))
        return list(ranges_of(ranges, records_max, partitions_min))
    stretches: list[Stretch] = []
    for name, first, last, _ in wanted:
        found = stretches_of(view.topics[name], first, last, records_max)
        stretches += limits.with_tags(view.topics[name], found)
    return list(divided(stretches, view.topics, records_max, partitions_min))


def read(
    options: ReadOptions, schema: pa.Schema, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Spark takes a list without partitions for one that is None."""
    if isinstance(partition, StretchPartition):
        yield from read_partition(options, schema, partition)
    elif isinstance(partition, RangePartition):
        yield from read_ranges(options, schema, partition)
