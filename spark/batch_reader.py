"""A batch read: planned once, then read partition by partition.

PySpark passes filters only to a reader that has `pushFilters`, and fails the query when a reader has it while
spark.sql.python.filterPushdown.enabled is off, which it is by default. So there are two readers, and the
option `pushdown` chooses. Nothing else of a query comes here in PySpark 4.3: no columns, no limit.

Must not know: how records are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark.filters import NO_LIMITS, apply_filters
from spark.plan import Wanted, partitions_for, read, view_of
from spark.positions import check_topics, end_of, refuse_loss, start_of
from spark.read_options import ReadOptions


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._limits = NO_LIMITS

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with view_of(options) as view:
            check_topics(view, options)
            wanted = []
            for topic in view.topics.values():
                start, end = start_of(topic, options), end_of(topic, options)
                if options.fail_on_data_loss:
                    refuse_loss(topic, start, end)
                if self._limits.wants_topic(topic.name):
                    first, last = self._limits.seqs(topic, start, end - 1)
                    is_front = first == start == topic.earliest
                    wanted.append(Wanted(topic.name, first, last, is_front))
            return partitions_for(view, wanted, options, self._limits)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)


class PushdownReader(BatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  PySpark's name.
        self._limits, left = apply_filters(filters, NO_LIMITS)
        return left
