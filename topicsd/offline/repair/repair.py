"""The execution of a repair plan, which can be run again after a crash at any point.

A repair writes a new snapshot, because a start loads the newest one. The lost ranges, the rewritten segments
and the log place after the damage are three fields of the snapshot, and one rename publishes it. Nothing is
repaired in place. All steps before that rename only add files that no start reads, except that R2 replaces
rebuilt files and R4 replaces CURRENT:

R1  Damaged bytes are copied to quarantine/, and so are whole damaged index, tags and dead files. The name of
    a copy contains a hash of its content, so that a second run finds the copy.
R2  The good records of damaged segments are written as files of the next generation, and read back. Files
    that can be rebuilt from `.data` replace the damaged ones atomically.
R3  The good records of a damaged log are captured into segments as in a checkpoint (`repair/log.py`). Active
    segments grow beyond the length that the old snapshot records, and a start from it truncates them to that.
R4  An empty file follows a damaged log. Its ordinal is above every ordinal that may have been used, and its
    chain is random, so that it never looks like a continuation of the damaged log. CURRENT then says that the
    log ended cleanly in it. With the old snapshot this is further proof that the damage is real: until R5 the
    shard continues to refuse to start.
R5  The snapshot is published. Then the manifest is written, and damaged snapshots are moved to quarantine/.

A good log is not changed: the new snapshot has the same log place as the old one.

The old snapshot and all files that it names are kept, so that the damage can be examined, until checkpoints
of a server replace it.
"""

from __future__ import annotations

import os
from contextlib import closing

import msgspec
import xxhash

from shared.runtime.clock import Clock
from shared.settings.store_url import store_folder
from topicsd.disk.atomic_replace import exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import make_segment_dirs, shard_paths, snapshot_name
from topicsd.engine.checkpoint.job import debts_of
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line, write_manifest
from topicsd.engine.checkpoint.segment_copy import live_totals
from topicsd.engine.checkpoint.snapshot_files import snapshot_numbers, write_snapshot
from topicsd.engine.checkpoint.snapshot_format import (
    Snapshot,
    SnapshotHead,
    SnapshotTopic,
    encode_keys,
    encode_topic,
    epoch_floor_of,
    epoch_floor_section,
    snapshot_parts,
)
from topicsd.engine.session_log import encode_session, session_section, sessions_of
from topicsd.offline.check.segment_check import SegmentCheck, SegmentFacts, SegmentFiles
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import objects_of, store_url_of_shard
from topicsd.offline.repair.log import Content, LogRepair
from topicsd.offline.repair.plan import Plan
from topicsd.offline.repair.segment import next_generation, rewrite_segment
from topicsd.offline.repair.topic import Action, SegmentRepair, TopicRepair
from topicsd.segment.data_file import Read
from topicsd.segment.entry import DATA, DEAD, INDEX, TAGS, SegmentEntry
from topicsd.segment.index_file import encode_entries, encode_footer
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import encode_tags

COPY_BYTES = 1 << 20


class RepairFailed(Exception):
    """The error that a repair did not give the planned result.

    The shard is unchanged except for added files, such as copies in quarantine/.
    """


class Repair:
    """The repair of one shard whose lock is held. `fs` has to be writable."""

    def __init__(self, fs: Fs, data_dir: DataDir, shard: int, clock: Clock, plan: Plan) -> None:
        self._fs = fs
        self._clock = clock
        self._plan = plan
        self._paths = data_dir.paths(shard)
        self._identity = data_dir.identity(shard)
        self._store_url = store_url_of_shard(data_dir, shard)
        hot, folder = LocalStore(fs, self._paths.root), store_folder(self._store_url)
        cold = LocalStore(fs, shard_paths(folder, shard).root) if folder else None
        self._files = SegmentFiles(hot, cold, objects_of(self._store_url, fs))

    def run(self) -> None:
        plan, fs, paths = self._plan, self._fs, self._paths
        assert plan.basis is not None
        make_segment_dirs(fs, paths)
        with closing(self._files):
            for facts in plan.rebuilds:
                self._rebuild(facts)
            snapshot = self._repair_segments(plan.basis.snapshot)
            if plan.writes_snapshot:
                self._write(self._salvage(snapshot) if plan.salvages else _with_same_log(snapshot))
            elif plan.writes_manifest and snapshot is not None:
                self._write_manifest(snapshot.head, snapshot.topics)
        for number in plan.damaged_snapshots:
            self._move_to_quarantine(paths.snapshot(number), snapshot_name(number))

    # -- R1 ----------------------------------------------------------------------------------------------

    def _copy_to_quarantine(self, name: str, read: Read, offset: int, end: int) -> None:
        """Copy a range of a file to quarantine/."""
        fs = self._fs
        digest = xxhash.xxh3_64()
        spans = [(at, min(COPY_BYTES, end - at)) for at in range(offset, end, COPY_BYTES)]
        for at, size in spans:
            digest.update(_readable(read, at, size))
        copy = self._paths.quarantine_file(f"{name}.at-{offset}.{digest.hexdigest()[:8]}")
        if exists(fs, copy):
            return
        fd = recreate_file(fs, copy + ".tmp")
        try:
            for at, size in spans:
                write_all(fs, fd, _readable(read, at, size), at - offset)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(copy + ".tmp", copy)
        fs.sync_dir(self._paths.quarantine)

    def _copy_file_to_quarantine(self, facts: SegmentFacts, suffix: str) -> None:
        read = self._files.read(facts.name, facts.entry, suffix)
        if read is not None:
            size = self._files.size(facts.name, facts.entry, suffix)
            self._copy_to_quarantine(_flat(facts.name.key(suffix)), read, 0, size)

    def _move_to_quarantine(self, path: str, name: str) -> None:
        fs, number = self._fs, 1
        while exists(fs, target := self._paths.quarantine_file(f"{name}.{number}")):
            number += 1
        fs.rename(path, target)
        fs.sync_dir(self._paths.quarantine)
        fs.sync_dir(os.path.dirname(path))

    # -- R2 ----------------------------------------------------------------------------------------------

    def _rebuild(self, facts: SegmentFacts) -> None:
        name, entry = facts.name, facts.entry
        place = self._files.place_of(name, entry, DATA)
        assert place is not None
        # Objects do not change: what is rebuilt of an exported segment is kept in the data directory.
        store = place[0] if isinstance(place[0], LocalStore) else self._files.hot
        index, tags = SegmentCheck(self._files, name, entry).rebuild()
        if facts.in_index:
            self._copy_file_to_quarantine(facts, INDEX)
            entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
            data = entries + encode_footer(entries) if entry.is_sealed else entries
            store.put(name.key(INDEX), _slice_of(data), len(data))
        if facts.in_tags and entry.is_sealed:
            self._copy_file_to_quarantine(facts, TAGS)
            data = encode_tags(tags, entry.first_seq)
            store.put(name.key(TAGS), _slice_of(data), len(data))

    def _repair_segments(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Write the repaired segments and return the snapshot that names them."""
        if snapshot is None:
            return None
        repairs = {(repair.topic.topic_id, repair.topic.epoch): repair for repair in self._plan.repairs}
        topics = [
            topic
            if (repair := repairs.get((topic.topic_id, topic.epoch))) is None or not repair.changes_entry
            else repair.entry_with(self._segments(repair))
            for topic in snapshot.topics
        ]
        return snapshot._replace(topics=topics)

    def _segments(self, repair: TopicRepair) -> list[SegmentEntry]:
        entries = []
        for entry in repair.topic.segments:
            one = repair.segments.get(entry.first_seq)
            action = Action.LEAVE if one is None else one.action
            if one is None or action is Action.LEAVE:
                entries.append(entry)
            elif action is Action.RECOUNT:
                entries.append(self._recount(one, repair.earliest_seq))
            elif action is Action.REWRITE:
                entries.append(self._rewrite(one, repair))
            else:
                self._copy_damage_to_quarantine(one.facts)
        return entries

    def _copy_damage_to_quarantine(self, facts: SegmentFacts) -> None:
        read = None if facts.is_missing else self._files.read(facts.name, facts.entry, DATA)
        if read is not None:
            for damage, end in zip(facts.damage, facts.ends, strict=True):
                self._copy_to_quarantine(_flat(facts.name.key(DATA)), read, damage.offset, end)

    def _recount(self, one: SegmentRepair, earliest_seq: int) -> SegmentEntry:
        facts, entry = one.facts, one.facts.entry
        index, tags = SegmentCheck(self._files, facts.name, entry).rebuild()
        marks = None if facts.in_dead else facts.marks
        if facts.in_dead:
            self._copy_file_to_quarantine(facts, DEAD)
        count, size = live_totals(index.lengths, marks, earliest_seq - entry.first_seq)
        return msgspec.structs.replace(
            entry,
            first_ts=index.times_ms[0],
            last_ts=index.times_ms[-1],
            has_tags=entry.is_sealed and bool(tags),
            live_count=count,
            live_bytes=size,
            dead_count=0 if marks is None else marks.count(1),
        )

    def _rewrite(self, one: SegmentRepair, repair: TopicRepair) -> SegmentEntry:
        facts, topic = one.facts, repair.topic
        self._copy_damage_to_quarantine(facts)
        directory = self._paths.topic_dir(topic.topic_id, topic.epoch)
        generation = next_generation(self._fs, directory, facts.entry.first_seq)
        entry = rewrite_segment(
            self._files, self._identity, facts, one.good, generation, repair.earliest_seq, topic.complete_to
        )
        name = facts.name._replace(generation=generation)
        check = SegmentCheck(self._files, name, entry).run(repair.earliest_seq)
        if not check.is_fine:
            raise RepairFailed(f"{name.key(DATA)} was rewritten, but its check failed: {check}")
        return entry

    # -- R3 to R5 ----------------------------------------------------------------------------------------

    def _salvage(self, snapshot: Snapshot | None) -> Content:
        repair = LogRepair(self._fs, self._clock, self._paths, self._identity, self._files)
        return repair.run(snapshot, self._copy_to_quarantine)

    def _write(self, content: Content) -> None:
        fs, paths = self._fs, self._paths
        numbers = snapshot_numbers(fs, paths)
        basis = self._plan.basis
        published = 0 if basis is None or basis.snapshot is None else basis.snapshot.head.number
        head = SnapshotHead(
            instance=self._identity.instance,
            shard=self._identity.shard,
            number=max([published, *numbers]) + 1,
            start=content.start,
            end_ordinal=content.end_ordinal,
            end_file=content.end_file,
            end_offset=content.end_offset,
            created_ms=self._clock.now_ms(),
            topic_count=len(content.topics),
            sections=content.sections,
        )
        topics = [encode_topic(topic) for topic in content.topics]
        keys = [encode_keys(generation) for generation in content.keys]
        write_snapshot(fs, paths, head.number, snapshot_parts(head, topics, keys))
        self._write_manifest(head, content.topics)

    def _write_manifest(self, head: SnapshotHead, topics: list[SnapshotTopic]) -> None:
        parts = manifest_parts(
            manifest_head(head, self._store_url),
            [topic_line(topic, topic.head) for topic in topics],
        )
        write_manifest(self._fs, self._paths, parts)


def _with_same_log(snapshot: Snapshot | None) -> Content:
    assert snapshot is not None, "a good log without a snapshot needs no repair"
    head = snapshot.head
    return Content(
        snapshot.topics,
        snapshot.keys,
        session_section([encode_session(one) for one in sessions_of(head)])
        | epoch_floor_section(epoch_floor_of(head))
        | debts_of(head),
        head.start,
        head.end_ordinal,
        head.end_file,
        head.end_offset,
    )


def _readable(read: Read, offset: int, size: int) -> bytes:
    """Read a range; return zeros where the disk returns an error, since no more can be kept."""
    try:
        return read(offset, size)
    except OSError:
        return bytes(size)


def _flat(key: str) -> str:
    """Return the key of a segment file as one file name.

    >>> _flat("topics/0000000000000007-1024/seg-0000000000000001.data")
    '0000000000000007-1024.seg-0000000000000001.data'
    """
    return ".".join(key.split("/")[1:])


def _slice_of(data: bytes) -> Read:
    return lambda offset, size: data[offset : offset + size]
