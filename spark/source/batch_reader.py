"""The reader of a batch query: planned once, then read partition by partition.

PySpark fails the query of a reader that has `pushFilters` while its setting for filter pushdown is off, which
is the default. With the setting on, Spark may answer one query with the filters of another. Filters therefore
arrive only through the rule of `narrow_reads.py`, and there are two readers. PySpark 4.3 passes a reader
neither columns nor a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark.optimizer.limits import NO_LIMITS
from spark.source.offsets import check_topics, end_of, refuse_loss, start_of
from spark.source.plan import QueryRange, partitions_for, read, view_of
from spark.source.read_options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


class BatchQueryReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._limits = NO_LIMITS

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with view_of(options) as view:
            check_topics(view, options)
            ranges = []
            for topic in view.topics.values():
                start, end = start_of(topic, options), end_of(topic, options)
                if options.fail_on_data_loss:
                    refuse_loss(topic, start, end)
                if self._limits.includes_topic(topic.name):
                    first, last = self._limits.seqs(topic, start, end - 1)
                    is_front = first == start == topic.earliest
                    ranges.append(QueryRange(topic.name, first, last, is_front))
            return partitions_for(view, ranges, options, self._schema, self._limits)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition, self._limits)


class FilteredQueryReader(BatchQueryReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  PySpark's name.
        from spark.optimizer.filters import limits_of

        self._limits = limits_of(filters)
        return filters
