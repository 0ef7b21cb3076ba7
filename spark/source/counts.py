"""How many records there are, of a query that has the column `records`: a row for each topic in a partition.

Counting goes the way of reading, with columns that cost nothing, and adds up how many rows came. So what is
deleted, evicted, expired or gone meanwhile counts exactly as it is read, and there is no second rule for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from spark.source.columns import EVERY, RECORDS, arrow_schema

CHEAPEST = "timestampType"


def counted(
    read: Callable[[pa.Schema], Iterable[pa.RecordBatch]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Of what `read` gives for the other columns of the schema; a batch of it is of one topic."""
    names = [name for name in schema.names if name != RECORDS]
    totals: Counter[tuple[object, ...]] = Counter()
    for batch in read(arrow_schema(names or [CHEAPEST], EVERY)):
        if batch.num_rows:
            totals[tuple(batch.column(name)[0].as_py() for name in names)] += batch.num_rows
    if totals:
        rows = [dict(zip(names, values, strict=True)) | {RECORDS: count} for values, count in totals.items()]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
