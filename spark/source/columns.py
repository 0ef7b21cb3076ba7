"""The columns of a read, with Kafka's names and types or with our own, and which of them a query wants.

PySpark (4.3) asks a Python source for all columns of its schema, whatever the query selects. So a schema that
the reader is given, by hand as in `spark.read.schema("offset bigint")` or by the rule of `narrow_reads.py`,
is taken as the choice of columns: any of Kafka's and of ours, in any order, each with its own type. Those
that are not in it are not decoded, and where all that are left stand in the index of a segment its records
are not read at all. One that has `records` wants no records, but how many there are.
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
# How many records there are, instead of the records: a row then stands for some of one topic.
RECORDS = "records"
COUNTED = {RECORDS: "bigint"}
# What a schema that the reader is given may choose from.
EVERY = KAFKA | HEADERS | NATIVE | COUNTED
# Those that are the same in all records of a topic, and so may stand beside their number.
OF_TOPIC = frozenset(("topic", "partition", "timestampType"))
# Those that are known of a record by what is known of its segment, and those that its index tells.
FROM_ENTRY = OF_TOPIC | {"offset", "seq"}
FROM_INDEX = FROM_ENTRY | {"timestamp", "ts"}


def all_columns(is_native: bool, include_headers: bool) -> dict[str, str]:
    """Names with Spark's types."""
    if is_native:
        return NATIVE
    return KAFKA | HEADERS if include_headers else KAFKA


def ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def chosen_columns(schema: StructType, columns: dict[str, str]) -> list[str]:
    """The names in the schema, in its order; a column that is not ours is an error."""
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            raise SourceError(f"there is no column {field.name}; there are {', '.join(columns)}")
        found = field.dataType.simpleString()
        if found != kind:
            raise SourceError(f"column {field.name} is {kind}, not {found}")
    names = [field.name for field in schema.fields]
    others = set(names) - OF_TOPIC - {RECORDS}
    if RECORDS in names and others:
        raise SourceError(
            f"column {RECORDS} is of many records; beside it there may be {', '.join(sorted(OF_TOPIC))}, "
            f"and not {', '.join(sorted(others))}"
        )
    return names


def arrow_schema(names: list[str], columns: dict[str, str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW_TYPES[columns[name]]) for name in names])
