"""Rows wait here until their batch is whole: in a topic of their own, with the limits of every topic.

A task appends each chunk of its rows and reports where it stands; that is all that it does. What an attempt
leaves that failed, that was one too many, or whose answer was lost and that was sent again, is named by no
report: nobody reads it, and it goes with what is forgotten. So a chunk may be staged any number of times.

The topic of a write that is done once goes with the write. A task may be at work for a while longer, since
Spark does not wait for those of a job that has failed: so the driver makes that topic and no task does.

The topic is of the class `fsync`: whoever decides that a batch is whole may rely on it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from spark.errors import SourceError
from spark.sink.rows import Chunk, SinkRows
from spark.task.read_pages import read_page
from spark.view.server_client import ServerClient, ServerRefusal, in_path
from topicsd.engine.requests import NO_META

CONFIG = {"durability": "fsync"}
_MAKES = b',"config":' + msgspec.json.encode(CONFIG) + b"}"
_IS_THERE = b',"create":false}'


class Staged(NamedTuple):
    """A chunk for a topic, by its first and last seq in the staging topic."""

    topic: str
    first_seq: int
    last_seq: int


class _Appended(msgspec.Struct):
    first_seq: int
    last_seq: int


class _Record(msgspec.Struct, omit_defaults=True):
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def open_staging(client: ServerClient, staging: str) -> None:
    """Make the topic, with a record that no batch names."""
    _append(client, staging, b'{"records":[{"data":null}]', _MAKES)


def stage(client: ServerClient, staging: str, chunk: Chunk, rows: SinkRows, is_open: bool) -> Staged:
    try:
        answer = _append(client, staging, chunk.body, _IS_THERE if is_open else _MAKES)
    except ServerRefusal as refusal:
        if refusal.status in (400, 413):
            raise rows.about(chunk, str(refusal.detail.get("field", "")), str(refusal)) from None
        raise
    told = msgspec.json.decode(answer, type=_Appended)
    return Staged(chunk.topic, told.first_seq, told.last_seq)


def read_staged(client: ServerClient, staging: str, chunk: Staged) -> bytes:
    """Its records as an append has them, without the list's brackets."""
    cursor, parts = chunk.first_seq - 1, []
    while cursor < chunk.last_seq:
        page = read_page(client, staging, cursor, chunk.last_seq)
        whole = not page.records or page.records[-1].seq - page.records[0].seq + 1 == len(page.records)
        if not page.records or page.records[0].seq != cursor + 1 or not whole:
            raise SourceError(
                f'topic "{staging}" has lost records behind seq {cursor}, which wait there for topic '
                f'"{chunk.topic}"; somebody has deleted them'
            )
        cursor = page.records[-1].seq
        parts += [
            _Record(one.data, one.tag, one.node, one.meta if one.meta is not NO_META else msgspec.UNSET)
            for one in page.records
        ]
    return _encode(parts)


def _append(client: ServerClient, staging: str, records: bytes, rest: bytes) -> bytes:
    return client.ask("POST", f"topics/{in_path(staging)}?return_seqs=false", records + rest)


def forget(client: ServerClient, topic: str, before_seq: int) -> None:
    client.ask("POST", f"topics/{in_path(topic)}/delete", {"before_seq": before_seq})
