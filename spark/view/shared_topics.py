"""The shared topics of a catalog, each at one commit: its row, and its extents where they are asked for.

A shared topic has no files: the catalog has its extents, and the store the objects that they name. A query
reads the row of a topic once. Records are never changed and seqs are never used again, so the head of the row
fixes what the query reads: later commits, and compactions that replace extents, change none of its rows.

The times of records follow the clocks of the brokers that took them. So they may fall within a topic, and a
range of times is no exact range of seqs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from spark.errors import DamagedRecord, SourceError
from spark.source.read_options import ReadOptions, Selection
from topicsd.broker.frames_v1 import SEGMENT_V1, OtherTopic, Rebase, UnknownEncoding, decode_frames
from topicsd.broker.segment_v1 import SegmentParts
from topicsd.catalog.open_catalog import catalog_directory, sqlite_path
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    TOPICS_AT_ONCE,
    SharedCatalog,
    SharedExtent,
    SharedTopic,
)
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import RealFs
from topicsd.engine.records.lost_range import LostRange
from topicsd.log.frame import Record
from topicsd.segment.objects import SegmentObjects

CATALOG_SECONDS: Final = 30.0
LOOKUPS_MAX: Final = 4
SHARD: Final = 0
EVICTED: Final = "evicted"
PROBE_BYTES: Final = 64 << 10


class ExtentSeqs(NamedTuple):
    """An extent, and those of its seqs that are wanted."""

    extent: SharedExtent
    first_seq: int
    last_seq: int

    @property
    def byte_count(self) -> int:
        """The approximate size of the records."""
        extent = self.extent
        count = extent.last_seq - extent.first_seq + 1
        return extent.byte_length * (self.last_seq - self.first_seq + 1) // count


def check_catalog_file(options: ReadOptions) -> None:
    """Refuse a catalog in a file that does not exist: opening it would make it."""
    path = sqlite_path(options.catalog, catalog_directory(options.path, ""))
    if path and not exists(RealFs(), path):
        raise SourceError(f"catalog: {path} does not exist")


def catalog_retries() -> Retries:
    return Retries(SystemClock.monotonic, threading.Event().wait, CATALOG_SECONDS)


def open_shared(options: ReadOptions) -> SharedCatalog:
    check_catalog_file(options)
    folder = catalog_directory(options.path, "")
    return open_shared_catalog(options.catalog, folder, catalog_retries(), SystemClock().now_ms, options.path)


def shared_rows(catalog: SharedCatalog, selection: Selection) -> Iterator[SharedTopic]:
    """Yield the rows of the topics that are selected."""
    names = selection.names
    for at in range(0, len(names), TOPICS_AT_ONCE):
        yield from filter(None, catalog.topics(names[at : at + TOPICS_AT_ONCE]))
    after = ""
    while not names and (rows := catalog.list("", after, TOPICS_AT_ONCE)):
        yield from (row for row in rows if selection.matches(row.name))
        after = rows[-1].name


def extents_between(catalog: SharedCatalog, name: str, first: int, last: int) -> Iterator[ExtentSeqs]:
    """Yield extents in order, each with its part of the seqs; those that no extent has are left out."""
    seq = first
    while seq <= last and (page := catalog.extents_from(name, seq, EXTENTS_AT_ONCE)):
        for extent in page:
            low, high = max(seq, extent.first_seq), min(last, extent.last_seq)
            if low <= high:
                yield ExtentSeqs(extent, low, high)
                seq = high + 1
        if page[-1].last_seq >= last:
            return


class SharedTopicView:
    """A shared topic at one commit, as `QueryTopic` has it."""

    shard: Final = SHARD

    def __init__(
        self, row: SharedTopic, catalog: SharedCatalog, objects: SegmentObjects, bytes_enough: int
    ) -> None:
        """`bytes_enough` is how many bytes of a backlog are counted; 0 counts all."""
        self.row = row
        self.catalog = catalog
        self.objects = objects
        self._bytes_enough = bytes_enough
        self._parts = SegmentParts()

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def epoch(self) -> int:
        return self.row.incarnation

    @property
    def earliest(self) -> int:
        return self.row.first_seq

    @property
    def durable(self) -> int:
        """The last seq: all records of a catalog are in the store."""
        return self.row.head

    @property
    def head(self) -> int:
        return self.row.head

    @property
    def end(self) -> int:
        return self.row.head + 1

    def lost(self, start: int, end: int) -> LostRange | None:
        # What a client deleted is passed over first, as the reader of a broker does it.
        first = max(start, self.row.deleted_to + 1)
        return LostRange(first, self.row.evicted_to, EVICTED) if first <= self.row.evicted_to else None

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Return all seqs: no time in the catalog bounds those of the records."""
        return self.earliest, self.head

    def bytes_between(self, start: int, end: int) -> int:
        size = 0
        for one in extents_between(self.catalog, self.name, start, end - 1):
            size += one.byte_count
            if self._bytes_enough and size > self._bytes_enough:
                break
        return size

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        """Return the end of an extent if one fits, since each object is then fetched once."""
        for one in extents_between(self.catalog, self.name, start, end - 1):
            if one.byte_count > bytes_max:
                if one.first_seq > start:
                    return one.first_seq
                count = one.last_seq - one.first_seq + 1
                return start + max(1, count * bytes_max // one.byte_count)
            bytes_max -= one.byte_count
        return end

    # -- a position by time

    def seq_at(self, ts: int) -> int | None:
        """Return the first seq whose record is not older, where the clocks of the brokers agree.

        Extents are searched by the time of their first record: about 2 * log2(extents) requests.
        """
        for _ in range(LOOKUPS_MAX):
            try:
                return self._seq_at(ts)
            except FileNotFoundError:
                # Compacted since the lookup.
                continue
        raise SourceError(f'topic "{self.name}": its objects vanish faster than they are read')

    def _seq_at(self, ts: int) -> int | None:
        low, high = self.earliest, self.head
        last_older: SharedExtent | None = None
        while low <= high:
            middle = (low + high) // 2
            page = self.catalog.extents_from(self.name, middle, 1)
            if not page:
                break
            extent = page[0]
            if self._record(extent, extent.first_seq).ts >= ts:
                high = min(middle, extent.first_seq) - 1
            else:
                last_older = extent
                low = extent.last_seq + 1
        seq = self.earliest
        if last_older is not None:
            seq = max(seq, self._first_in(last_older, ts))
        return seq if seq <= self.head else None

    def _first_in(self, extent: SharedExtent, ts: int) -> int:
        """Return the first seq of an extent whose record is not older; the seq after it if all are."""
        low, high = extent.first_seq, extent.last_seq
        if extent.encoding == SEGMENT_V1:
            while low <= high:
                middle = (low + high) // 2
                if self._record(extent, middle).ts >= ts:
                    high = middle - 1
                else:
                    low = middle + 1
            return low
        body = self.objects.store.read(extent.key, extent.byte_offset, extent.byte_length)
        records = self._decoded(extent, body)
        return next((record.seq for record in records if record.ts >= ts), high + 1)

    def _record(self, extent: SharedExtent, seq: int) -> Record:
        if extent.encoding == SEGMENT_V1:
            read = partial(self.objects.read_range, extent.key)
            part = self._parts.read(read, extent.key, self._rebase(extent), extent.byte_length, seq, 1)
            records = [] if part is None else self._decoded(extent, part.body, part.rebase)
        else:
            size = min(PROBE_BYTES, extent.byte_length)
            body = self.objects.store.read(extent.key, extent.byte_offset, size)
            # The end of the body may be cut off: that is no damage of its first record.
            records = self._decoded(extent, body)
            if not records and size < extent.byte_length:
                body = self.objects.store.read(extent.key, extent.byte_offset, extent.byte_length)
                records = self._decoded(extent, body)
        if not records or records[0].seq != seq:
            where = f"{self.objects.path_of(extent.key)}, offset {extent.byte_offset}"
            raise DamagedRecord(f'{where}: seq {seq} of topic "{self.name}", which a time needs, is damaged')
        return records[0]

    def _decoded(self, extent: SharedExtent, body: bytes, rebase: Rebase | None = None) -> list[Record]:
        try:
            return decode_frames(body, rebase or self._rebase(extent), encoding=extent.encoding).records
        except (OtherTopic, UnknownEncoding) as error:
            raise SourceError(f'topic "{self.name}": {self.objects.path_of(extent.key)}: {error}') from None

    def _rebase(self, extent: SharedExtent) -> Rebase:
        return Rebase(self.row.incarnation, extent.first_seq, extent.last_seq)
