"""The exported topics of a catalog, from their state objects: no server and no data directory is asked.

The newest state object of a topic is its state at one moment, up to the last exported seq: the segments and
their objects, the deleted and evicted records, and what is lost. The row of each topic is read once, so a
query is about one moment.

The exporter publishes the objects that take the place of others before it deletes these, after the grace time
of outside readers. So a missing state object means that the row is out of date, and it is read again. What a
task reads is protected by the grace time.

Topics of a catalog have no shard: the column `partition` is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final

import msgspec

from shared.contract.topic_config import TopicConfig
from shared.runtime.clock import Clock, SystemClock
from shared.settings.settings import Settings
from spark.errors import SourceError
from spark.source.read_options import ReadOptions
from spark.view.object_place import ObjectPlace, StoredFiles, shown_url
from spark.view.shared_topics import (
    SHARD,
    SharedTopicView,
    catalog_retries,
    check_catalog_file,
    open_shared,
    shared_rows,
)
from spark.view.topic_view import FileView, TopicView
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    Catalog,
    CatalogExtraMissing,
    CatalogRefused,
    CatalogUnavailable,
    Extent,
    TopicRow,
)
from topicsd.catalog.open_catalog import catalog_directory, open_catalog
from topicsd.engine.bundle.bundle_format import Bundle, BundleDamage, decode_bundle
from topicsd.engine.bundle.load_bundle import topic_of
from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.engine.ownership.state_object import state_keys
from topicsd.engine.retention.retention import expire
from topicsd.engine.shard_data import ShardData
from topicsd.log.file_header import UnknownVersion
from topicsd.log.files import LogFiles
from topicsd.segment.entry import COLD, DATA, TAGS, SegmentEntry, SegmentName
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.reader import SegmentReader

THREADS: Final = 8
LOOKUPS_MAX: Final = 3
READ_BYTES: Final = 8 << 20


class CatalogView(FileView):
    """The selected topics of a catalog, up to what is exported."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        super().__init__(shown_url(options.path))
        clock = SystemClock() if clock is None else clock
        with self._closed_on_error():
            self._place = ObjectPlace(self.location, {}, options.path)
            stored = StoredFiles(self._stack, options.path, self._place)
            segments = SegmentReader(*stored.segments(SHARD))
            self._stack.callback(segments.close)
            shard = ShardData(clock, Settings(), LogFiles(stored.fs), segments)
            views = []
            for bundle in _bundles(options, stored.objects):
                topic = topic_of(shard, bundle)
                expire(topic, clock.now_ms())
                views.append(TopicView(topic, SHARD, topic.head, segments, []))
            self._select(views, options.selection)
            self._add_shared(options, stored.objects)

    def _add_shared(self, options: ReadOptions, objects: SegmentObjects) -> None:
        try:
            catalog = self._stack.enter_context(closing(open_shared(options)))
            for row in shared_rows(catalog, options.selection):
                if row.name in self.topics:
                    raise SourceError(
                        f'topic "{row.name}": {self.location} has an exported and a shared topic of this '
                        "name; delete one of them"
                    )
                self.topics[row.name] = SharedTopicView(row, catalog, objects, options.max_bytes)
        except (CatalogExtraMissing, CatalogRefused, CatalogUnavailable) as error:
            raise SourceError(f"catalog: {error}") from None
        self.topics = dict(sorted(self.topics.items()))

    def place_of(self, shard: int, keys: object) -> ObjectPlace | None:
        return self._place


def _bundles(options: ReadOptions, objects: SegmentObjects) -> list[Bundle]:
    """Return the state of each topic that the options select."""
    try:
        with closing(_open_catalog(options)) as catalog, ThreadPoolExecutor(THREADS) as pool:
            rows = [
                row for row in _rows(catalog, options.selection.names) if options.selection.matches(row.name)
            ]
            return [bundle for bundle in pool.map(partial(_bundle_of, catalog, objects), rows) if bundle]
    except (CatalogExtraMissing, CatalogRefused, CatalogUnavailable) as error:
        raise SourceError(f"catalog: {error}") from None


def _open_catalog(options: ReadOptions) -> Catalog:
    check_catalog_file(options)
    return open_catalog(options.catalog, catalog_directory(options.path, ""), catalog_retries())


def _rows(catalog: Catalog, names: tuple[str, ...]) -> Iterator[TopicRow]:
    """Yield the rows of these topics, or of all."""
    for name in names:
        row = _row(catalog, name)
        if row is not None:
            yield row
    if names:
        return
    after = ""
    while rows := catalog.list("", after, ROWS_AT_ONCE):
        yield from rows
        after = rows[-1].name


def _row(catalog: Catalog, name: str) -> TopicRow | None:
    # Of the names that begin with a name, it is the first one.
    rows = catalog.list(name, "", 1)
    return rows[0] if rows and rows[0].name == name else None


def _bundle_of(catalog: Catalog, objects: SegmentObjects, row: TopicRow) -> Bundle | None:
    """Return the newest state of a topic; None when the topic was forgotten meanwhile."""
    missing = ""
    for _ in range(LOOKUPS_MAX):
        extents = catalog.extents_from(row.name, row.exported_to, EXTENTS_AT_ONCE) if row.has_extents else []
        keys = state_keys(row, extents)
        if not keys:
            return _bundle_of_extents(catalog, row)
        for key in keys:
            try:
                data = _read_object(objects, key)
            except FileNotFoundError:
                missing = key
                continue
            return _named(_decode(data, objects.path_of(key)), row)
        newer = _row(catalog, row.name)
        if newer is None:
            return None
        row = newer
    raise SourceError(
        f'topic "{row.name}": {objects.path_of(missing)} is missing, although the catalog names it'
    )


def _read_object(objects: SegmentObjects, key: str) -> bytes:
    parts, offset = [], 0
    while part := objects.store.read(key, offset, READ_BYTES):
        parts.append(part)
        offset += len(part)
        if len(part) < READ_BYTES:
            break
    return b"".join(parts)


def _named(bundle: Bundle, row: TopicRow) -> Bundle:
    return bundle._replace(topic=msgspec.structs.replace(bundle.topic, name=row.name))


def _decode(data: bytes, path: str) -> Bundle:
    try:
        return decode_bundle(data)
    except (BundleDamage, UnknownVersion) as damage:
        raise SourceError(f"{path}: {damage}") from None


def _bundle_of_extents(catalog: Catalog, row: TopicRow) -> Bundle:
    """Return a topic without a state object: all records of its extents."""
    entries = []
    seq = row.exported_from
    while seq <= row.exported_to:
        extents = catalog.extents_from(row.name, seq, EXTENTS_AT_ONCE)
        if not extents:
            break
        entries += [entry for extent in extents if (entry := _entry_of(extent)) is not None]
        seq = extents[-1].last_seq + 1
    topic = SnapshotTopic(
        name=row.name,
        topic_id=row.topic_id,
        epoch=row.incarnation,
        config=TopicConfig(),
        complete_to=0,
        head=row.exported_to,
        ceiling=row.exported_to,
        earliest_seq=entries[0].first_seq if entries else row.exported_to + 1,
        evict_floor=1,
        evicted_to={},
        ttl_logged=0,
        lost=[],
        last_ts=max((one.last_ts for one in entries), default=0),
        windows_ms=[],
        segments=[one for one in entries if one.last_seq <= row.exported_to],
    )
    return Bundle(topic, [], [])


def _entry_of(extent: Extent) -> SegmentEntry | None:
    """Return the segment of an extent; None when it stands for seqs without records."""
    sizes = {one.key: one.size for one in extent.objects}
    for key, size in sizes.items():
        stem = key.removesuffix(DATA)
        name = SegmentName.of_object_stem(stem) if key.endswith(DATA) else None
        if name is not None:
            count = extent.last_seq - name.first_seq + 1
            return SegmentEntry(
                first_seq=name.first_seq,
                count=count,
                generation=name.generation,
                data_bytes=size,
                first_ts=extent.first_ms,
                last_ts=extent.last_ms,
                is_sealed=True,
                has_tags=f"{stem}{TAGS}" in sizes,
                tier=COLD,
                live_count=count,
                live_bytes=size,
                dead_count=0,
                since_ordinal=0,
                object_stem=stem,
            )
    return None
