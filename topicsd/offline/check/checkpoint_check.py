"""Checks of a shard's files outside the log: snapshots, manifest, segments and orphans.

An orphan is a file that no snapshot names.

A fault in the newest good snapshot or its segments is a fault of the shard. The older snapshot is kept in
case the newest cannot be read. It has to pass two checks: it is whole, and the log between the two snapshots
can be read.

A server that runs at the same time may drop a segment while it is checked. A fault in a segment therefore
counts only while the newest snapshot still names the segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from topicsd.disk.layout import (
    BUNDLE_NAME,
    names_in,
    parse_segment_name,
    parse_snapshot_name,
    parse_topic_dir_name,
    snapshot_name,
    wal_name,
)
from topicsd.engine.checkpoint.manifest import (
    Manifest,
    ManifestDamage,
    ManifestTopic,
    read_manifest,
    topic_line,
)
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotDamage, SnapshotTopic
from topicsd.engine.checkpoint.trash import DELETED_SUFFIX
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic
from topicsd.log.file_header import FILE_HEADER_BYTES, UnknownVersion
from topicsd.log.files import LogPlace
from topicsd.log.reader import WalBatchReader
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.frame_check import FrameCheck
from topicsd.offline.check.segment_check import SegmentCheck, SegmentFacts, SegmentFiles
from topicsd.offline.check.snapshot_check import check_snapshot
from topicsd.offline.loaded_shard import LoadedShard, segment_files
from topicsd.offline.table import path_text, plural
from topicsd.segment.entry import DATA, DEAD, INDEX, TAGS, SegmentName
from topicsd.store.object_store import StoreRefused, StoreUnavailable

OnFinding = Callable[[Finding], None]
_SHOWN_MAX = 3


class CheckpointCheck:
    """The check of one shard's checkpoint files. `facts` lists the faulty segments for a repair."""

    def __init__(self, loaded: LoadedShard, on_finding: OnFinding, on_note: Callable[[str], None]) -> None:
        self._loaded = loaded
        self._fs = loaded.data_dir.fs
        self._paths = loaded.data_dir.paths(loaded.shard)
        self._is_store_away = False
        self._on_finding = on_finding
        self._on_note = on_note
        self._good_snapshots: dict[int, Snapshot] = {}
        self.facts: list[SegmentFacts] = []
        self.segments = 0
        self.records = 0
        self.bytes = 0

    def run(self) -> None:
        self._check_snapshots()
        snapshot = self._loaded.chosen.snapshot
        if snapshot is not None:
            for topic, what in check_snapshot(snapshot):
                file = snapshot_name(snapshot.head.number)
                self._on_finding(Finding(what=what, level=Level.LOSS, file=file, topic=topic))
            self._check_segments(snapshot)
            self._check_older_log(snapshot)
        self._check_manifest()

    def finish(self) -> None:
        """Once the log is replayed, check the topics adopted since the snapshot, and note orphans."""
        adopted = self._adopted_topics()
        self._check_adopted(adopted)
        self._note_orphans({(topic.topic_id, topic.epoch) for topic in adopted})

    def _adopted_topics(self) -> list[Topic]:
        state = self._loaded.state
        snapshot = self._loaded.chosen.snapshot
        captured = {(topic.topic_id, topic.epoch) for topic in ([] if snapshot is None else snapshot.topics)}
        topics = [state.topics_by_id.get(topic_id) for topic_id, _ in state.adopted_topics]
        return [
            topic for topic in topics if topic is not None and (topic.topic_id, topic.epoch) not in captured
        ]

    def _check_adopted(self, topics: list[Topic]) -> None:
        """Check the segments of adopted topics, whose bundle files hold their marks."""
        files = segment_files(self._loaded.data_dir, self._loaded.shard)
        try:
            for topic in topics:
                for run in topic.runs:
                    if not isinstance(run, SealedRun):
                        continue
                    entry = msgspec.structs.replace(
                        run.entry,
                        live_count=run.live_count,
                        live_bytes=run.live_bytes,
                        dead_count=run.dead_count,
                    )
                    check = SegmentCheck(files, run.name, entry, run.dead)
                    facts = check.run(topic.earliest_seq)
                    self.segments += 1
                    self.records += check.record_count
                    self.bytes += entry.data_bytes
                    for finding in () if self._is_outdated() else segment_findings(topic.name, facts):
                        self._on_finding(finding)
        finally:
            files.close()

    # -- snapshots ---------------------------------------------------------------------------------------

    def _check_snapshots(self) -> None:
        """Check all snapshots: an older one is used when the newer ones are bad."""
        chosen = self._loaded.chosen
        if chosen.snapshot is not None:
            self._good_snapshots[chosen.snapshot.head.number] = chosen.snapshot
        for number in snapshot_numbers(self._fs, self._paths):
            if number in self._good_snapshots:
                continue
            try:
                snapshot = read_snapshot(self._fs, self._paths, number)
            except FileNotFoundError:
                continue  # A running server has dropped it.
            except (SnapshotDamage, UnknownVersion) as damage:
                what = f"a start cannot use it: {damage}"
                self._on_finding(Finding(what=what, level=Level.HARMLESS, file=snapshot_name(number)))
            else:
                self._good_snapshots[number] = snapshot
                if number in chosen.skipped:
                    what = "a start skips it: the deletes of one of its segments are unknown"
                    self._on_finding(Finding(what=what, level=Level.HARMLESS, file=snapshot_name(number)))

    def _check_older_log(self, newest: Snapshot) -> None:
        """Check the log between the older snapshot and the newest, which a start does not read."""
        older = [one for number, one in self._good_snapshots.items() if number < newest.head.number]
        if not older:
            return
        start, end = older[0].head.start, newest.head.start
        if start.ordinal >= end.ordinal:
            return  # A repair wrote the newest snapshot from an earlier place of the log.
        place = self._read_between(start, end)
        if (place.ordinal, place.chain) == (end.ordinal, end.chain) or self._is_outdated():
            return
        number = older[0].head.number
        message = (
            f"snapshot {number} needs the log from ordinal {start.ordinal} to {end.ordinal}, which can be "
            f"read only to {place.ordinal}: a start has only the newest snapshot until two more are written"
        )
        if end.offset == FILE_HEADER_BYTES:
            # A repair began a new log here, and the chain of the old log does not continue in it.
            self._on_note(message)
        else:
            self._on_finding(
                Finding(what=message, level=Level.HARMLESS, file=wal_name(place.file), offset=place.offset)
            )

    def _read_between(self, start: LogPlace, end: LogPlace) -> LogPlace:
        """Return the place up to which the log can be read."""
        place = start
        for file in [*self._loaded.log.past, *self._loaded.log.files[:1]]:
            if file.first_ordinal < start.file or place.ordinal >= end.ordinal:
                continue
            if file.header is None:
                return LogPlace(file.first_ordinal, 0, place.ordinal, place.chain)
            is_first = file.first_ordinal == start.file
            reader = WalBatchReader(self._fs, file.fd, file.header, start if is_first else None)
            if (reader.ordinal, reader.chain) != (place.ordinal, place.chain):
                break
            check = FrameCheck()
            while reader.ordinal < end.ordinal and (batch := reader.next()) is not None:
                self.bytes += reader.offset - batch.offset
                for complaint in check.batch(batch):
                    what, offset = complaint.what, complaint.offset
                    self._on_finding(Finding(what=what, level=Level.HARMLESS, file=file.name, offset=offset))
            place = LogPlace(file.first_ordinal, reader.offset, reader.ordinal, reader.chain)
        return place

    # -- segments ----------------------------------------------------------------------------------------

    def _check_segments(self, snapshot: Snapshot) -> None:
        files = segment_files(self._loaded.data_dir, self._loaded.shard)
        try:
            for topic in snapshot.topics:
                for entry in topic.segments:
                    name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
                    check = SegmentCheck(files, name, entry)
                    facts = check.run(topic.earliest_seq)
                    self.segments += 1
                    self.records += check.record_count
                    self.bytes += entry.data_bytes
                    if not facts.is_fine and not self._is_outdated():
                        self.facts.append(facts)
                        for finding in segment_findings(topic.name, facts):
                            self._on_finding(finding)
                    self._check_objects(files, topic, name, check)
        finally:
            files.close()

    def _check_objects(
        self, files: SegmentFiles, topic: SnapshotTopic, name: SegmentName, check: SegmentCheck
    ) -> None:
        is_skipped = files.objects is None or (
            files.objects.is_remote and not self._loaded.data_dir.checks_objects
        )
        if is_skipped or self._is_store_away:
            return
        try:
            what = check.fault_of_objects(topic.earliest_seq)
        except (StoreUnavailable, StoreRefused) as error:
            self._on_note(f"the objects of segments that are local too are not checked: {error}")
            self._is_store_away = True
            return
        if what and not self._is_outdated():
            # Nodes that adopt the topic, and readers of the store, have no other copy.
            self._on_finding(Finding(what=what, level=Level.LOSS, topic=topic.name))

    def _is_outdated(self) -> bool:
        """Whether a running server wrote a newer snapshot, and so may have dropped a missing file."""
        return self._loaded.log.owner is not None and self._loaded.is_outdated

    # -- manifest and orphans ----------------------------------------------------------------------------

    def _check_manifest(self) -> None:
        try:
            manifest = read_manifest(self._fs, self._paths)
        except FileNotFoundError:
            if self._loaded.chosen.snapshot is not None:
                self._add_manifest_finding("it is missing")
            return
        except (ManifestDamage, UnknownVersion) as damage:
            self._add_manifest_finding(str(damage))
            return
        snapshot = self._good_snapshots.get(manifest.number)
        if snapshot is not None:
            names = list(_differences(manifest, snapshot))
            if names:
                topics = ", ".join(f'"{name}"' for name in names[:_SHOWN_MAX])
                more = f" and {plural(len(names) - _SHOWN_MAX, 'more')}" if len(names) > _SHOWN_MAX else ""
                self._add_manifest_finding(f"it differs from snapshot {manifest.number} in {topics}{more}")
        elif not self._is_outdated():
            self._on_note(f"MANIFEST.json belongs to snapshot {manifest.number}, which cannot be read")

    def _add_manifest_finding(self, what: str) -> None:
        effect = "Outside readers cannot read this shard until the next checkpoint"
        self._on_finding(Finding(what=f"{what}. {effect}", level=Level.HARMLESS, file="MANIFEST.json"))

    def _note_orphans(self, adopted: set[tuple[int, int]]) -> None:
        if self._loaded.log.owner is not None:
            return  # A running server may be creating these files now.
        known = {
            SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
            for snapshot in self._good_snapshots.values()
            for topic in snapshot.topics
            for entry in topic.segments
        }
        incarnations = {(name.topic_id, name.epoch) for name in known}
        for directory in names_in(self._fs, self._paths.topics):
            path = os.path.join(self._paths.topics, directory)
            incarnation = parse_topic_dir_name(directory)
            if incarnation is None:
                is_deleted = parse_topic_dir_name(directory.removesuffix(DELETED_SUFFIX)) is not None
                what = (
                    "belongs to a deleted topic; a checkpoint removes it"
                    if is_deleted
                    else "is not a file of topicsd"
                )
                self._on_note(f"topics/{path_text(directory)} {what}")
                continue
            if incarnation in adopted:
                continue  # Its files are named by the bundle file.
            files = names_in(self._fs, path)
            if incarnation not in incarnations:
                count = plural(len(files), "file")
                self._on_note(f"topics/{directory} ({count}) is in no snapshot; a start ignores it")
                continue
            unnamed = [
                file for file in files if file != BUNDLE_NAME and not _is_named(file, incarnation, known)
            ]
            for file in unnamed:
                self._on_note(f"topics/{directory}/{path_text(file)} is in no snapshot; a start ignores it")
        for file in names_in(self._fs, self._paths.meta):
            if parse_snapshot_name(file) is None and file not in ("MANIFEST.json", "readers"):
                self._on_note(f"meta/{path_text(file)} is a leftover, or not a file of topicsd")


def segment_findings(topic: str, facts: SegmentFacts) -> Iterator[Finding]:
    """Yield the findings about one segment."""
    name, is_active = facts.name, not facts.entry.is_sealed
    for damage in facts.damage:
        first, last = damage.first_seq, damage.last_seq
        lost = f"seqs {first} to {last} cannot be read" if first < last else f"seq {first} cannot be read"
        what = f"{damage.what}; {lost}" if first <= last else f"{damage.what}; no record needs it"
        yield Finding(
            what=what,
            level=Level.LOSS if first <= last else Level.HARMLESS,
            file=facts.data_file,
            offset=damage.offset,
            topic=topic,
            seq=first if first <= last else None,
        )
    rebuilt = "a start rebuilds it in memory" if is_active else "it is rebuilt when it is needed"
    for suffix, what, level, effect in (
        (DATA, facts.in_data, Level.HARMLESS, "no reader needs it"),
        (INDEX, facts.in_index, Level.HARMLESS, rebuilt),
        (TAGS, facts.in_tags, Level.HARMLESS, rebuilt),
        (
            DEAD,
            facts.in_dead,
            Level.STOPS,
            "the deletes of the segment are unknown, so a server does not start this shard",
        ),
        (DATA, facts.in_entry, Level.LOSS, "the counts and caps of the topic are wrong"),
    ):
        if what:
            yield Finding(what=f"{what}; {effect}", level=level, file=name.key(suffix), topic=topic)


def _differences(manifest: Manifest, snapshot: Snapshot) -> Iterator[str]:
    """Yield the names of the topics on which the manifest and its snapshot disagree."""
    published = {(topic.id, topic.epoch): topic for topic in manifest.topics}
    for entry in snapshot.topics:
        expected = msgspec.json.decode(topic_line(entry, entry.head), type=ManifestTopic)
        if published.pop((expected.id, expected.epoch), None) != expected:
            yield entry.name
    for topic in published.values():
        yield topic.name


def _is_named(file: str, incarnation: tuple[int, int], known: set[SegmentName]) -> bool:
    parsed = parse_segment_name(file)
    return parsed is not None and SegmentName(*incarnation, parsed[0], parsed[1]) in known
