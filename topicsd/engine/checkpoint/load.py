"""Loading a snapshot into topics: the cost is per segment, not per record.

Exceptions are the index of each topic's active segment, and the dead sets of segments that have one, which
are read. An unreadable dead set is not guessed: its content is known nowhere else. But the log has the
deletes since the previous snapshot: if that one does not need the dead set, a start continues from there.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping

import msgspec

from shared.settings.store_url import store_url_of
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.job import objects_to_delete_of
from topicsd.engine.checkpoint.rebuild_tag_order import rebuild_tag_order
from topicsd.engine.checkpoint.snapshot_files import choose_snapshot
from topicsd.engine.checkpoint.snapshot_format import (
    KeyGeneration,
    Snapshot,
    SnapshotTopic,
    epoch_floor_of,
)
from topicsd.engine.damage import note_damage
from topicsd.engine.ownership.departed import FORGOTTEN, departed_of, to_forget_of
from topicsd.engine.ownership.owned import ownership_of
from topicsd.engine.queue.state import load_queue
from topicsd.engine.read.cursors import cursors_of
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tag_index import TagIndex
from topicsd.engine.records.tail_run import ActiveFile, TailRun
from topicsd.engine.retention.retention import move_earliest
from topicsd.engine.routes.route import load_routes
from topicsd.engine.schedules.schedule import schedules_of
from topicsd.engine.session_log import apply_session, sessions_of
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.idempotency import KeyColumns
from topicsd.engine.write.producers import producers_of
from topicsd.segment.dead_file import DeadDamage, unpack_marks
from topicsd.segment.entry import COLD, DATA, HOT, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import SegmentStore

logger = logging.getLogger("topicsd.engine")

DeadSets = dict[SegmentName, bytearray]
"""The bitmaps of segments that have dead records."""


def choose_loadable_snapshot(
    fs: Fs, paths: ShardPaths, reader: SegmentReader
) -> tuple[Snapshot | None, list[str], DeadSets]:
    """Return the newest snapshot with readable dead sets, complaints, and the dead sets.

    The complaints are about newer snapshots.
    """
    dead: DeadSets = {}
    tried = 0

    def objection_to(snapshot: Snapshot) -> str:
        nonlocal tried
        tried += 1
        if tried > 1 and not exists(fs, paths.wal_file(snapshot.head.start.file)):
            return "the log after it is missing"
        try:
            for topic in snapshot.topics:
                for entry in topic.segments:
                    if entry.dead_count:
                        name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
                        dead[name] = reader.dead_set(name, entry).bitmap
        except (DeadDamage, OSError) as error:
            dead.clear()
            return f"a dead set is unreadable: {error}"
        return ""

    snapshot, complaints = choose_snapshot(fs, paths, objection_to)
    return snapshot, complaints, dead


def load_snapshot(
    shard: ShardData, snapshot: Snapshot, hot: SegmentStore, dead: DeadSets | None = None
) -> None:
    """Load a snapshot into the shard; `dead` has the dead sets that were read before."""
    ids = {entry.topic_id for entry in snapshot.topics}
    # A forgotten one without files was deleted while the snapshot was taken.
    departed = {
        one.topic_id: one
        for one in departed_of(snapshot.head)
        if one.state != FORGOTTEN or one.topic_id in ids
    }
    shard.departed = {one.name: one for one in departed.values()}
    # Departed topics first: a topic that is served may have a route of the same name.
    for entry in sorted(snapshot.topics, key=lambda entry: entry.topic_id not in departed):
        topic = load_topic(shard, entry, hot, dead or {})
        shard.add_topic(topic)
        load_routes(shard, topic, entry.sections)
        if topic.topic_id in departed:
            shard.depart(topic, departed[topic.topic_id])
    shard.to_forget.update(dict.fromkeys(to_forget_of(snapshot.head)))
    now_ms = shard.clock.now_ms()
    for generation in snapshot.keys:
        shard.idempotency_keys.add_columns(columns_of(generation), now_ms)
    shard.epoch_floor = epoch_floor_of(snapshot.head)
    shard.objects_to_delete = objects_to_delete_of(snapshot.head)
    for session in sessions_of(snapshot.head):
        apply_session(shard, session)


def columns_of(generation: KeyGeneration) -> KeyColumns:
    return KeyColumns(*msgspec.structs.astuple(generation))


def log_unreachable_segments(shard: ShardData, cold: SegmentStore | None) -> None:
    """Log an error if segments are in an object store, or a cold directory, that the settings do not name.

    This does not prevent a start: the other segments are served. Upkeep checks the store, off the loop.
    """
    runs = [run for topic in shard.topics.values() for run in topic.runs if isinstance(run, SealedRun)]
    away = [run for run in runs if run.entry.tier == COLD]
    if not away:
        return
    store_url = store_url_of(shard.settings)
    if not store_url:
        logger.error("object store: %d segments are unreachable: TOPICS_STORE_URL is not set", len(away))
        return
    moved = [run.name for run in away if not run.entry.object_stem]
    if moved and (cold is None or not cold.exists(moved[0].key(DATA))):
        cause = "it lacks them: is it mounted?"
        logger.error("object store: %d segments of %s are unreachable: %s", len(moved), store_url, cause)


def log_missing_segments(shard: ShardState, snapshot: Snapshot, hot: SegmentStore) -> None:
    """Log and count the segments whose `.data` is missing from the data directory.

    They do not prevent a start: reads report their records as damaged, and the others are served.
    """
    for topic in snapshot.topics:
        for entry in topic.segments:
            name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
            if entry.tier == HOT and not entry.object_stem and not hot.exists(name.key(DATA)):
                what = f"seqs {entry.first_seq} to {entry.last_seq}: the file is missing, the start skips it"
                note_damage(shard, name, topic.name, name.key(DATA), what)


def load_topic(
    shard: ShardData, entry: SnapshotTopic, hot: SegmentStore, dead: Mapping[SegmentName, bytes | bytearray]
) -> Topic:
    """Return the topic of an entry, not added to the shard yet; its routes are not loaded."""
    topic = Topic(entry.name, entry.topic_id, entry.epoch, shard.intern_config(entry.config))
    topic.visible = True
    topic.windows_ms = tuple(entry.windows_ms)
    topic.head = entry.head
    topic.next_seq = entry.head + 1
    topic.ceiling = topic.ceiling_logged = entry.ceiling
    topic.earliest_seq = entry.earliest_seq
    topic.evict_floor = entry.evict_floor
    topic.evicted_to = dict(entry.evicted_to)
    topic.ttl_logged = entry.ttl_logged
    topic.last_ts = entry.last_ts
    topic.complete_to = entry.complete_to
    topic.ownership = ownership_of(entry.sections)
    topic.producers = producers_of(entry.sections)
    topic.set_cursors(cursors_of(entry.sections))
    topic.schedules = schedules_of(entry.sections) or topic.schedules
    for lost in entry.lost:
        topic.lost.add(LostRange(*lost))
    runs: list[Run] = [_run(shard, topic, segment, hot, dead) for segment in entry.segments]
    topic.has_files = bool(runs)
    topic.run = TailRun(entry.head + 1, in_memory=topic.is_ephemeral)
    topic.runs = [*runs, topic.run]
    for segment, run in zip(entry.segments, runs, strict=True):
        topic.add_live(*_live(segment, run, topic.earliest_seq))
    # The marks may include later deletes than the entry; their replay finds no record to remove.
    move_earliest(topic, topic.earliest_seq)
    rebuild_tag_order(topic)
    load_queue(topic, entry.sections)
    return topic


def _live(entry: SegmentEntry, run: Run, earliest_seq: int) -> tuple[int, int]:
    """Return the count and bytes of live records in a segment.

    They are counted if the marks differ from those of the entry, or if the index is loaded anyway: one
    rebuilt from a damaged segment has fewer records than the entry says.
    """
    if isinstance(run, SealedRun) and (run.dead is None or run.dead.count(1) == entry.dead_count):
        return entry.live_count, entry.live_bytes
    first = max(run.first_seq, earliest_seq)
    count, size = run.live_totals(first, run.next_seq - 1) if first < run.next_seq else (0, 0)
    if isinstance(run, SealedRun):
        run.live_count, run.live_bytes = count, size
    return count, size


def _run(
    shard: ShardData,
    topic: Topic,
    entry: SegmentEntry,
    hot: SegmentStore,
    dead: Mapping[SegmentName, bytes | bytearray],
) -> Run:
    name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
    marks = _marks(shard, name, entry, dead)
    if entry.is_sealed:
        return SealedRun(shard.segments, name, entry, marks)
    try:
        index = shard.segments.index(name, entry)
    except SegmentDamage as damage:
        # No record of it is readable. The topic continues after it, and reads report the damage.
        logger.error(
            'topic "%s": active segment damaged, appends continue in a new segment: %s', topic.name, damage
        )
        shard.damaged_segments.add(name)
        return SealedRun(shard.segments, name, msgspec.structs.replace(entry, is_sealed=True), marks)
    shard.segments.forget(name)  # The segment will grow, and its index is in the run.
    source, positions = ActiveFile(hot, name, entry), array("Q", index.offsets)
    return TailRun.of_segment(
        source, positions, index.lengths, index.times_ms, TagIndex(is_unknown=True), marks
    )


def _marks(
    shard: ShardData, name: SegmentName, entry: SegmentEntry, dead: Mapping[SegmentName, bytes | bytearray]
) -> bytearray | None:
    """Return the marks of a segment's dead records, or None if it has none.

    There may be more than the entry counts: a checkpoint that wrote marks and then failed left them for
    deletes that follow in the log.
    """
    if entry.dead_count == 0:
        return None
    if name in dead:
        return unpack_marks(dead[name], entry.count)
    try:
        return unpack_marks(shard.segments.dead_set(name, entry).bitmap, entry.count)
    except (DeadDamage, OSError) as error:
        logger.error("segment: %s: dead set unreadable: %s", name.key(""), error)
        raise
