"""The rows of a query as JSON records for appends.

The columns are those of Kafka's sink, so that rows from a read can be written: `value` is JSON, `key` is the
tag, and `headers` become the entries of meta, except that an entry named `node` becomes the node. The native
columns `data`, `tag`, `meta` and `node` may be used in their place. A row with `data_bytes` is a record of
bytes; its `data` is null. The other columns of Kafka's source
describe where a row was, and are ignored.

A value is checked here, since invalid JSON could change the meaning of the request body. All other rules are
the server's; its refusal is reported with the row it concerns.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from shared.contract.names import TOPIC_NAME_RULE, is_topic_name
from spark.errors import SourceError

TEXTS = ("string", "binary")
HEADERS = "array<struct<key:string,value:binary>>"
# Each column with its types; a query may have at most one of each pair in EXCLUSIVE_COLUMNS.
SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "value": TEXTS,
    "data": TEXTS,
    "data_bytes": ("binary",),
    "key": TEXTS,
    "tag": TEXTS,
    "headers": (HEADERS,),
    "meta": TEXTS,
    "node": TEXTS,
    "topic": ("string",),
}
IGNORED_COLUMNS = ("partition", "offset", "timestamp", "timestampType", "seq", "ts")
EXCLUSIVE_COLUMNS = (("value", "data"), ("key", "tag"), ("headers", "meta"), ("headers", "node"))
CHUNK_BYTES = 1 << 20

_encode = msgspec.json.Encoder().encode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_INDEX = re.compile(r"records\[(\d+)\]\.?(\w*)")


class RowError(SourceError):
    """A row that cannot be a record."""


class SinkChunk(NamedTuple):
    """Records for one topic, sent in one request."""

    topic: str
    records: list[bytes]
    rows: list[int]
    """The number of each record's row in the task."""

    @property
    def body(self) -> bytes:
        return b'{"records":[%b]' % b",".join(self.records)


def check_sink_columns(columns: Iterable[tuple[str, str]], has_topic: bool) -> None:
    """Check the columns (name and Spark type) of a query; raise SourceError for a wrong one."""
    types = dict(columns)
    for name, kind in types.items():
        kinds = SINK_COLUMNS.get(name)
        if kinds is None and name not in IGNORED_COLUMNS:
            raise SourceError(f"column {name}: unknown; must be one of {', '.join(SINK_COLUMNS)}")
        if kinds is not None and kind not in kinds:
            raise SourceError(f"column {name}: must be {' or '.join(kinds)}, got {kind}")
    for one, other in EXCLUSIVE_COLUMNS:
        if one in types and other in types:
            raise SourceError(f"column {other}: must not be combined with column {one}; remove one of them")
    if not {"value", "data", "data_bytes"} & types.keys():
        raise SourceError("column value: is missing; it must hold the JSON of each record")
    if not has_topic and "topic" not in types:
        raise SourceError("topic: is missing; set the option topic, or add a column topic")


class SinkRows:
    """The rows of one task, in order, as chunks."""

    def __init__(self, topic: str, chunk_records: int, partition: int) -> None:
        self._topic = topic
        self._chunk_records = chunk_records
        self._partition = partition
        self._open: dict[str, tuple[SinkChunk, int]] = {}
        """Open chunks by topic, with their size in bytes."""
        self._open_bytes = 0
        self._valid_topics: set[str] = set()
        """The topic names that have passed the check."""
        self._row = 0

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[SinkChunk]:
        for batch in batches:
            columns = {
                name: batch.column(name).to_pylist() for name in batch.schema.names if name in SINK_COLUMNS
            }
            for topic, record in zip(
                self._topics(columns, batch.num_rows), self._records(columns), strict=True
            ):
                chunk, size = self._open.get(topic) or (SinkChunk(topic, [], []), 0)
                chunk.records.append(record)
                chunk.rows.append(self._row)
                self._row += 1
                size += len(record)
                self._open_bytes += len(record)
                self._open[topic] = chunk, size
                if len(chunk.records) >= self._chunk_records or size >= CHUNK_BYTES:
                    yield self._close(topic)
                elif self._open_bytes >= 16 * CHUNK_BYTES:
                    # Bounds memory when the rows belong to very many topics.
                    yield self._close(max(self._open, key=lambda name: self._open[name][1]))
        while self._open:
            yield self._close(next(iter(self._open)))

    def row_error(self, chunk: SinkChunk, field: str, sentence: str) -> RowError:
        """Return the server's refusal of a chunk as an error that names the row and the column."""
        match = _INDEX.search(field) or _INDEX.search(sentence)
        if match is None:
            rows = f"rows {chunk.rows[0]} to {chunk.rows[-1]}"
            return RowError(f'{rows} of partition {self._partition}, for topic "{chunk.topic}": {sentence}')
        column = {"tag": "key", "meta": "headers", "node": "headers"}.get(match[2], "value")
        return self._wrong(column, chunk.rows[int(match[1])], sentence)

    def _close(self, topic: str) -> SinkChunk:
        chunk, size = self._open.pop(topic)
        self._open_bytes -= size
        return chunk

    def _topics(self, columns: dict[str, list[Any]], count: int) -> Iterable[str]:
        if self._topic:
            return [self._topic] * count
        names = columns["topic"]
        for at, name in enumerate(names):
            if name not in self._valid_topics:
                if name is None or not is_topic_name(name):
                    raise self._wrong(
                        "topic",
                        self._row + at,
                        f"must match {TOPIC_NAME_RULE}, got {name!r}",
                    )
                self._valid_topics.add(name)
        return names

    def _records(self, columns: dict[str, list[Any]]) -> Iterator[bytes]:
        """Yield each row as a JSON record."""
        name = "value" if "value" in columns else "data"
        count = len(next(iter(columns.values())))
        texts, octets = (columns.get(one) or [None] * count for one in (name, "data_bytes"))
        parts: list[tuple[str, Callable[[Any], Sequence[bytes]]]] = [
            (column, make)
            for column, make in (
                ("key", _tag),
                ("tag", _tag),
                ("node", _node),
                ("meta", _meta),
                ("headers", _headers),
            )
            if column in columns
        ]
        for at, (text, octet) in enumerate(zip(texts, octets, strict=True)):
            record = self._json(name, text) if octet is None else self._bytes(name, text, octet)
            for column, make in parts:
                cell = columns[column][at]
                if cell is not None:
                    try:
                        for part in make(cell):
                            record += part
                    except (ValueError, msgspec.DecodeError) as error:
                        raise self._wrong(column, self._row, _reason(error)) from None
            yield record + b"}"

    def _bytes(self, name: str, text: str | bytes | None, octets: bytes) -> bytes:
        if text is not None:
            raise self._wrong("data_bytes", self._row, f"must be null in a row with {name}")
        return b'{"data_base64":"' + b2a_base64(octets, newline=False) + b'"'

    def _json(self, name: str, value: str | bytes | None) -> bytes:
        if value is None:
            return b'{"data":null'
        try:
            data = value.encode() if isinstance(value, str) else value
            _check_json(data)
            if not data.isascii():
                data.decode()
        except (ValueError, msgspec.DecodeError) as error:
            message = f"must be JSON, got {data[:40]!r} ({_reason(error)}); convert the column with to_json()"
            raise self._wrong(name, self._row, message) from None
        return b'{"data":' + data

    def _wrong(self, column: str, row: int, sentence: str) -> RowError:
        return RowError(f"column {column}, row {row} of partition {self._partition}: {sentence}")


def _reason(error: Exception) -> str:
    return "not valid UTF-8" if isinstance(error, UnicodeError) else str(error)


def _text(value: str | bytes) -> bytes:
    return _encode(value if isinstance(value, str) else value.decode())


def _tag(value: str | bytes) -> Sequence[bytes]:
    return (b',"tag":', _text(value)) if value else ()


def _node(value: str | bytes) -> Sequence[bytes]:
    return (b',"node":', _text(value)) if value else ()


def _meta(value: str | bytes) -> Sequence[bytes]:
    meta = value.encode() if isinstance(value, str) else value
    meta.decode()
    return b',"meta":', bytes(_check_json(meta))


def _headers(entries: list[dict[str, Any]]) -> Sequence[bytes]:
    node, meta = None, {}
    for entry in entries:
        key, value = entry["key"], entry["value"]
        if key is None or key in meta or (key == "node" and node is not None):
            raise ValueError(f"header keys must be distinct and not null, got {key!r}")
        text = None if value is None else value.decode()
        if key == "node":
            node = text
        else:
            meta[key] = text
    return (*(_node(node) if node else ()), *((b',"meta":', _encode(meta)) if meta else ()))
