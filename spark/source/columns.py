"""The columns of a read: Kafka's names and types or our own, and the choice of a query.

PySpark (4.3) asks a Python source for all columns of its schema, whatever the query selects. A schema that
the reader receives, by hand as in `spark.read.schema("offset bigint")` or from the rule of `narrow_reads.py`,
is therefore taken as the choice of columns: any of Kafka's and of ours, in any order, each with its own type.
Columns outside it are not decoded. When a segment's index has all of the chosen columns, its records are not
read at all. A schema with the column `records` asks for the number of records instead of the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KAFKA = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS = {"headers": "array<struct<key:string,value:binary>>"}
NATIVE = {
    "seq": "bigint",
    "ts": "timestamp",
    "tag": "string",
    "node": "string",
    "meta": "string",
    "data": "string",
    "data_bytes": "binary",
}
ARROW_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADERS["headers"]: pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    ),
}
# The number of records instead of the records: one row then counts several records of one topic.
RECORDS = "records"
COUNT_COLUMN = {RECORDS: "bigint"}
# The columns that a schema given to the reader may choose from.
KNOWN_COLUMNS = KAFKA | HEADERS | NATIVE | COUNT_COLUMN
# Columns with the same value in all records of a topic; they may appear beside `records`.
OF_TOPIC = frozenset(("topic", "partition", "timestampType"))
# Columns known from the segment's entry, and columns known from its index.
FROM_ENTRY = OF_TOPIC | {"offset", "seq"}
FROM_INDEX = FROM_ENTRY | {"timestamp", "ts"}


def all_columns(is_native: bool, include_headers: bool) -> dict[str, str]:
    """Return the column names with Spark's types."""
    if is_native:
        return NATIVE
    return KAFKA | HEADERS if include_headers else KAFKA


def ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def chosen_columns(schema: StructType, columns: dict[str, str]) -> list[str]:
    """Return the names in the schema, in its order; raise SourceError for an unknown column."""
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            raise SourceError(f"column {field.name}: unknown; must be one of {', '.join(columns)}")
        actual = field.dataType.simpleString()
        if actual != kind:
            raise SourceError(f"column {field.name}: must be {kind}, got {actual}")
    names = [field.name for field in schema.fields]
    others = set(names) - OF_TOPIC - {RECORDS}
    if RECORDS in names and others:
        raise SourceError(
            f"column {RECORDS}: must be combined only with {', '.join(sorted(OF_TOPIC))}, "
            f"got {', '.join(sorted(others))}"
        )
    return names


def arrow_schema(names: list[str], columns: dict[str, str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW_TYPES[columns[name]]) for name in names])
