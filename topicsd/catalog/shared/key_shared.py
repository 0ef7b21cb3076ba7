"""A catalog of shared topics in a key-value store that changes single keys by compare-and-set.

`seed_documents.py` has the layout, `key_topics.py` what readers see (V1 to V5), `key_commits.py` the commits
(W1 to W5), `key_compactions.py` the compactions (X1 to X4).

A store has no clock for its clients, so the times of extents and the ages of nodes are those of the nodes
(C9); leases are those of the store. A verb that loses a compare-and-set starts again, for the time of the
policy. So a part that was committed by an attempt without an answer is `repeated`, with its seqs.

Y1  A floor is a compare-and-set of the TopicDocument. Entries of the index below it are then deleted;
    readers ignore those that are left.
Y2  `forget` marks the TopicDocument, deletes the control document (V1) and then the rest. A verb that finds
    the mark deletes the control document. The TopicDocument is kept: the next topic of the name is younger
    than all documents of this one (V3).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.engines.key_value import ChangedKey, KeyValue
from topicsd.catalog.shared.key_commits import KeyCommits
from topicsd.catalog.shared.key_compactions import KeyCompactions
from topicsd.catalog.shared.key_topics import KeyTopics, LoadedTopic
from topicsd.catalog.shared.seed_documents import (
    CATALOG,
    LAST,
    NODES,
    SECRET,
    SEQ_END,
    TOPICS,
    CatalogDocument,
    CompactionCursor,
    Control,
    IndexEntry,
    NodeDocument,
    SecretDocument,
    TopicDocument,
    TopicKeys,
)
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    PRODUCERS_MAX,
    REPEATED_MS,
    TOPICS_AT_ONCE,
    BrokerNode,
    Claim,
    Compaction,
    ConfigChanged,
    HeadNotice,
    LogState,
    PartResult,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
    TrimReason,
)

SEEN_MAX: Final = 200_000
THREADS: Final = 8
"""The topics of a blob that are committed at the same time."""


class KeyValueSharedCatalog:
    """A catalog in a store; `objects_url` is the URL of the object store, with which data keys begin."""

    def __init__(
        self,
        store: KeyValue,
        retries: Retries,
        now_ms: Callable[[], int],
        objects_url: str = "",
        producers_max: int = PRODUCERS_MAX,
        repeated_ms: int = REPEATED_MS,
        threads: int = THREADS,
    ) -> None:
        self._store = store
        self._topics = KeyTopics(store, retries, now_ms, objects_url)
        self._commits = KeyCommits(self._topics, producers_max, repeated_ms, threads)
        self._compactions = KeyCompactions(self._topics, self._commits, repeated_ms)
        self._run = self._topics.run
        self._seen: dict[str, tuple[int, int | None]] = {}
        """By topic: the incarnation of a version of the control document."""

    @property
    def url(self) -> str:
        return self._store.url

    def close(self) -> None:
        self._commits.close()
        self._store.close()

    def catalog_id(self) -> str:
        def attempt() -> str:
            document, _ = self._topics.get(CATALOG, CatalogDocument)
            if document is None:
                document = CatalogDocument(secrets.token_hex(16))
                self._topics.put(CATALOG, document, None)
            return document.id

        return self._run(attempt)

    def cluster_secret(self) -> bytes:
        """Return the secret of the nodes that use this catalog: random, and made once."""

        def attempt() -> bytes:
            document, _ = self._topics.get(SECRET, SecretDocument)
            if document is None:
                document = SecretDocument(secrets.token_bytes(32))
                self._topics.put(SECRET, document, None)
            return document.secret

        return self._run(attempt)

    # -- topics

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        topics, keys = self._topics, TopicKeys(name)

        def attempt() -> SharedTopic:
            document, version = topics.get(keys.topic, TopicDocument)
            if document is not None and document.is_forgotten:
                topics.load(name)
                topics.clear(keys, document, version)
            if document is None or document.is_forgotten:
                last_ms = document.last_ms if document is not None else 0
                document = TopicDocument(incarnation, max(topics.now_ms(), last_ms + 1), config)
                topics.put(keys.topic, document, version)
            # Also for a process that was lost here. Both are as the topic begins, or there already.
            for key, first in ((keys.cursor, CompactionCursor(0)), (keys.control, Control("OPEN", 0, None))):
                self._store.put_if(key, msgspec.json.encode(first), None, keys.partition)
            if document.incarnation != incarnation:
                raise TopicExists(name)
            topic = topics.load(name)
            if topic is None or topic.document.incarnation != incarnation:
                # It was created, and forgotten at once.
                return SharedTopic(name, incarnation, "OPEN", 0, 0, 0, 0, document.created_ms, config, 1)
            return topics.row(topic)

        return self._run(attempt)

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        return [self._run(lambda: self._row(name)) for name in names[:TOPICS_AT_ONCE]]  # noqa: B023

    def _row(self, name: str) -> SharedTopic | None:
        topic = self._topics.load(name)
        return self._topics.row(topic) if topic is not None else None

    def configure(self, name: str, incarnation: int, config: bytes, version: int) -> SharedTopic | None:
        def decide(topic: LoadedTopic) -> TopicDocument:
            document = topic.document
            if (document.config_version, document.config) == (version + 1, config):
                return document
            if document.config_version != version:
                raise ConfigChanged(name)
            return replace(document, config=config, config_version=version + 1)

        return self._run(lambda: self._change(name, incarnation, decide))

    def _change(
        self, name: str, incarnation: int, decide: Callable[[LoadedTopic], TopicDocument]
    ) -> SharedTopic | None:
        """Replace the TopicDocument by what `decide` makes of it."""
        topics = self._topics
        topic = topics.load(name)
        if topic is None or topic.document.incarnation != incarnation:
            return None
        changed = decide(topic)
        row = topics.row(topic._replace(document=changed))
        if changed != topic.document:
            topics.put(topic.keys.topic, changed, topic.document_version)
        return row

    def fence(self, name: str, incarnation: int, log_state: LogState) -> SharedTopic | None:
        topics = self._topics

        def attempt() -> SharedTopic | None:
            topic = topics.load(name)
            if topic is None or topic.document.incarnation != incarnation:
                return None
            changed = replace(topic.control, log_state=log_state)
            row = topics.row(topic._replace(control=changed))
            if changed != topic.control:
                topics.put(topic.keys.control, changed, topic.version, topic.keys)
            return row

        return self._run(attempt)

    def forget(self, name: str, incarnation: int) -> None:
        topics, keys = self._topics, TopicKeys(name)

        def attempt() -> None:
            topic = topics.load(name)
            if topic is None or topic.document.incarnation != incarnation:
                return
            entries = topics.entries(keys.index(0), keys.index(SEQ_END), keys)
            times = [msgspec.json.decode(one.value, type=IndexEntry).created_at_ms for one in entries]
            if topic.control.pending is not None:
                times.append(topic.control.pending.created_at_ms)
            last_ms = max(topics.now_ms(), *times, topic.document.created_ms)
            forgotten = replace(topic.document, is_forgotten=True, last_ms=last_ms)
            topics.put(keys.topic, forgotten, topic.document_version)
            topics.load(name)

        self._run(attempt)

    # -- writes

    def commit(
        self, key: str, encoding: str, slices: Sequence[Slice], is_in_time: Callable[[], bool] = lambda: True
    ) -> list[list[PartResult]]:
        """Commit; with `is_in_time`, change no topic when it returned False after the topic was read (W7)."""
        return self._commits.commit(key, encoding, slices, is_in_time)

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        def attempt() -> list[SharedExtent]:
            topic = self._topics.load(name)
            return [] if topic is None else self._topics.extents(topic, seq, min(limit, EXTENTS_AT_ONCE))

        return self._run(attempt)

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        return [self._run(partial(self._head, *topic)) for topic in topics]

    def _head(self, name: str, incarnation: int) -> int:
        """Return the head; the TopicDocument is read only when the control document has changed (V1)."""
        keys = TopicKeys(name)
        control, version = self._topics.get(keys.control, Control, keys)
        if control is None:
            return -1
        if self._seen.get(name) != (incarnation, version):
            document, _ = self._topics.get(keys.topic, TopicDocument)
            if document is None or document.incarnation != incarnation:
                return -1
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen[name] = incarnation, version
        return control.sequence_counter

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> KeyHeadListener:
        return KeyHeadListener(self._store, on_notices)

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        def decide(topic: LoadedTopic) -> TopicDocument:
            document, seq = topic.document, min(to_seq, topic.control.sequence_counter)
            if reason == "deleted":
                return replace(document, deleted_to=max(document.deleted_to, seq))
            return replace(document, evicted_to=max(document.evicted_to, seq))

        row = self._run(lambda: self._change(name, incarnation, decide))
        if row is not None:
            # The records are removed; the next trim deletes the rest if this does not.
            with suppress(CatalogUnavailable):
                self._run(lambda: self._delete_below(name, incarnation))
        return row

    def _delete_below(self, name: str, incarnation: int) -> None:
        topics = self._topics
        topic = topics.load(name)
        if topic is None or topic.document.incarnation != incarnation:
            return
        keys, first_seq = topic.keys, topic.document.first_seq
        below = topics.entries(keys.index(0), keys.index(first_seq), keys)
        below += topics.entries(keys.compacted_from(0), keys.compacted_from(first_seq), keys)
        # What a recorded compaction needs: whether it has taken effect (V4), and the length of its object.
        record, kept = topics.recorded(topic), []
        if record is not None:
            kept = [keys.index(record.end_offset), keys.compacted(record.end_offset, record.data_key)]
        topics.delete([entry for entry in below if entry.key not in kept], keys)

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        return self._run(lambda: self._compactions.claim(name, compactor, lease_ms))

    def release(self, claim: Claim) -> None:
        self._run(lambda: self._compactions.release(claim))

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        self._run(lambda: self._compactions.begin(claim, compaction))

    def finish_compaction(self, name: str) -> Compaction | None:
        ended: list[Compaction] = []
        compaction = self._run(lambda: self._compactions.finish(name, ended))
        return compaction or (ended[-1] if ended else None)

    def condemn(self, keys: Sequence[str]) -> set[str]:
        return self._commits.condemn(keys)

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        def attempt() -> None:
            key = NODES + node.name
            _, version = self._topics.get(key, NodeDocument)
            value = msgspec.json.encode(NodeDocument(node, self._topics.now_ms()))
            if not self._store.put_if(key, value, version, lease_ms=expire_ms):
                raise self._topics.conflict(node.name)

        self._run(attempt)

    def leave(self, name: str) -> None:
        def attempt() -> None:
            _, version = self._topics.get(NODES + name, NodeDocument)
            if version is not None and not self._store.delete_if(NODES + name, version):
                raise self._topics.conflict(name)

        self._run(attempt)

    def nodes(self) -> list[BrokerNode]:
        entries = self._run(lambda: self._topics.entries(NODES, NODES + LAST))
        documents = [msgspec.json.decode(entry.value, type=NodeDocument) for entry in entries]
        now_ms = self._topics.now_ms()
        return [replace(one.node, age_ms=max(0, now_ms - one.beat_ms)) for one in documents]

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        limit = min(limit, TOPICS_AT_ONCE)
        first, end = max(TOPICS + prefix, TOPICS + after + "\0"), TOPICS + prefix + LAST
        rows: list[SharedTopic] = []
        while len(rows) < limit and first < end:
            start = first
            page = self._run(lambda: self._store.range(start, end, limit))  # noqa: B023
            names = [entry.key[len(TOPICS) :] for entry in page]
            rows += [row for row in self.topics(names) if row is not None]
            if len(page) < limit:
                break
            first = page[-1].key + "\0"
        return rows[:limit]


class KeyHeadListener:
    """Reports the control documents that change; they do not say the incarnation of their topic."""

    def __init__(self, store: KeyValue, on_notices: Callable[[Sequence[HeadNotice]], object]) -> None:
        self._on_notices = on_notices
        self._names: dict[str, str] = {}
        """By key of the control document."""
        self._watch = store.watch(self._on_change)
        self.close = self._watch.close

    def follow(self, names: Collection[str]) -> None:
        self._names = {TopicKeys(name).control: name for name in names}
        self._watch.follow(self._names)

    def _on_change(self, changes: Sequence[ChangedKey]) -> None:
        names = self._names
        self._on_notices([_notice(names[one.key], one.value) for one in changes if one.key in names])


def _notice(name: str, value: bytes | None) -> HeadNotice:
    head = None if value is None else msgspec.json.decode(value, type=Control).sequence_counter
    return HeadNotice(name, head=head)
