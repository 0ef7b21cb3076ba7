"""Commits of blobs over a key-value store: one compare-and-set of the control document of each topic.

W1  A commit reads the control document, decides, and writes it with the new head and the extent as `pending`.
    The compare-and-set decides: if another commit, a fence or a `forget` was first, it starts again.
W2  A run of parts is one extent and one write of the control document; a slice has several when a part in the
    middle is refused.
W3  Append ids are remembered by AppendDocuments, which are written before the index. A process keeps those of
    the last REPEATED_MS in memory, by topic, and reads only those of new extents: one range for each commit.
    The index cannot serve: its entries have no append ids, and a part may be repeated in another blob. When
    their time is over the process deletes the documents.
W4  A commit registers its blob before it reads a topic, so that nothing is written between the read of a
    control document and its compare-and-set: commits of others come between them less often, and the topics
    of one blob never write its state at the same time. It reads the state again after the control document.
    `condemn` marks a registered blob, then writes the control documents of its topics again, as they are, and
    then looks for extents. So a commit that did not see the mark fails, or its extent is found.
W5  The topics of a blob have nothing in common, so their commits run at the same time.
W6  All blobs of one call of `condemn` are marked before their topics are touched and looked at. So a call
    reads each topic twice, whatever number of blobs it has.
W7  A commit with a time asks whether that is over between the read of a topic and its compare-and-set. Append
    ids were read before then, and the compare-and-set fails after a commit that was made since.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.engines.key_value import VersionedKey
from topicsd.catalog.shared.key_topics import KeyConflict, KeyTopics, LoadedTopic
from topicsd.catalog.shared.part_changes import (
    KnownPart,
    LastPart,
    PartRun,
    SliceChange,
    TopicFacts,
    decide_slice,
    is_silent,
)
from topicsd.catalog.shared.seed_documents import (
    AppendDocument,
    BlobDocument,
    BlobState,
    ProducerDocument,
    TopicDocument,
    blob_key,
    pending_of,
)
from topicsd.catalog.shared.shared_catalog import CONDEMNED_MS, PartResult, SharedExtent, Slice

IsInTime = Callable[[], bool]
RUN_PARTS: Final = 1000
"""The most parts in one write of the control document: about 60 kB."""
RECENT_TOPICS: Final = 10_000
"""The topics whose append ids a process remembers."""
SWEPT_BLOBS: Final = 50
"""The marks that each call of `condemn` looks at, to delete those that are old."""


class Recent(NamedTuple):
    """An AppendDocument in memory."""

    entry: VersionedKey
    committed_ms: int
    append_ids: list[str]


class RecentParts:
    """The parts of one topic that were committed in the last REPEATED_MS."""

    def __init__(self, document: TopicDocument) -> None:
        self._incarnation = document.incarnation
        self._created_ms = document.created_ms
        self.read_to = 0
        """The head up to which documents were read."""
        self.parts: dict[str, KnownPart] = {}
        self._recent: deque[Recent] = deque()

    def add(self, entry: VersionedKey) -> None:
        document = msgspec.json.decode(entry.value, type=AppendDocument)
        if document.incarnation == self._incarnation and document.committed_ms >= self._created_ms:
            known = document.known()
            self.parts.update(known)
            ids = [append_id for append_id, _ in known]
            self._recent.append(Recent(entry, document.committed_ms, ids))

    def is_of(self, topic: LoadedTopic) -> bool:
        document, head = topic.document, topic.control.sequence_counter
        is_same = (document.incarnation, document.created_ms) == (self._incarnation, self._created_ms)
        return is_same and self.read_to <= head

    def expire(self, before_ms: int) -> list[VersionedKey]:
        """Forget older parts; return their documents."""
        expired: list[VersionedKey] = []
        while self._recent and self._recent[0].committed_ms < before_ms:
            recent = self._recent.popleft()
            expired.append(recent.entry)
            first_seq = msgspec.json.decode(recent.entry.value, type=AppendDocument).start_offset
            last_seq = int(recent.entry.key[-20:])
            for append_id in recent.append_ids:
                # The id may have been committed again.
                known = self.parts.get(append_id)
                if known is not None and first_seq <= known.first_seq <= last_seq:
                    del self.parts[append_id]
        return expired


def _up_to(run: PartRun, results: list[PartResult]) -> dict[int, PartResult]:
    """Return the results of a slice up to the end of a run, by the number of the part."""
    end = next(
        number
        for number, one in enumerate(results)
        if one.status == "committed" and one.last_seq == run.last_seq
    )
    return dict(enumerate(results[: end + 1]))


def _is_written(tried: dict[int, PartResult], results: list[PartResult]) -> bool:
    """Return whether a write without an answer was done: its parts are repeated, with its seqs."""
    committed = [(number, one) for number, one in tried.items() if one.status == "committed"]
    return bool(committed) and all(
        results[number] == PartResult("repeated", one.first_seq, one.last_seq) for number, one in committed
    )


class KeyCommits:
    def __init__(self, topics: KeyTopics, producers_max: int, repeated_ms: int, threads: int) -> None:
        self._topics = topics
        self._producers_max = producers_max
        self._repeated_ms = repeated_ms
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._recent: dict[str, RecentParts] = {}
        self._swept_to = blob_key("")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def commit(
        self, key: str, encoding: str, slices: Sequence[Slice], is_in_time: IsInTime
    ) -> list[list[PartResult]]:
        names = sorted({one.topic for one in slices})
        self._topics.run(lambda: self.register(key, names))

        def commit_one(one: Slice) -> list[PartResult]:
            return self._commit_slice(key, encoding, one, names, is_in_time)

        if self._threads > 1 and len(slices) > 1:
            with self._lock:
                self._pool = self._pool or ThreadPoolExecutor(self._threads)
            return list(self._pool.map(commit_one, slices))
        return [commit_one(one) for one in slices]

    def _commit_slice(
        self, key: str, encoding: str, one: Slice, names: list[str], is_in_time: IsInTime
    ) -> list[PartResult]:
        topics = self._topics
        answers: dict[int, PartResult] = {}
        """The results up to the last run that was written: a later attempt finds its parts repeated."""
        tried: dict[int, PartResult] = {}
        """The same with a run whose write has no answer."""

        def attempt() -> list[PartResult]:
            while True:
                topic = topics.load(one.topic)
                if topic is not None and topic.control.pending is not None:
                    topic = topics.finish_pending(topic)
                change, used_ms = self._decide(topic, one, key, names)
                if _is_written(tried, change.results):
                    answers.update(tried)
                tried.clear()
                results = [answers.get(number, result) for number, result in enumerate(change.results)]
                if topic is None:
                    return results
                if not change.runs:
                    # The other documents, which say so, were read later than the control document.
                    topics.check_unchanged(topic)
                    return results
                run = self._first_part(change.runs[0])
                self._drop_silent(topic, run, used_ms)
                extent = run.extent(key, encoding, max(topics.now_ms(), topic.document.created_ms))
                if not is_in_time():
                    raise TimeoutError(errno.ETIMEDOUT, f"topic {one.topic}: the time for the commit is over")
                tried.update(_up_to(run, results))
                try:
                    self._write(topic, run, extent)
                except KeyConflict:
                    # It was not done. Another process may have given the seqs to the same numbers.
                    tried.clear()
                    raise
                answers.update(tried)
                tried.clear()
                # The commit is done. When it is not finished here, the next one does it: after a conflict it
                # has done so already, and there is nothing to wait for.
                with suppress(CatalogUnavailable):
                    self._finish(one.topic)
                if run.last_seq == change.runs[-1].last_seq:
                    return results

        return topics.run(attempt)

    def _first_part(self, run: PartRun) -> PartRun:
        parts = run.parts[:RUN_PARTS]
        return PartRun(run.byte_offset, sum(one.part.byte_length for one in parts), parts)

    def _write(self, topic: LoadedTopic, run: PartRun, extent: SharedExtent) -> None:
        pending = pending_of(run, extent, self._topics.data_key(extent.key))
        control = replace(topic.control, sequence_counter=run.last_seq, pending=pending)
        self._topics.put(topic.keys.control, control, topic.version, topic.keys)

    def _finish(self, name: str) -> None:
        topic = self._topics.load(name)
        if topic is not None:
            self._topics.finish_pending(topic)

    # -- what is known of the parts

    def _decide(
        self, topic: LoadedTopic | None, one: Slice, key: str, names: list[str]
    ) -> tuple[SliceChange, dict[str, int]]:
        """Decide about a slice; return also when the producers of the topic were used, if that matters."""
        used_ms: dict[str, int] = {}
        if topic is None or topic.document.incarnation != one.incarnation:
            return decide_slice(one, None, False), used_ms
        known = self._known(topic, one)
        producers = self._producers(topic, one)

        def has_room(new: int) -> bool:
            if not used_ms:
                used_ms.update(self._used(topic))
            silent = sum(is_silent(used, self._topics.now_ms()) for used in used_ms.values())
            return not self._producers_max or len(used_ms) + new - silent <= self._producers_max

        state = TopicFacts(
            one.incarnation,
            topic.control.log_state,
            topic.control.sequence_counter,
            known,
            producers,
            has_room,
        )
        change = decide_slice(one, state, False)
        if change.runs and self.register(key, names).state != "registered":
            change = decide_slice(one, state, True)
        return change, used_ms

    def _known(self, topic: LoadedTopic, one: Slice) -> dict[str, KnownPart]:
        keys, head = topic.keys, topic.control.sequence_counter
        with self._lock:
            recent = self._recent.get(keys.name)
            if recent is None or not recent.is_of(topic):
                recent = self._recent[keys.name] = RecentParts(topic.document)
                if len(self._recent) > RECENT_TOPICS:
                    del self._recent[next(iter(self._recent))]
            read_to = recent.read_to
        entries = []
        if read_to < head:
            entries = self._topics.entries(keys.append(read_to + 1), keys.append(head + 1), keys)
        with self._lock:
            for entry in entries:
                if int(entry.key[-20:]) > recent.read_to:
                    recent.add(entry)
            recent.read_to = max(recent.read_to, head)
            expired = recent.expire(self._topics.now_ms() - self._repeated_ms)
            ids = {part.append_id for part in one.parts}
            known = {append_id: recent.parts[append_id] for append_id in ids if append_id in recent.parts}
        with suppress(CatalogUnavailable):
            self._topics.delete(expired, keys)
        return known

    def _producers(self, topic: LoadedTopic, one: Slice) -> dict[str, LastPart]:
        names = {part.producer.name for part in one.parts if part.producer is not None}
        producers: dict[str, LastPart] = {}
        for name in sorted(names):
            document, _ = self._topics.get(topic.keys.producer(name), ProducerDocument, topic.keys)
            if document is not None and document.is_of(topic.document):
                producers[name] = LastPart(
                    document.first_number, document.last_number, document.first_seq, document.last_seq
                )
        return producers

    def _used(self, topic: LoadedTopic) -> dict[str, int]:
        """Return when each producer was used, by its key."""
        entries = self._topics.entries(*topic.keys.producers, topic.keys)
        documents = [(one.key, msgspec.json.decode(one.value, type=ProducerDocument)) for one in entries]
        return {key: one.used_ms for key, one in documents if one.is_of(topic.document)}

    def _drop_silent(self, topic: LoadedTopic, run: PartRun, used_ms: dict[str, int]) -> None:
        """Delete the producers above the maximum that were silent the longest, if the run has new ones."""
        names = {topic.keys.producer(name) for name in run.producers}
        excess = len(used_ms.keys() | names) - self._producers_max
        if not used_ms or not self._producers_max or excess <= 0:
            return
        for key in sorted(used_ms.keys() - names, key=lambda key: (used_ms[key], key))[:excess]:
            entry = self._topics.store.get(key, topic.keys.partition)
            if entry is not None and is_silent(used_ms[key], self._topics.now_ms()):
                self._topics.delete([entry], topic.keys)

    # -- blobs

    def register(self, key: str, names: list[str]) -> BlobDocument:
        """Return the state of a blob, registered for these topics unless it is condemned (W4)."""
        at = blob_key(self._topics.data_key(key))
        document, version = self._topics.get(at, BlobDocument)
        if document is not None and (document.state != "registered" or set(names) <= set(document.topics)):
            return document
        every = sorted({*names, *(document.topics if document is not None else [])})
        registered = BlobDocument("registered", every, self._topics.now_ms())
        self._topics.put(at, registered, version)
        return registered

    def condemn(self, keys: Sequence[str]) -> set[str]:
        condemned = self.settle(keys)
        with suppress(CatalogUnavailable):
            self._sweep()
        return condemned

    def settle(self, keys: Sequence[str]) -> set[str]:
        """Condemn the blobs to which no extent refers, and return those that are condemned (W6)."""
        left, condemned = dict.fromkeys(keys), set[str]()

        def attempt() -> None:
            self._settle(left, condemned)
            if left:
                raise self._topics.conflict(next(iter(left)))

        self._topics.run(attempt)
        return condemned

    def _settle(self, left: dict[str, None], condemned: set[str]) -> None:
        """Settle what no other process changes at the same time; `left` gets what it does."""
        run = self._topics.run
        names: dict[str, list[str]] = {}
        """Of the topics of each blob that is not condemned."""
        for key in [*left]:
            document = run(partial(self._state_of, key))
            if document.state == "condemned":
                condemned.add(key)
                del left[key]
            elif document.state == "registered":
                names[key] = document.topics
        for key in self._referred_to(names):
            del left[key]
        marked = {key: mark for key in left if (mark := run(partial(self._mark, key))) is not None}
        for name in sorted({name for document, _ in marked.values() for name in document.topics}):
            run(partial(self._touch, name))
        used = self._referred_to({key: document.topics for key, (document, _) in marked.items()})
        for key, (document, version) in marked.items():
            state: BlobState = "registered" if key in used else "condemned"
            settled = replace(document, state=state, changed_ms=self._topics.now_ms())
            # By the version of the mark: what was found is of no use after another change.
            if self._put_state(key, settled, version):
                del left[key]
                condemned |= set() if key in used else {key}

    def _at(self, key: str) -> str:
        return blob_key(self._topics.data_key(key))

    def _state_of(self, key: str) -> BlobDocument:
        """Return the state of a blob; one that was never registered is condemned at once."""
        document, _ = self._topics.get(self._at(key), BlobDocument)
        if document is None:
            document = BlobDocument("condemned", [], self._topics.now_ms())
            self._topics.put(self._at(key), document, None)
        return document

    def _mark(self, key: str) -> tuple[BlobDocument, int] | None:
        """Mark a blob; return the mark and its version, or None if another process has settled it."""
        document, version = self._topics.get(self._at(key), BlobDocument)
        if document is not None and document.state == "registered":
            marked = replace(document, state="condemning", changed_ms=self._topics.now_ms())
            self._topics.put(self._at(key), marked, version)
            document, version = self._topics.get(self._at(key), BlobDocument)
        if document is None or version is None or document.state != "condemning":
            return None
        return document, version

    def _put_state(self, key: str, document: BlobDocument, version: int) -> bool:
        """Write the state of a marked blob; return whether it was done, as far as is known."""
        with suppress(CatalogUnavailable):
            return self._topics.store.put_if(self._at(key), msgspec.json.encode(document), version)
        return False

    def _touch(self, name: str) -> None:
        """Write the control document as it is, so that commits that read it before must read it again."""
        topic = self._topics.load(name)
        if topic is not None:
            self._topics.put(topic.keys.control, topic.control, topic.version, topic.keys)

    def _referred_to(self, names: Mapping[str, Sequence[str]]) -> set[str]:
        """Return the blobs to which an extent of one of their topics refers."""
        blobs: dict[str, set[str]] = {}
        for key, topics in names.items():
            for name in topics:
                blobs.setdefault(name, set()).add(key)
        used: set[str] = set()
        for name, keys in sorted(blobs.items()):
            used |= keys & self._topics.run(partial(self._named_by, name))
        return used

    def _named_by(self, name: str) -> set[str]:
        """Return the objects that a topic names, also in a compaction that may take effect."""
        topic = self._topics.load(name)
        if topic is None:
            return set()
        named = {one.key for one in self._topics.extents(topic, 0, 1 << 62)}
        record = self._topics.recorded(topic)
        if record is not None and record.state == "WRITING_COMPACTED_INDEX":
            named.add(self._topics.object_key(record.data_key))
        return named

    def _sweep(self) -> None:
        """Delete the marks of some blobs that were condemned long ago."""
        store = self._topics.store
        page = store.range(self._swept_to, blob_key("") + "\x7f", SWEPT_BLOBS)
        self._swept_to = page[-1].key + "\0" if len(page) == SWEPT_BLOBS else blob_key("")
        for entry in page:
            document = msgspec.json.decode(entry.value, type=BlobDocument)
            is_old = self._topics.now_ms() - document.changed_ms > CONDEMNED_MS
            if document.state == "condemned" and is_old:
                store.delete_if(entry.key, entry.version)
