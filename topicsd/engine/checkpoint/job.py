"""One checkpoint: copies the log into segments and writes a snapshot, so that log files can be dropped.

The order of the steps is the guarantee:

K1  The log place P, where replay will begin, is taken first, and everything before it is published.
K2  Each topic is captured in one step, complete to an ordinal of its own, and its records are copied into
    segments, which are synced before anything names them.
K3  The log is synced to the end of the capture. So a snapshot never knows more than the log that follows it.
K4  The snapshot is renamed to its name. From here on it is the truth.
K5  The manifest follows, and then files that are not needed are dropped: WAL files before the older snapshot,
    and segments in which no record was live when that was taken. The older snapshot remains sufficient for a
    start.

A crash between any two steps leaves the previous snapshot with its log, or this one. A failed step is retried
by the next checkpoint, and the state of the engine is unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import msgspec

from shared.settings.store_url import store_url_of
from topicsd.engine.checkpoint.capture import Capture, capture, pending_requests
from topicsd.engine.checkpoint.install import install, undo_capture
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line, write_manifest
from topicsd.engine.checkpoint.segment_copy import (
    Files,
    GrowingSegment,
    SegmentBounds,
    SegmentCopy,
    write_marks,
)
from topicsd.engine.checkpoint.snapshot_files import write_snapshot
from topicsd.engine.checkpoint.snapshot_format import (
    KeyGeneration,
    SnapshotHead,
    SnapshotTopic,
    encode_keys,
    encode_topic,
    epoch_floor_section,
    snapshot_parts,
)
from topicsd.engine.damage import note_segment_damage
from topicsd.engine.jobs import SYNCED, BackgroundJob
from topicsd.engine.ownership.departed import DEPARTED, TO_FORGET, departed_sections
from topicsd.engine.session_log import encode_session, session_section
from topicsd.engine.shard_data import DeletedTopic, ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import EvictWatermark, encode_control
from topicsd.log.files import LogPlace
from topicsd.segment.entry import DroppedSegment, SegmentDamage, SegmentName
from topicsd.segment.store import SegmentStore

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

# Per turn of the event loop: topics captured, and segments installed.
TOPICS_A_TURN = 100
SEGMENTS_A_TURN = 32


class FilesToDrop(NamedTuple):
    """Files to drop once no snapshot before `number` is kept.

    Each snapshot lists the files still to be dropped, so that a start knows them too.
    """

    number: int
    segments: list[DroppedSegment]
    topics: list[tuple[int, int]]
    """Id and epoch of deleted topics."""
    exported: list[SegmentName] = []  # noqa: RUF012
    """Segments of which the object store has `.data`; snapshots before `number` need the local file."""
    adopted: tuple[tuple[int, int], ...] = ()
    """Id and epoch of adopted topics, whose bundle files are not needed any more."""


# As `number`, written by earlier versions: segments that moved to the cold directory, where every snapshot
# finds them.
_MOVED = 0

FILES_TO_DROP = "leaving"
OBJECTS_TO_DELETE = "objects"
NO_OBJECTS: Final[Mapping[str, int]] = MappingProxyType({})
_decode_leaving = msgspec.msgpack.Decoder(list[FilesToDrop]).decode
_decode_objects = msgspec.msgpack.Decoder(dict[str, int]).decode


def files_to_drop_of(head: SnapshotHead) -> list[FilesToDrop]:
    left = _decode_leaving(head.sections[FILES_TO_DROP]) if FILES_TO_DROP in head.sections else []
    return [
        FilesToDrop(_MOVED, [], [], [moved.name for moved in one.segments]) if one.number == _MOVED else one
        for one in left
    ]


def unused_files(shard: ShardData, files_to_drop: list[FilesToDrop]) -> list[FilesToDrop]:
    """Return the files to drop of a snapshot without those of topics that came back in the replay.

    A topic may have left the shard, had its files dropped, and come back since the snapshot. The snapshot
    means the files of its earlier stay, and those of now have the same names, or may get them. Only objects
    are left of the earlier stay, and they are noted here.
    """
    deleted = {(topic.topic_id, topic.epoch) for topic in shard.deleted_topics}
    back = {pair for one in files_to_drop for pair in one.topics if pair in deleted or _is_here(shard, *pair)}
    if not back:
        return files_to_drop
    now_ms = shard.clock.now_ms()
    for dropped in [dropped for one in files_to_drop for dropped in one.segments]:
        if dropped.object_stem and _incarnation_of(dropped.name) in back:
            shard.objects_to_delete.setdefault(dropped.object_stem, now_ms)
    return [
        one._replace(
            segments=[dropped for dropped in one.segments if _incarnation_of(dropped.name) not in back],
            topics=[pair for pair in one.topics if pair not in back],
            exported=[name for name in one.exported if _incarnation_of(name) not in back],
            adopted=tuple(pair for pair in one.adopted if pair not in back),
        )
        for one in files_to_drop
    ]


def _is_here(shard: ShardData, topic_id: int, epoch: int) -> bool:
    topic = shard.topics_by_id.get(topic_id)
    return topic is not None and topic.epoch == epoch


def _incarnation_of(name: SegmentName) -> tuple[int, int]:
    return name.topic_id, name.epoch


def objects_to_delete_of(head: SnapshotHead) -> dict[str, int]:
    """Return the stems of objects that are still to be deleted, and when each was dropped."""
    return _decode_objects(head.sections[OBJECTS_TO_DELETE]) if OBJECTS_TO_DELETE in head.sections else {}


def files_to_drop_section(
    files_to_drop: list[FilesToDrop], objects_to_delete: Mapping[str, int] = NO_OBJECTS
) -> dict[str, bytes]:
    """Return the sections of a snapshot that list what is still to be dropped."""
    sections = {}
    if files_to_drop:
        sections[FILES_TO_DROP] = msgspec.msgpack.encode(files_to_drop)
    if objects_to_delete:
        sections[OBJECTS_TO_DELETE] = msgspec.msgpack.encode(objects_to_delete)
    return sections


def without_files_to_drop(head: SnapshotHead) -> dict[str, bytes]:
    """Return the sections but those of `files_to_drop_section`."""
    return {
        name: data for name, data in head.sections.items() if name not in (FILES_TO_DROP, OBJECTS_TO_DELETE)
    }


def debts_of(head: SnapshotHead) -> dict[str, bytes]:
    """Return the sections for a snapshot that replaces this one.

    They list what is still to be dropped or forgotten, and the departed topics.
    """
    debts = (FILES_TO_DROP, OBJECTS_TO_DELETE, DEPARTED, TO_FORGET)
    return {name: head.sections[name] for name in debts if name in head.sections}


class SnapshotResult(NamedTuple):
    """A snapshot that is on the disk."""

    head: SnapshotHead
    files_to_drop: list[FilesToDrop]


class CheckpointJob:
    """The steps of one checkpoint, as a background job."""

    def __init__(
        self,
        shard: ShardState,
        files: Files,
        hot: SegmentStore,
        bounds: SegmentBounds,
        number: int,
        files_to_drop: list[FilesToDrop],
    ) -> None:
        """Prepare a checkpoint; `files_to_drop` is what earlier snapshots have not dropped yet."""
        self._shard = shard
        self._files = files
        self._hot = hot
        self._bounds = bounds
        self._number = number
        self._files_to_drop = files_to_drop
        self._captures: list[tuple[Capture, list[GrowingSegment]]] = []
        self._unfinished: Capture | None = None
        self._entries: list[bytes] = []
        self._lines: list[bytes] = []
        self.frame_count = 0
        """Frames logged by this checkpoint; they are no work for the next one."""
        self.deleted: list[tuple[int, int]] = []
        """The incarnations whose files the snapshot lists to be dropped, from its start on."""

    def run(self) -> BackgroundJob[SnapshotResult | None]:
        """Run the checkpoint until the snapshot has its name; `write_manifest` follows.

        Without a log there is nothing to write, and the result is None.
        """
        shard = self._shard
        start = shard.log.place
        if start is None:
            return None
        shard.referable_from, referred_bytes = shard.log.batch.next_position, shard.referred_bytes
        deleted_topics, shard.deleted_topics = shard.deleted_topics, []
        self.deleted = [(topic.topic_id, topic.epoch) for topic in deleted_topics]
        adopted_topics, shard.adopted_topics = shard.adopted_topics, []
        is_written = False
        try:
            yield SYNCED
            yield from self._capture_topics()
            keys = yield from self._capture_keys()
            sessions = yield from self._capture_sessions()
            end = shard.log.place
            assert end is not None
            yield SYNCED
            yield from self._install()
            files_to_drop = self._all_files_to_drop(deleted_topics, adopted_topics)
            sections = sessions | files_to_drop_section(files_to_drop, shard.objects_to_delete)
            sections |= epoch_floor_section(shard.epoch_floor)
            sections |= departed_sections(shard.departed, shard.to_forget)
            head = self._head(start, end, sections)
            yield partial(self._write_snapshot, head, keys)
            is_written = True
            shard.referred_bytes -= referred_bytes
            return SnapshotResult(head, files_to_drop)
        finally:
            if not is_written:
                shard.deleted_topics = deleted_topics + shard.deleted_topics
                shard.adopted_topics = adopted_topics + shard.adopted_topics
                for captured, _ in self._captures:
                    undo_capture(captured)
                if self._unfinished is not None:
                    undo_capture(self._unfinished)

    def _all_files_to_drop(
        self, deleted_topics: list[DeletedTopic], adopted_topics: list[tuple[int, int]]
    ) -> list[FilesToDrop]:
        dropped = [one for captured, _ in self._captures for one in captured.dropped]
        dropped += [one for topic in deleted_topics for one in topic.exported]
        exported = [name for captured, _ in self._captures for name in captured.exported]
        if not (dropped or exported or deleted_topics or adopted_topics):
            return self._files_to_drop
        topics = [(topic.topic_id, topic.epoch) for topic in deleted_topics]
        return [
            *self._files_to_drop,
            FilesToDrop(self._number, dropped, topics, exported, tuple(adopted_topics)),
        ]

    def _capture_topics(self) -> BackgroundJob[None]:
        shard = self._shard
        for topics in _slices(list(shard.topics_by_id.values()), TOPICS_A_TURN):
            pending = pending_requests(shard)
            for topic in topics:
                while topic.deferred_requests is not None and topic.visible and not topic.is_frozen:
                    # The next sync decides whether the topic is deleted; until then it cannot be captured.
                    yield SYNCED
                    pending = pending_requests(shard)
                if not topic.visible or shard.topics_by_id.get(topic.topic_id) is not topic:
                    continue  # Its creation or its delete, and all it has, is in the log after P.
                captured = self._unfinished = capture(topic, pending)
                if needs_floor(captured):
                    self.frame_count += 1
                    yield from log_floor(shard, topic)
                seals_all = topic in shard.topics_to_seal
                copy = SegmentCopy(self._files, self._bounds, captured, shard.clock.now_ms(), seals_all)
                yield from copy.run()
                log_damages(shard, topic, copy.damages)
                yield from save_marks(self._files, captured)
                if captured.tails or copy.segments or captured.dropped or captured.exported:
                    self._captures.append((captured, copy.segments))
                self._unfinished = None
                self._note(msgspec.structs.replace(captured.entry, segments=copy.entries()))
                if copy.segments or captured.changed or captured.dead:
                    pending = pending_requests(shard)  # Time has passed while files were written.
            yield None

    def _note(self, entry: SnapshotTopic) -> None:
        self._entries.append(encode_topic(entry))
        # Everything that a snapshot names is on the disk, whatever the durability class.
        self._lines.append(topic_line(entry, entry.head))

    def _capture_keys(self) -> BackgroundJob[list[bytes]]:
        keys = []
        for columns in self._shard.idempotency_keys.columns():
            keys.append(encode_keys(KeyGeneration(*columns)))
            yield None
        return keys

    def _capture_sessions(self) -> BackgroundJob[dict[str, bytes]]:
        """Encode the sessions; those that change meanwhile are in the log after P."""
        encoded: list[bytes] = []
        for sessions in _slices(list(self._shard.watch_sessions.values()), TOPICS_A_TURN):
            encoded += map(encode_session, sessions)
            yield None
        return session_section(encoded)

    def _install(self) -> BackgroundJob[None]:
        segment_count = 0
        for captured, segments in self._captures:
            topic = captured.topic
            if self._shard.topics_by_id.get(topic.topic_id) is topic:
                install(self._shard.segments, self._hot, captured, segments)
            segment_count += 1 + len(segments)
            if segment_count >= SEGMENTS_A_TURN:
                segment_count = 0
                yield None
        yield None

    def _write_snapshot(self, head: SnapshotHead, keys: list[bytes]) -> None:
        parts = snapshot_parts(head, self._entries, keys)
        write_snapshot(self._files.fs, self._files.paths, self._number, parts)

    def write_manifest(self, head: SnapshotHead) -> None:
        """Write the manifest of the snapshot, on a disk thread (K5)."""
        store_url = store_url_of(self._shard.settings)
        parts = manifest_parts(manifest_head(head, store_url), self._lines)
        write_manifest(self._files.fs, self._files.paths, parts)

    def _head(self, start: LogPlace, end: LogPlace, sections: dict[str, bytes]) -> SnapshotHead:
        identity = self._files.identity
        return SnapshotHead(
            instance=identity.instance,
            shard=identity.shard,
            number=self._number,
            start=start,
            end_ordinal=end.ordinal,
            end_file=end.file,
            end_offset=end.offset,
            created_ms=self._shard.clock.now_ms(),
            topic_count=len(self._entries),
            sections=sections,
        )


def needs_floor(captured: Capture) -> bool:
    """Return whether marks are about to be written for a topic that evicted records by its caps.

    Replay finds cap evictions again from the number of live records. A start from the previous snapshot may
    read the marks written now, of deletes that followed an eviction, and would count too few live records.
    """
    return bool(captured.changed or captured.dead) and "cap" in captured.topic.evicted_to


def log_floor(shard: ShardState, topic: Topic) -> BackgroundJob[None]:
    """Log the cap eviction floor of a topic, and wait until it is synced."""
    floor = EvictWatermark({"cap": topic.evicted_to["cap"]})
    shard.log.join_control_frame(encode_control(floor, topic_id=topic.topic_id, ts=topic.last_ts))
    yield SYNCED


def log_damages(shard: ShardState, topic: Topic, damages: list[SegmentDamage]) -> None:
    for damage in damages:
        note_segment_damage(shard, topic.name, damage)
        logger.warning('topic "%s": active segment damaged, appends continue in a new segment', topic.name)


def save_marks(files: Files, captured: Capture) -> BackgroundJob[None]:
    """Write the marks of segments with more dead records than their files list."""
    for run, marks in captured.changed:
        yield partial(write_marks, files, run.name, marks, captured.entry.complete_to)
        run.saved_dead_count = marks.count(1)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
