"""Task reads from a server: ranges of seqs, page by page with `diff`, as batches of Arrow.

A page is at most as large as the server allows, and is decoded at once; data and meta stay the received
bytes. Records lost since the plan was made arrive as a tombstone, which is reported or skipped like an
earlier loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.errors import DamagedRecord
from spark.source.columns import ARROW_TYPES, HEADERS
from spark.source.offsets import loss_of
from spark.source.read_options import ReadOptions
from spark.task.record_batch import LOG_APPEND_TIME, header_entries
from spark.view.server_client import ServerClient, ServerRefusal, in_path
from spark.view.server_view import ServerTombstone
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.requests import NO_DATA, NO_META

PAGE_RECORDS = 1000
CORRUPT = "corrupt_segment"
TOPIC_NOT_FOUND = "topic_not_found"

logger = logging.getLogger("topicsd.spark")


class SeqRange(NamedTuple):
    topic: str
    epoch: int
    shard: int
    first_seq: int
    last_seq: int
    is_front: bool = False
    """Whether the range begins at the topic's earliest record, so that evictions there are no loss."""


class RangePartition(InputPartition):
    """Ranges of one shard, read by one task."""

    def __init__(self, ranges: list[SeqRange]) -> None:
        super().__init__(ranges[0])
        self.ranges = ranges


class PageRecord(msgspec.Struct, gc=False):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: msgspec.Raw = NO_DATA
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    meta: msgspec.Raw = NO_META
    data_base64: bytes | None = None
    """The data of a record of bytes, decoded."""

    @property
    def content(self) -> bytes:
        """Return the data as it was appended: JSON, or bytes."""
        return bytes(self.data) if self.data_base64 is None else self.data_base64


class DiffPage(msgspec.Struct):
    records: list[PageRecord]
    next_from_seq: int
    earliest_seq: int
    epoch: int
    tombstone: ServerTombstone | None


_decode = msgspec.json.Decoder(DiffPage).decode


def ranges_of(ranges: Sequence[SeqRange], records_max: int, partitions_min: int) -> list[RangePartition]:
    """Group ranges into partitions by shard, up to `records_max` seqs, at least `partitions_min`.

    >>> many = ranges_of([SeqRange("a", 1, 0, 1, 5), SeqRange("b", 2, 0, 1, 2)], 4, 1)
    >>> [[(one.topic, one.first_seq, one.last_seq) for one in part.ranges] for part in many]
    [[('a', 1, 4)], [('a', 5, 5), ('b', 1, 2)]]
    """
    total = sum(one.last_seq - one.first_seq + 1 for one in ranges)
    size = max(1, min(records_max, -(-total // partitions_min)))
    partitions: list[RangePartition] = []
    room = 0
    for one in sorted(ranges, key=lambda one: one.shard):
        for first in range(one.first_seq, one.last_seq + 1, size):
            last = min(one.last_seq, first + size - 1)
            is_front = one.is_front and first == one.first_seq
            part = one._replace(first_seq=first, last_seq=last, is_front=is_front)
            room -= part.last_seq - first + 1
            if room < 0 or partitions[-1].ranges[0].shard != one.shard:
                partitions.append(RangePartition([part]))
                room = size - (part.last_seq - first + 1)
            else:
                partitions[-1].ranges.append(part)
    return partitions


def read_ranges(
    options: ReadOptions, schema: pa.Schema, partition: RangePartition
) -> Iterator[pa.RecordBatch]:
    skipped = 0
    with ServerClient(options.url, options.api_key) as client:
        for seq_range in partition.ranges:
            cursor = seq_range.first_seq - 1
            while cursor < seq_range.last_seq:
                try:
                    page = read_page(client, seq_range.topic, cursor, seq_range.last_seq, seq_range.epoch)
                except ServerRefusal as refusal:
                    if refusal.code == TOPIC_NOT_FOUND:
                        break  # A deleted topic is not data loss.
                    if refusal.code != CORRUPT:
                        raise
                    if not options.is_permissive:
                        raise DamagedRecord(
                            f"{refusal}; set mode=PERMISSIVE to skip damaged records"
                        ) from None
                    skipped += int(refusal.detail["last_seq"]) - int(refusal.detail["first_seq"]) + 1
                    cursor = int(refusal.detail["next_from_seq"])
                    continue
                if page.epoch != seq_range.epoch:
                    break
                if page.tombstone is not None and options.fail_on_data_loss:
                    _raise_if_lost(seq_range, page, page.tombstone, cursor + 1)
                cursor = page.next_from_seq
                records = [one for one in page.records if one.seq <= seq_range.last_seq]
                if records:
                    yield page_batch(seq_range, records, schema)
    if skipped:
        logger.warning("read: skipped damaged records: mode=PERMISSIVE  count=%d", skipped)


def read_page(
    client: ServerClient, topic: str, cursor: int, last_seq: int, epoch: int | None = None
) -> DiffPage:
    """Return the records after the cursor, up to a bound of the server."""
    limit = min(PAGE_RECORDS, last_seq - cursor)
    body = {"after_seq": cursor, "limit": limit, "include_tags": True, "include_meta": True, "epoch": epoch}
    return _decode(client.ask("POST", f"topics/{in_path(topic)}/diff", body))


def _raise_if_lost(seq_range: SeqRange, page: DiffPage, tombstone: ServerTombstone, start: int) -> None:
    lost = LostRange(max(start, tombstone.gap_from), tombstone.gap_to, tombstone.reason)
    is_in_front = seq_range.is_front and start == seq_range.first_seq and lost.last < page.earliest_seq
    if lost.first <= seq_range.last_seq and not is_in_front:
        raise loss_of(seq_range.topic, start, page.earliest_seq, lost)


def page_batch(seq_range: SeqRange, records: list[PageRecord], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_COLUMNS[name](seq_range, records) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


Column = Callable[[SeqRange, list[PageRecord]], pa.Array]


def _each(kind: pa.DataType, value: Callable[[PageRecord], Any]) -> Column:
    return lambda _, records: pa.array([value(one) for one in records], type=kind)


def _same(kind: pa.DataType, value: Callable[[SeqRange], Any]) -> Column:
    return lambda seq_range, records: pa.repeat(pa.scalar(value(seq_range), kind), len(records))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(raw: msgspec.Raw) -> str | None:
    return bytes(raw).decode() if raw is not NO_META and raw is not NO_DATA else None


def _timestamps(_: SeqRange, records: list[PageRecord]) -> pa.Array:
    micros = pa.array([one.ts * 1000 for one in records], type=pa.int64())
    return micros.view(pa.timestamp("us", tz="UTC"))


def _headers(one: PageRecord) -> list[dict[str, Any]] | None:
    return header_entries(_bytes(one.node), bytes(one.meta) if one.meta is not NO_META else None)


_seqs = _each(pa.int64(), lambda one: one.seq)
_COLUMNS: dict[str, Column] = {
    "key": _each(pa.binary(), lambda one: _bytes(one.tag)),
    "value": _each(pa.binary(), lambda one: one.content),
    "topic": _same(pa.string(), lambda seq_range: seq_range.topic),
    "partition": _same(pa.int32(), lambda seq_range: seq_range.shard),
    "offset": _seqs,
    "timestamp": _timestamps,
    "timestampType": _same(pa.int32(), lambda _: LOG_APPEND_TIME),
    "headers": _each(ARROW_TYPES[HEADERS["headers"]], _headers),
    "seq": _seqs,
    "ts": _timestamps,
    "tag": _each(pa.string(), lambda one: one.tag),
    "node": _each(pa.string(), lambda one: one.node),
    "meta": _each(pa.string(), lambda one: _text(one.meta)),
    "data": _each(pa.string(), lambda one: _text(one.data)),
    "data_bytes": _each(pa.binary(), lambda one: one.data_base64),
}
