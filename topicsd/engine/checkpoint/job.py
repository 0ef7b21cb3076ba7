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
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

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
    snapshot_parts,
)
from topicsd.engine.damage import note_segment_damage
from topicsd.engine.jobs import SYNCED, BackgroundJob
from topicsd.engine.session_log import encode_session, session_section
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import EvictWatermark, encode_control
from topicsd.log.files import LogPlace
from topicsd.segment.entry import SegmentDamage, SegmentName
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
    segments: list[tuple[SegmentName, str]]
    """Names and tiers."""
    topics: list[tuple[int, int]]
    """Id and epoch of deleted topics."""


# As `number`: hot files of segments that moved to the cold directory, where every snapshot finds them.
MOVED = 0

FILES_TO_DROP = "leaving"
_decode_leaving = msgspec.msgpack.Decoder(list[FilesToDrop]).decode


def files_to_drop_of(head: SnapshotHead) -> list[FilesToDrop]:
    return _decode_leaving(head.sections[FILES_TO_DROP]) if FILES_TO_DROP in head.sections else []


def files_to_drop_section(files_to_drop: list[FilesToDrop]) -> dict[str, bytes]:
    return {FILES_TO_DROP: msgspec.msgpack.encode(files_to_drop)} if files_to_drop else {}


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
            files_to_drop = self._all_files_to_drop(deleted_topics)
            head = self._head(start, end, {**files_to_drop_section(files_to_drop), **sessions})
            yield partial(self._write_snapshot, head, keys)
            is_written = True
            shard.referred_bytes -= referred_bytes
            return SnapshotResult(head, files_to_drop)
        finally:
            if not is_written:
                shard.deleted_topics = deleted_topics + shard.deleted_topics
                for captured, _ in self._captures:
                    undo_capture(captured)
                if self._unfinished is not None:
                    undo_capture(self._unfinished)

    def _all_files_to_drop(self, deleted_topics: list[tuple[int, int]]) -> list[FilesToDrop]:
        moved: list[tuple[SegmentName, str]] = []
        dropped: list[tuple[SegmentName, str]] = []
        for captured, _ in self._captures:
            names = {(entry.first_seq, entry.generation) for entry in captured.sealed if captured.dropped}
            for one in captured.dropped:
                (moved if (one[0].first_seq, one[0].generation) in names else dropped).append(one)
        files_to_drop = list(self._files_to_drop)
        if moved:
            files_to_drop.insert(0, FilesToDrop(MOVED, moved, []))
        if dropped or deleted_topics:
            files_to_drop.append(FilesToDrop(self._number, dropped, deleted_topics))
        return files_to_drop

    def _capture_topics(self) -> BackgroundJob[None]:
        shard = self._shard
        for topics in _slices(list(shard.topics_by_id.values()), TOPICS_A_TURN):
            pending = pending_requests(shard)
            for topic in topics:
                while topic.deferred_requests is not None and topic.visible:
                    # The next sync decides whether the topic is deleted; until then it cannot be captured.
                    yield SYNCED
                    pending = pending_requests(shard)
                if not topic.visible or shard.topics_by_id.get(topic.topic_id) is not topic:
                    continue  # Its creation or its delete, and all it has, is in the log after P.
                captured = self._unfinished = capture(topic, pending)
                if (captured.changed or captured.dead) and "cap" in topic.evicted_to:
                    yield from self._log_floor(topic)
                copy = SegmentCopy(self._files, self._bounds, captured, shard.clock.now_ms())
                yield from copy.run()
                self._log_damages(topic, copy.damages)
                yield from self._save_marks(captured)
                if captured.tails or copy.segments or captured.dropped:
                    self._captures.append((captured, copy.segments))
                self._unfinished = None
                self._note(msgspec.structs.replace(captured.entry, segments=copy.entries()))
                if copy.segments or captured.changed or captured.dead:
                    pending = pending_requests(shard)  # Time has passed while files were written.
            yield None

    def _log_damages(self, topic: Topic, damages: list[SegmentDamage]) -> None:
        for damage in damages:
            note_segment_damage(self._shard, topic.name, damage)
            logger.warning(
                'topic "%s": active segment damaged, appends continue in a new segment', topic.name
            )

    def _log_floor(self, topic: Topic) -> BackgroundJob[None]:
        """Log the cap eviction floor of a topic whose marks are about to be written.

        Replay finds cap evictions again from the number of live records. A start from the previous snapshot
        may read the marks written now, of deletes that followed an eviction, and would count too few live
        records.
        """
        floor = EvictWatermark({"cap": topic.evicted_to["cap"]})
        self._shard.log.join_control_frame(encode_control(floor, topic_id=topic.topic_id, ts=topic.last_ts))
        self.frame_count += 1
        yield SYNCED

    def _save_marks(self, captured: Capture) -> BackgroundJob[None]:
        for run, marks in captured.changed:
            yield partial(write_marks, self._files, run.name, marks, captured.entry.complete_to)
            run.saved_dead_count = marks.count(1)

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
        cold_dir = self._shard.settings.cold_dir or None
        parts = manifest_parts(manifest_head(head, cold_dir), self._lines)
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


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
