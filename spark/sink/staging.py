"""Staging: rows wait in a topic of their own until their batch is complete.

A task appends each chunk of its rows and reports its seqs, and does nothing else. Chunks left by a failed or
superfluous attempt, or by a request that was repeated after its response was lost, are named by no report:
they are never read, and are deleted with the rest. A chunk may therefore be staged any number of times.

A write that runs once deletes its staging topic at the end. Tasks may continue for a while after that, since
Spark does not wait for the tasks of a failed job; therefore only the driver creates that topic.

The topic has the durability class `fsync`, so that a decision can rely on staged chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from spark.errors import SourceError
from spark.sink.rows import SinkChunk, SinkRows
from spark.task.read_pages import PageRecord, read_page
from spark.view.server_client import ServerClient, ServerRefusal, in_path
from topicsd.engine.requests import NO_META

CONFIG = {"durability": "fsync"}
_CREATE = b',"config":' + msgspec.json.encode(CONFIG) + b"}"
_NO_CREATE = b',"create":false}'


class StagedChunk(NamedTuple):
    """A chunk for a topic, by its first and last seq in the staging topic."""

    topic: str
    first_seq: int
    last_seq: int


class _Appended(msgspec.Struct):
    first_seq: int
    last_seq: int


class _StagedRecord(msgspec.Struct, omit_defaults=True):
    data: msgspec.Raw | msgspec.UnsetType
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: bytes | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def open_staging(client: ServerClient, staging: str) -> None:
    """Create the topic, with one record that belongs to no batch."""
    _append(client, staging, b'{"records":[{"data":null}]', _CREATE)


def stage(client: ServerClient, staging: str, chunk: SinkChunk, rows: SinkRows, is_open: bool) -> StagedChunk:
    try:
        answer = _append(client, staging, chunk.body, _NO_CREATE if is_open else _CREATE)
    except ServerRefusal as refusal:
        if refusal.status in (400, 413):
            raise rows.row_error(chunk, str(refusal.detail.get("field", "")), str(refusal)) from None
        raise
    seqs = msgspec.json.decode(answer, type=_Appended)
    return StagedChunk(chunk.topic, seqs.first_seq, seqs.last_seq)


def read_staged(client: ServerClient, staging: str, chunk: StagedChunk) -> bytes:
    """Return the chunk's records as an array of JSON objects for an append."""
    cursor = chunk.first_seq - 1
    parts: list[_StagedRecord] = []
    while cursor < chunk.last_seq:
        page = read_page(client, staging, cursor, chunk.last_seq)
        is_whole = not page.records or page.records[-1].seq - page.records[0].seq + 1 == len(page.records)
        if not page.records or page.records[0].seq != cursor + 1 or not is_whole:
            raise SourceError(
                f'topic "{staging}": staged records after seq {cursor} for topic "{chunk.topic}" are '
                "missing: they were deleted before the batch was written"
            )
        cursor = page.records[-1].seq
        parts += map(_staged, page.records)
    return _encode(parts)


def _staged(record: PageRecord) -> _StagedRecord:
    meta = msgspec.UNSET if record.meta is NO_META else record.meta
    if record.data_base64 is None:
        return _StagedRecord(record.data, record.tag, record.node, meta)
    return _StagedRecord(msgspec.UNSET, record.tag, record.node, meta, record.data_base64)


def _append(client: ServerClient, staging: str, records: bytes, rest: bytes) -> bytes:
    return client.ask("POST", f"topics/{in_path(staging)}?return_seqs=false", records + rest)


def delete_before(client: ServerClient, topic: str, before_seq: int) -> None:
    client.ask("POST", f"topics/{in_path(topic)}/delete", {"before_seq": before_seq})
