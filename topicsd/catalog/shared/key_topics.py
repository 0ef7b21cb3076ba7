"""Topics as their documents in a key-value store show them.

V1  The control document decides commits, and its existence is that of the topic. It is created after the
    TopicDocument and deleted before that one changes its incarnation. So a verb that reads the control
    document first, then the TopicDocument, and writes the control document by compare-and-set, changes the
    incarnation that it saw.
V2  `pending` is a readable tail. The documents of a commit are written after it: parts, producers, index.
    Then `pending` is cleared. Any process does this, and the next commit needs it done.
V3  A write that arrives late can put back a document that was deleted. Readers ignore it: an entry of the
    index that is a WAL entry at or before the compaction cursor, one that a compacted entry covers, one that
    is older than the topic, one above the head.
V4  A compaction takes effect when its end key in the index is a compacted entry. Readers then see the extent
    of the record in place of the whole range, whatever is left of it in the index.
V5  Several documents are no snapshot. They are read in an order in which the later ones only can be ahead,
    and a gap or a floor above the head shows that they do not fit: the read starts again. So the log state
    and the head of a SharedTopic are of one moment, and its floors and configuration of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from shared.runtime.retries import Pauses, Retries, repeat
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.engines.key_value import KeyValue, VersionedKey
from topicsd.catalog.engines.retries import repeat_request
from topicsd.catalog.shared.seed_documents import (
    SEQ_END,
    AppendDocument,
    CompactedDocument,
    CompactionCursor,
    CompactionRecord,
    Control,
    IndexEntry,
    Pending,
    ProducerDocument,
    TopicDocument,
    TopicKeys,
    index_entry,
    notes,
)
from topicsd.catalog.shared.shared_catalog import SharedExtent, SharedTopic

T = TypeVar("T")

PAGE_KEYS: Final = 500
CONFLICT_PAUSES: Final = Pauses(0.01, 0.04)
"""A conflict says that another process has advanced, so a long pause only lets others be first again."""
CONFLICT_SECONDS: Final = 1.0
"""How long attempts with conflicts follow each other like that."""


class KeyConflict(CatalogUnavailable):
    """A compare-and-set for which another process was first, or documents that do not fit each other."""


class Versioned(NamedTuple, Generic[T]):
    """A document as it was read; None and None when the key does not exist."""

    document: T | None
    version: int | None


class LoadedTopic(NamedTuple):
    keys: TopicKeys
    control: Control
    version: int
    """Of the control document."""
    document: TopicDocument
    document_version: int | None


class Compacting(NamedTuple):
    """How far the compactions of a topic are."""

    record: CompactionRecord | None
    """The recorded compaction, if it has taken effect (V4)."""
    cursor: int

    @property
    def compacted_to(self) -> int:
        return max(self.cursor, self.record.end_offset if self.record is not None else 0)


class KeyTopics:
    """The documents of all topics; `objects_url` is what a data key has before the key of an object."""

    def __init__(
        self, store: KeyValue, retries: Retries, now_ms: Callable[[], int], objects_url: str
    ) -> None:
        self.store = store
        self.now_ms = now_ms
        self._retries = retries
        self._objects_url = objects_url

    # -- requests

    def run(self, attempt: Callable[[], T]) -> T:
        """Repeat an attempt: soon after a conflict, with growing pauses while the store does not answer."""
        often = self._retries._replace(seconds=CONFLICT_SECONDS)
        return repeat_request(lambda: repeat(attempt, often, KeyConflict, CONFLICT_PAUSES), self._retries)

    def conflict(self, name: str) -> KeyConflict:
        return KeyConflict(f"{self.store.url}: topic {name} changed at the same time")

    def get(self, key: str, kind: type[T], keys: TopicKeys | None = None) -> Versioned[T]:
        entry = self.store.get(key, keys.partition if keys is not None else None)
        if entry is None:
            return Versioned(None, None)
        return Versioned(msgspec.json.decode(entry.value, type=kind), entry.version)

    def put(self, key: str, document: object, version: int | None, keys: TopicKeys | None = None) -> None:
        """Write a document if the key has this version; else the verb starts again."""
        partition = keys.partition if keys is not None else None
        if not self.store.put_if(key, msgspec.json.encode(document), version, partition):
            raise self.conflict(keys.name if keys is not None else key)

    def entries(self, first: str, end: str, keys: TopicKeys | None = None) -> list[VersionedKey]:
        """Return all keys of a range."""
        entries: list[VersionedKey] = []
        while True:
            page = self.store.range(first, end, PAGE_KEYS, keys.partition if keys is not None else None)
            entries += page
            if len(page) < PAGE_KEYS:
                return entries
            first = page[-1].key + "\0"

    def delete(self, entries: Sequence[VersionedKey], keys: TopicKeys) -> None:
        for entry in entries:
            self.store.delete_if(entry.key, entry.version, keys.partition)

    def delete_one(self, key: str, version: int | None, keys: TopicKeys) -> None:
        """Delete a key that has this version; else the verb starts again."""
        if version is not None and not self.store.delete_if(key, version, keys.partition):
            raise self.conflict(keys.name)

    def data_key(self, key: str) -> str:
        return self._objects_url + key

    def object_key(self, data_key: str) -> str:
        return data_key.removeprefix(self._objects_url)

    # -- the state of a topic

    def load(self, name: str) -> LoadedTopic | None:
        """Return a topic, or None when it does not exist; finish an interrupted removal."""
        keys = TopicKeys(name)
        control, version = self.get(keys.control, Control, keys)
        if control is None or version is None:
            return None
        document, document_version = self.get(keys.topic, TopicDocument)
        if document is None or document.is_forgotten:
            # The control document goes first: then the topic does not exist for any reader.
            self.delete_one(keys.control, version, keys)
            if document is not None:
                with suppress(CatalogUnavailable):
                    self.clear(keys, document, document_version)
            return None
        if max(document.deleted_to, document.evicted_to) > control.sequence_counter:
            raise self.conflict(name)
        return LoadedTopic(keys, control, version, document, document_version)

    def check_unchanged(self, topic: LoadedTopic) -> None:
        """Start the verb again if the control document is not the one that was read."""
        if self.get(topic.keys.control, Control, topic.keys).version != topic.version:
            raise self.conflict(topic.keys.name)

    def clear(self, keys: TopicKeys, document: TopicDocument, version: int | None) -> None:
        """Delete the documents of a forgotten topic whose control document is deleted."""
        entries = [
            *self.entries(keys.index(0), keys.index(SEQ_END), keys),
            *self.entries(keys.append(0), keys.append(SEQ_END), keys),
            *self.entries(*keys.producers, keys),
            *self.entries(keys.compacted_from(0), keys.compacted_from(SEQ_END), keys),
        ]
        for key in (keys.cursor, keys.compaction, keys.claim):
            entry = self.store.get(key, keys.partition)
            entries += [entry] if entry is not None else []
        # Again, so that documents of a later topic are not deleted: they have later versions.
        if self.get(keys.topic, TopicDocument).version != version:
            raise self.conflict(keys.name)
        self.delete(entries, keys)

    def compacting(self, topic: LoadedTopic) -> Compacting:
        # The record first: it is removed after the cursor has advanced.
        keys = topic.keys
        record, _ = self.get(keys.compaction, CompactionRecord, keys)
        if record is not None and record.created_at_ms < topic.document.created_ms:
            record = None
        if record is not None and record.state == "WRITING_COMPACTED_INDEX":
            entry, _ = self.get(keys.index(record.end_offset), IndexEntry, keys)
            if entry is None or (entry.type, entry.data_key) != ("COMPACTED", record.data_key):
                record = None
        cursor, _ = self.get(keys.cursor, CompactionCursor, keys)
        return Compacting(record, cursor.offset if cursor is not None else 0)

    def recorded(self, topic: LoadedTopic) -> CompactionRecord | None:
        """Return the recorded compaction, whether it has taken effect or not."""
        return self.get(topic.keys.compaction, CompactionRecord, topic.keys).document

    def row(self, topic: LoadedTopic) -> SharedTopic:
        document, control = topic.document, topic.control
        compacted_to = self.compacting(topic).compacted_to
        if compacted_to > control.sequence_counter:
            raise self.conflict(topic.keys.name)
        return SharedTopic(
            topic.keys.name,
            document.incarnation,
            control.log_state,
            control.sequence_counter,
            document.deleted_to,
            document.evicted_to,
            compacted_to,
            document.created_ms,
            document.config,
            document.config_version,
        )

    # -- extents

    def extents(self, topic: LoadedTopic, seq: int, limit: int) -> list[SharedExtent]:
        """Return extents from the first whose last seq is at least `seq`."""
        keys, control, compacting = topic.keys, topic.control, self.compacting(topic)
        start = max(seq, topic.document.first_seq)
        live = _LiveExtents(self, topic, compacting, start)
        first = keys.index(start)
        while len(live.extents) < limit:
            page = self.store.range(
                first, keys.index(control.sequence_counter + 1), PAGE_KEYS, keys.partition
            )
            for entry in page:
                live.add(int(entry.key[-20:]), msgspec.json.decode(entry.value, type=IndexEntry))
            if len(page) < PAGE_KEYS:
                live.end(control.pending)
                break
            first = page[-1].key + "\0"
        if not live.is_whole(limit):
            raise self.conflict(keys.name)
        return self._with_lengths(keys, live.extents[:limit])

    def _with_lengths(self, keys: TopicKeys, extents: list[SharedExtent]) -> list[SharedExtent]:
        """Add the lengths of compacted objects, for which the index has no place."""
        ends = [one.last_seq for one in extents if one.type == "COMPACTED"]
        if not ends:
            return extents
        entries = self.entries(keys.compacted_from(ends[0]), keys.compacted_from(ends[-1]) + "~", keys)
        documents = [msgspec.json.decode(entry.value, type=CompactedDocument) for entry in entries]
        lengths = {self.object_key(one.data_key): one.byte_length for one in documents}
        if any(one.type == "COMPACTED" and one.key not in lengths for one in extents):
            raise self.conflict(keys.name)
        return [
            msgspec.structs.replace(one, byte_length=lengths[one.key]) if one.type == "COMPACTED" else one
            for one in extents
        ]

    # -- the end of a commit

    def finish_pending(self, topic: LoadedTopic) -> LoadedTopic:
        """Write the documents of the pending commit, and clear it (V2); return the topic after it."""
        keys, control, document = topic.keys, topic.control, topic.document
        pending = control.pending
        if pending is None:
            return topic
        parts = notes.decode(pending.append_id)
        appended = AppendDocument(document.incarnation, pending.start_offset, pending.created_at_ms, parts)
        self._put_once(topic, keys.append(pending.end_offset), appended)
        self._put_producers(topic, pending, appended)
        self._put_once(topic, keys.index(pending.end_offset), index_entry(pending))
        cleared = msgspec.structs.replace(control, pending=None)
        self.put(keys.control, cleared, topic.version, keys)
        loaded = self.load(keys.name)
        if loaded is None:
            raise self.conflict(keys.name)
        return loaded

    def _put_once(self, topic: LoadedTopic, key: str, document: object) -> None:
        """Write a document of the pending commit, over one that a late write of an earlier topic left."""
        keys, value = topic.keys, msgspec.json.encode(document)
        if self.store.put_if(key, value, None, keys.partition):
            return
        entry = self.store.get(key, keys.partition)
        if entry is not None and entry.value == value:
            return
        # While the commit is pending, only processes that finish it write the key.
        self.check_unchanged(topic)
        version = entry.version if entry is not None else None
        if not self.store.put_if(key, value, version, keys.partition):
            raise self.conflict(keys.name)

    def _put_producers(self, topic: LoadedTopic, pending: Pending, appended: AppendDocument) -> None:
        keys, first = topic.keys, appended.start_offset
        for part in appended.parts:
            last = first + part.count - 1
            if part.producer is not None:
                name, first_number, last_number = part.producer
                write = ProducerDocument(
                    appended.incarnation, first_number, last_number, first, last, pending.created_at_ms
                )
                self._put_producer(topic, keys.producer(name), write)
            first = last + 1

    def _put_producer(self, topic: LoadedTopic, key: str, write: ProducerDocument) -> None:
        keys = topic.keys
        present, version = self.get(key, ProducerDocument, keys)
        if present is not None:
            if present.is_of(topic.document) and present.first_seq >= write.first_seq:
                return
            self.check_unchanged(topic)
        self.put(key, write, version, keys)


class _LiveExtents:
    """The extents of a topic, from entries of the index that are added in order (V3, V4)."""

    def __init__(self, topics: KeyTopics, topic: LoadedTopic, compacting: Compacting, start: int) -> None:
        self.extents: list[SharedExtent] = []
        self._topics = topics
        self._topic = topic
        self._cursor = compacting.cursor
        self._start = start
        self._record = compacting.record
        """Until its extent is added."""
        if self._record is not None and self._record.end_offset < start:
            self._record = None
        self._covered = range(0)
        if self._record is not None:
            self._covered = range(self._record.start_offset, self._record.end_offset + 1)

    def add(self, end: int, entry: IndexEntry) -> None:
        first = end - entry.msg_count + 1
        is_old = entry.created_at_ms < self._topic.document.created_ms
        if is_old or (entry.type == "WAL" and end <= self._cursor) or end in self._covered:
            return
        if self._record is not None and end > self._record.end_offset:
            self._add_record()
        while self.extents and self.extents[-1].first_seq >= first:
            self.extents.pop()
        self.extents.append(self._extent(first, end, entry))

    def end(self, pending: Pending | None) -> None:
        self._add_record()
        last = self.extents[-1].last_seq if self.extents else self._start - 1
        if pending is not None and pending.end_offset > last:
            self.extents.append(self._extent(pending.start_offset, pending.end_offset, index_entry(pending)))

    def _add_record(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            entry = IndexEntry(
                type="COMPACTED",
                msg_count=record.msg_count,
                data_key=record.data_key,
                encoding=record.encoding,
                created_at_ms=record.created_at_ms,
            )
            self.extents.append(self._extent(record.start_offset, record.end_offset, entry))

    def _extent(self, first: int, end: int, entry: IndexEntry) -> SharedExtent:
        key = self._topics.object_key(entry.data_key)
        offset = entry.byte_offset if entry.byte_offset is not UNSET else 0
        length = entry.byte_length if entry.byte_length is not UNSET else 0
        return SharedExtent(first, end, entry.type, key, entry.encoding, offset, length, entry.created_at_ms)

    def is_whole(self, limit: int) -> bool:
        """Return whether the extents are contiguous, from the first seq to the head or to the limit."""
        head, end = self._topic.control.sequence_counter, self._start - 1
        for number, one in enumerate(self.extents):
            if one.first_seq != end + 1 and (number or one.first_seq > self._start):
                return False
            end = one.last_seq
        return end >= head or len(self.extents) >= limit
