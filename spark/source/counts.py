"""Record counts for queries with the column `records`: a row per topic and partition.

Counting reads columns that cost nothing and adds up the rows that arrive. Deleted, evicted, expired and
missing records are therefore counted exactly as they are read, by the same rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from spark.source.columns import KNOWN_COLUMNS, RECORDS, arrow_schema

CHEAPEST = "timestampType"


def count_rows(
    read: Callable[[pa.Schema], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Count the rows that `read` yields for the schema's other columns; a batch has one topic."""
    names = [name for name in schema.names if name != RECORDS]
    totals: Counter[tuple[object, ...]] = Counter()
    for batch in read(arrow_schema(names or [CHEAPEST], KNOWN_COLUMNS)):
        if batch.num_rows:
            totals[tuple(batch.column(name)[0].as_py() for name in names)] += batch.num_rows
    if totals:
        rows = [dict(zip(names, values, strict=True)) | {RECORDS: count} for values, count in totals.items()]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
