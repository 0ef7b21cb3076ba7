"""Records as a batch of Arrow with the columns that a query chose.

`topic` and `partition` are constant in a batch, `offset` and `timestamp` are read from the index, the others
are cut out of the frames. Only `headers` creates Python objects, since the entries of meta are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark.task.frame_table import FrameTable, Numbers

# Smaller batches are concatenated with their neighbours up to these sizes.
JOINED_RECORDS = 1 << 13
JOINED_BYTES = 1 << 20
# Kafka's number for the timestamp type "log append time".
LOG_APPEND_TIME = 1


class Rows(NamedTuple):
    topic: str
    shard: int
    seqs: Numbers
    times_ms: Numbers
    """Times in milliseconds."""
    frames: FrameTable | None
    """None if no chosen column needs frames."""


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_COLUMNS[name](rows) for name in schema.names], schema=schema)


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Concatenate small batches: Spark's cost per batch equals that of hundreds of records."""
    small: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        records, size = records + batch.num_rows, size + batch.nbytes
        small.append(batch)
        if records >= JOINED_RECORDS or size >= JOINED_BYTES:
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, records, size = [], 0, 0
    if small:
        yield pa.concat_batches(small)


def _frames(rows: Rows) -> FrameTable:
    assert rows.frames is not None
    return rows.frames


@lru_cache(maxsize=8)
def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return a constant array; cached, since most batches are whole segments of the same size."""
    return pa.repeat(pa.scalar(value, kind), count)


def _timestamp(rows: Rows) -> pa.Array:
    return pa.array(rows.times_ms * 1000).view(pa.timestamp("us", tz="UTC"))


def _part(rows: Rows, starts: Numbers, ends: Numbers, is_null: npt.NDArray[np.bool_]) -> pa.Array:
    if is_null.all():
        return pa.nulls(len(is_null), pa.binary())
    return _frames(rows).cut(starts, ends, is_null if is_null.any() else None)


def _tag(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return _part(rows, frames.tag_at, frames.data_at, frames.tag_at == frames.data_at)


def _node(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return _part(rows, frames.node_at, frames.tag_at, frames.node_at == frames.tag_at)


def _meta(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return _part(rows, frames.meta_at, frames.meta_end, ~frames.has_meta)


def _data(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return frames.cut(frames.data_at, frames.data_end)


def _json_data(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return _part(rows, frames.data_at, frames.data_end, frames.is_bytes)


def _data_bytes(rows: Rows) -> pa.Array:
    frames = _frames(rows)
    return _part(rows, frames.data_at, frames.data_end, ~frames.is_bytes)


def _text(part: Callable[[Rows], pa.Array]) -> Callable[[Rows], pa.Array]:
    return lambda rows: part(rows).view(pa.string())


def _headers(rows: Rows) -> pa.Array:
    nodes, metas = _node(rows).to_pylist(), _meta(rows).to_pylist()
    kind = pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    )
    return pa.array([header_entries(node, meta) for node, meta in zip(nodes, metas, strict=True)], type=kind)


def header_entries(node: bytes | None, meta: bytes | None) -> list[dict[str, Any]] | None:
    """Return the headers of a record: a string value as its bytes, any other value as JSON."""
    entries: list[dict[str, Any]] = []
    if meta is not None:
        decoded = msgspec.json.decode(meta)
        for key, value in (decoded if isinstance(decoded, dict) else {"meta": decoded}).items():
            raw = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
            entries.append({"key": key, "value": raw})
    if node is not None:
        entries.append({"key": "node", "value": node})
    return entries or None


_COLUMNS: dict[str, Callable[[Rows], pa.Array]] = {
    "key": _tag,
    "value": _data,
    "topic": lambda rows: _repeated(rows.topic, pa.string(), len(rows.seqs)),
    "partition": lambda rows: _repeated(rows.shard, pa.int32(), len(rows.seqs)),
    "offset": lambda rows: pa.array(rows.seqs),
    "timestamp": _timestamp,
    "timestampType": lambda rows: _repeated(LOG_APPEND_TIME, pa.int32(), len(rows.seqs)),
    "headers": _headers,
    "seq": lambda rows: pa.array(rows.seqs),
    "ts": _timestamp,
    "tag": _text(_tag),
    "node": _text(_node),
    "meta": _text(_meta),
    "data": _text(_json_data),
    "data_bytes": _data_bytes,
}
