"""The ranges of seqs of shared topics that a task reads, each in one extent, and how they become partitions.

A range names its object and the place in it, so a task needs the store and no catalog. Ranges that are in one
object are read by one task, which gets the object once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from spark.errors import DataLoss
from spark.source.offsets import loss_of
from spark.source.read_options import ReadOptions
from spark.task.file_range import PartitionSize, even_groups
from spark.view.shared_topics import LOOKUPS_MAX, SharedTopicView, extents_between
from topicsd.broker.frames_v1 import SEGMENT_V1
from topicsd.catalog.shared.shared_catalog import SharedExtent

# A request for an object takes as long as so many bytes of a large one.
OBJECT_COST_BYTES: Final = 256 << 10


class ExtentRange(NamedTuple):
    topic: str
    incarnation: int
    first_seq: int
    last_seq: int
    extent: SharedExtent | None
    """None in a query that needs seqs only: all of these seqs have a record."""

    @property
    def record_count(self) -> int:
        return self.last_seq - self.first_seq + 1

    @property
    def size_bytes(self) -> int:
        extent = self.extent
        if extent is None:
            return 0
        return extent.byte_length * self.record_count // (extent.last_seq - extent.first_seq + 1)

    @property
    def is_segment(self) -> bool:
        return self.extent is not None and self.extent.encoding == SEGMENT_V1


class SharedPartition(InputPartition):
    """Ranges of shared topics, read by one task."""

    def __init__(self, ranges: list[ExtentRange]) -> None:
        super().__init__((ranges[0].topic, ranges[0].first_seq))
        self.ranges = ranges


class _Unit(NamedTuple):
    """Ranges in one object, which one task reads."""

    ranges: list[ExtentRange]

    @property
    def record_count(self) -> int:
        return sum(one.record_count for one in self.ranges)

    @property
    def size_bytes(self) -> int:
        if self.ranges[0].extent is None:
            return 1
        return max(OBJECT_COST_BYTES, sum(one.size_bytes for one in self.ranges))


def shared_ranges(
    view: SharedTopicView, first: int, last: int, options: ReadOptions, needs_bytes: bool
) -> list[ExtentRange]:
    """Return the ranges of a query; without `needs_bytes` no extent is looked up."""
    first, last = max(first, view.earliest), min(last, view.head)
    if first > last:
        return []
    if not needs_bytes:
        return [ExtentRange(view.name, view.epoch, first, last, None)]
    ranges = present_ranges(view, first, last, options)
    if ranges is None:
        if options.fail_on_data_loss:
            raise DataLoss(f'topic "{view.name}" was deleted or recreated while the query was planned')
        return []
    return ranges


def present_ranges(
    view: SharedTopicView, first: int, last: int, options: ReadOptions
) -> list[ExtentRange] | None:
    """Return where the records of some seqs are now; None when the topic was deleted or recreated.

    Records that a client has deleted since `view` was made are left out, evicted ones are data loss.
    """
    catalog, name = view.catalog, view.name
    for _ in range(LOOKUPS_MAX):
        extents = list(extents_between(catalog, name, first, last))
        # After the extents: they are those of this incarnation, and what they lack was trimmed before.
        (row,) = catalog.topics([name])
        if row is None or row.incarnation != view.epoch:
            return None
        if row.first_seq > first:
            lost = SharedTopicView(row, catalog, view.objects, 0).lost(first, last + 1)
            if lost is not None and options.fail_on_data_loss:
                raise loss_of(name, first, row.first_seq, lost._replace(last=min(lost.last, last)))
            first = row.first_seq
        ranges = [
            ExtentRange(name, view.epoch, max(one.first_seq, first), one.last_seq, one.extent)
            for one in extents
            if one.last_seq >= first
        ]
        if sum(one.record_count for one in ranges) == max(0, last - first + 1):
            return ranges
    raise DataLoss(f'topic "{name}": the catalog has no extent of some of the seqs {first} to {last}')


def shared_partitions(ranges: Sequence[ExtentRange], size: PartitionSize) -> list[SharedPartition]:
    """Group ranges into partitions of about equal size, with the ranges of an object together."""
    total = sum(one.record_count for one in ranges)
    records_max = max(1, min(size.records_max, -(-total // size.partitions_min)))
    units = _units(ranges, records_max)
    groups = even_groups(units, records_max, size.bytes_max)
    return [SharedPartition([one for unit in group for one in unit.ranges]) for group in groups]


def _units(ranges: Sequence[ExtentRange], records_max: int) -> list[_Unit]:
    """Return the ranges by object, those of one object in the place of its first one."""
    units: list[_Unit] = []
    last_of: dict[str, _Unit] = {}
    records: dict[str, int] = {}
    for whole in ranges:
        for part in _split(whole, records_max):
            key = "" if part.extent is None or part.is_segment else part.extent.key
            unit = last_of.get(key) if key else None
            if unit is None or records[key] + part.record_count > records_max:
                unit = _Unit([])
                units.append(unit)
                last_of[key], records[key] = unit, 0
            unit.ranges.append(part)
            records[key] += part.record_count
    return units


def _split(whole: ExtentRange, records_max: int) -> Iterator[ExtentRange]:
    for first in range(whole.first_seq, whole.last_seq + 1, records_max):
        yield whole._replace(first_seq=first, last_seq=min(whole.last_seq, first + records_max - 1))
