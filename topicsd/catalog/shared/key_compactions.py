"""Compactions over a key-value store: the states of the record, which any process may resume.

    state                     the next step                                         then
    WRITING_COMPACTED_INDEX   write the compacted entry at the end of the range     DELETING_OLD
    DELETING_OLD              delete the other entries of the range                 UPDATING_CURSOR
    UPDATING_CURSOR           set the cursor to the end of the range                the record is deleted

X1  The record is created only if there is none. While it exists, no other compaction changes the extents
    of the topic. So they are checked again after it was created, by each process that takes the first
    step.
X2  The first step is done by compare-and-set of the entry at the end of the range. A process that finds the
    compaction invalid writes that entry again, as it is, before it deletes the record: another process that
    found it valid earlier fails. What is invalid stays so: only a trim, a condemned object and a deleted
    length (X5) invalidate.
X3  A step that was done is found done. A deletion names the version that was read, so a late one deletes
    nothing newer.
X4  The object is registered before the record is created, and its state is read after that (W4).
X5  The length of the object is written before the record is created, when another compaction that ends at
    the same seq may still delete lengths. So the first step writes it again, as it is, and a deletion is of
    versions that were there while the record was that of the deleter.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from topicsd.catalog.shared.key_commits import KeyCommits
from topicsd.catalog.shared.key_topics import KeyTopics, LoadedTopic
from topicsd.catalog.shared.part_changes import check_compaction, is_replaceable, replaced_after
from topicsd.catalog.shared.seed_documents import (
    BlobDocument,
    CompactedDocument,
    CompactionCursor,
    CompactionRecord,
    CompactionState,
    CompactorClaim,
    IndexEntry,
    TopicKeys,
    blob_key,
    compacted_entry,
    record_of,
)
from topicsd.catalog.shared.shared_catalog import (
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    SharedExtent,
)


class KeyCompactions:
    def __init__(self, topics: KeyTopics, commits: KeyCommits, repeated_ms: int) -> None:
        self._topics = topics
        self._commits = commits
        self._repeated_ms = repeated_ms

    # -- claims

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        topics, keys = self._topics, TopicKeys(name)
        present, version = topics.get(keys.claim, CompactorClaim, keys)
        if present is not None and present.compactor_id != compactor:
            return None
        now_ms = topics.now_ms()
        value = msgspec.json.encode(CompactorClaim(compactor, now_ms))
        if not topics.store.put_if(keys.claim, value, version, keys.partition, lease_ms):
            raise topics.conflict(name)
        claim = Claim(name, compactor, now_ms, lease_ms)
        # Afterwards: a topic that is there now was not forgotten before the claim.
        if topics.load(name) is None:
            self.release(claim)
            return None
        return claim

    def release(self, claim: Claim) -> None:
        keys = TopicKeys(claim.topic)
        present, version = self._topics.get(keys.claim, CompactorClaim, keys)
        if present is not None and present.compactor_id == claim.compactor:
            self._topics.delete_one(keys.claim, version, keys)

    # -- begin

    def begin(self, claim: Claim, compaction: Compaction) -> None:
        topics, keys, new = self._topics, TopicKeys(compaction.topic), compaction.extent
        holder, _ = topics.get(keys.claim, CompactorClaim, keys)
        if holder is None or holder.compactor_id != claim.compactor:
            raise ClaimLost(compaction.topic)
        topic = topics.load(compaction.topic)
        if topic is None or topic.document.incarnation != compaction.incarnation:
            raise CompactionRefused(f"topic {compaction.topic}: there is no such topic")
        topic = topics.finish_pending(topic)
        if self._has_object(topic, new):
            return
        record, _ = topics.get(keys.compaction, CompactionRecord, keys)
        if record is None or record.compaction_id != compaction.compaction_id:
            self._check(topic, compaction)
            if record is not None:
                self.finish(compaction.topic, [])
            self._commits.register(new.key, [compaction.topic])
            data_key = topics.data_key(new.key)
            self._put_length(keys, new.last_seq, CompactedDocument(data_key, new.byte_length))
            # Of the records, for retention (C7), and never older than the topic (V3).
            created_ms = max(new.created_ms, topic.document.created_ms)
            topics.put(keys.compaction, record_of(compaction, data_key, created_ms), None, keys)
        if self._take_effect(compaction.topic) is None:
            topic = topics.load(compaction.topic)
            if topic is None or not self._has_object(topic, new):
                raise CompactionRefused(
                    f"topic {compaction.topic}: it was trimmed, or the object was condemned"
                )

    def _has_object(self, topic: LoadedTopic, new: SharedExtent) -> bool:
        """Return whether the extent of a compaction is in the catalog."""
        extents = self._topics.extents(topic, new.last_seq, 1)
        return bool(extents) and extents[0].key == new.key

    def _check(self, topic: LoadedTopic, compaction: Compaction) -> None:
        compacted_to = self._topics.compacting(topic).compacted_to
        present = self._replaced(topic, compaction.extent.first_seq, compaction.extent.last_seq, compacted_to)
        check_compaction(compaction, present, compacted_to, self._topics.now_ms(), self._repeated_ms)
        blob, _ = self._topics.get(blob_key(self._topics.data_key(compaction.extent.key)), BlobDocument)
        if blob is not None and blob.state == "condemned":
            raise CompactionRefused(f"topic {compaction.topic}: the object was condemned")

    def _replaced(
        self, topic: LoadedTopic, first_seq: int, last_seq: int, compacted_to: int
    ) -> list[SharedExtent]:
        """Return the extents that a compaction of this range has to replace (C7)."""
        extents = self._topics.extents(topic, replaced_after(compacted_to, first_seq) + 1, 1 << 62)
        return [one for one in extents if one.first_seq <= last_seq]

    def _put_length(self, keys: TopicKeys, end: int, document: CompactedDocument) -> None:
        key = keys.compacted(end, document.data_key)
        present, version = self._topics.get(key, CompactedDocument, keys)
        if present != document:
            self._topics.put(key, document, version, keys)

    # -- the steps

    def finish(self, name: str, ended: list[Compaction]) -> Compaction | None:
        """Take all steps that are left; return the compaction unless there is none, or it is undone.

        The compaction is in `ended` after a deletion of the record without an answer.
        """
        topic = self._topics.load(name)
        record = self._take_effect(name) if topic is not None else None
        if record is None or topic is None:
            return None
        keys = topic.keys
        if record.state == "DELETING_OLD":
            self._delete_old(topic, record)
            record = self._advance(keys, record, "UPDATING_CURSOR")
        self._update_cursor(topic, record)
        compaction = self._compaction(topic, record)
        present, version = self._topics.get(keys.compaction, CompactionRecord, keys)
        if present is not None and present.compaction_id == record.compaction_id:
            ended.append(compaction)
            if version is not None and not self._topics.store.delete_if(
                keys.compaction, version, keys.partition
            ):
                ended.clear()
                raise self._topics.conflict(name)
        return compaction

    def _take_effect(self, name: str) -> CompactionRecord | None:
        """Take the first step, if it is the next one; return the record unless the compaction is undone."""
        topics = self._topics
        topic = topics.load(name)
        if topic is None:
            return None
        keys = topic.keys
        record, version = topics.get(keys.compaction, CompactionRecord, keys)
        if record is None or record.state != "WRITING_COMPACTED_INDEX":
            return record
        at = keys.index(record.end_offset)
        entry, entry_version = topics.get(at, IndexEntry, keys)
        if entry is not None and (entry.type, entry.data_key) == ("COMPACTED", record.data_key):
            return self._advance(keys, record, "DELETING_OLD")
        if self._is_valid(topic, record) and entry is not None and self._keep_length(keys, record):
            topics.put(at, compacted_entry(record), entry_version, keys)
            return self._advance(keys, record, "DELETING_OLD")
        if entry is not None:
            topics.put(at, entry, entry_version, keys)
        topics.delete_one(keys.compaction, version, keys)
        return None

    def _is_valid(self, topic: LoadedTopic, record: CompactionRecord) -> bool:
        if record.created_at_ms < topic.document.created_ms:
            return False
        first_seq, last_seq = record.start_offset, record.end_offset
        compacted_to = self._topics.compacting(topic).compacted_to
        present = self._replaced(topic, first_seq, last_seq, compacted_to)
        if not is_replaceable(present, first_seq, last_seq, compacted_to):
            return False
        blob, _ = self._topics.get(blob_key(record.data_key), BlobDocument)
        if blob is not None and blob.state == "condemning":
            return not self._commits.settle([self._topics.object_key(record.data_key)])
        return blob is not None and blob.state == "registered"

    def _keep_length(self, keys: TopicKeys, record: CompactionRecord) -> bool:
        """Write the length again, as it is (X5); return whether it is there."""
        key = keys.compacted(record.end_offset, record.data_key)
        length, version = self._topics.get(key, CompactedDocument, keys)
        if length is not None:
            self._topics.put(key, length, version, keys)
        return length is not None

    def _advance(self, keys: TopicKeys, record: CompactionRecord, state: CompactionState) -> CompactionRecord:
        present, version = self._topics.get(keys.compaction, CompactionRecord, keys)
        if present != record:
            raise self._topics.conflict(keys.name)
        advanced = replace(record, state=state)
        self._topics.put(keys.compaction, advanced, version, keys)
        return advanced

    def _delete_old(self, topic: LoadedTopic, record: CompactionRecord) -> None:
        keys = topic.keys
        old = self._topics.entries(keys.index(record.start_offset), keys.index(record.end_offset), keys)
        appended = self._topics.entries(keys.append(0), keys.append(record.end_offset + 1), keys)
        lengths = self._topics.entries(
            keys.compacted_from(record.start_offset), keys.compacted_from(record.end_offset + 1), keys
        )
        kept = keys.compacted(record.end_offset, record.data_key)
        replaced = [one for one in lengths if one.key != kept]
        if replaced and self._topics.recorded(topic) != record:
            # Some may be of a later compaction (X5).
            raise self._topics.conflict(keys.name)
        self._topics.delete([*old, *appended, *replaced], keys)

    def _update_cursor(self, topic: LoadedTopic, record: CompactionRecord) -> None:
        keys = topic.keys
        cursor, version = self._topics.get(keys.cursor, CompactionCursor, keys)
        if cursor is None:
            # A topic has one, unless it was deleted: a later topic of the name must not find this one.
            self._topics.check_unchanged(topic)
        if cursor is None or cursor.offset < record.end_offset:
            self._topics.put(keys.cursor, CompactionCursor(record.end_offset), version, keys)

    def _compaction(self, topic: LoadedTopic, record: CompactionRecord) -> Compaction:
        key = self._topics.object_key(record.data_key)
        length, _ = self._topics.get(
            topic.keys.compacted(record.end_offset, record.data_key), CompactedDocument, topic.keys
        )
        extent = SharedExtent(
            record.start_offset,
            record.end_offset,
            "COMPACTED",
            key,
            record.encoding,
            0,
            length.byte_length if length is not None else 0,
            record.created_at_ms,
        )
        return Compaction(record.compaction_id, topic.keys.name, topic.document.incarnation, extent)
