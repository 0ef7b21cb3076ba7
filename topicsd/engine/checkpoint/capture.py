"""One topic's state for a snapshot, taken in one step of the event loop, complete to an ordinal of the log.

All published frames of a topic precede its unpublished ones in the log. Let C be the ordinal of the first
request of the topic that still waits: all its frames below C are in the capture, and none from C on. Replay
relies on that. A ceiling or a floor whose frame is on its way may be captured and replayed: it has the same
effect twice.

From here on, the records that no segment has are in runs that do not grow, and can be copied over many turns.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.engine.ownership.owned import ownership_section
from topicsd.engine.pending import PendingEntry, PendingFrame
from topicsd.engine.queue.state import queue_section
from topicsd.engine.read.cursors import cursor_section
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.route import route_section
from topicsd.engine.schedules.schedule import schedule_section
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.seq_ceiling import PendingLowering
from topicsd.segment.entry import DroppedSegment, SegmentEntry, SegmentName


class PendingRequests(NamedTuple):
    """The requests on their way to the log, by topic, at one moment."""

    first_ordinals: dict[Topic, int]
    """For entries that are published in order, and for frames that are not written yet."""
    ceilings: dict[Topic, int]
    """Ceilings before a lowering that may still be undone."""
    next_ordinal: int


class DeadMarks(NamedTuple):
    """The dead records in a range of seqs, one byte each, at the time of the capture."""

    first_seq: int
    marks: bytes


class Capture(NamedTuple):
    """One topic's state, with the runs to copy."""

    topic: Topic
    entry: SnapshotTopic
    """Complete except for its segments."""
    sealed: list[SegmentEntry]
    changed: list[tuple[SealedRun, bytes]]
    """Segments with more dead records than their files list, and the marks."""
    active: TailRun | None
    tails: list[TailRun]
    """Runs whose records are in no segment."""
    dead: list[DeadMarks]
    """Marks of the active run and of the tails."""
    dropped: list[DroppedSegment]
    exported: list[SegmentName]


def pending_requests(shard: ShardState) -> PendingRequests:
    """Return the requests that are on their way to the log now."""
    first_ordinals: dict[Topic, int] = {}
    ceilings: dict[Topic, int] = {}
    batch = shard.log.batch
    written_to = batch.next_ordinal - batch.frame_count
    for entry in shard.log.unpublished():
        topic = entry.topic if isinstance(entry, PendingEntry | PendingFrame) else None
        if topic is None or (entry.ordinal < written_to and not isinstance(entry, PendingEntry)):
            # A written frame outside the order takes effect before its sync, and records after it are
            # published before that sync. So the capture has its effect, and is complete beyond it.
            continue
        first_ordinals[topic] = min(first_ordinals.get(topic, entry.ordinal), entry.ordinal)
        if isinstance(entry, PendingLowering):
            ceilings[topic] = max(ceilings.get(topic, 0), entry.ceiling_before)
    return PendingRequests(first_ordinals, ceilings, batch.next_ordinal)


def capture(topic: Topic, pending: PendingRequests) -> Capture:
    """Capture a topic and end its tail run, so that the run can be copied."""
    complete_to = pending.first_ordinals.get(topic, pending.next_ordinal)
    ceiling = max(topic.ceiling, topic.ceiling_logged, pending.ceilings.get(topic, 0))
    dropped, topic.dropped = topic.dropped, []
    exported, topic.exported = topic.exported, []
    if topic.is_ephemeral:
        # As in the log: no records, and the head is known by its ceiling only.
        nothing = snapshot_entry(topic, complete_to, ceiling, has_records=False)
        return Capture(topic, nothing, [], [], None, [], [], dropped, exported)
    if topic.run.next_seq > topic.run.first_seq:
        topic.begin_run(topic.head + 1)
    sealed: list[SegmentEntry] = []
    changed: list[tuple[SealedRun, bytes]] = []
    active: TailRun | None = None
    tails: list[TailRun] = []
    dead: list[DeadMarks] = []
    for run in topic.runs[:-1]:
        if isinstance(run, SealedRun):
            if run.is_changed:
                run.entry = msgspec.structs.replace(
                    run.entry, live_count=run.live_count, live_bytes=run.live_bytes, dead_count=run.dead_count
                )
            if run.dead is not None and run.dead_count != run.saved_dead_count:
                changed.append((run, bytes(run.dead)))
            sealed.append(run.entry)
            continue
        assert isinstance(run, TailRun)
        if run.dead is not None:
            dead.append(DeadMarks(run.first_seq, bytes(run.dead)))
        if run.source is not None:
            active = run
        else:
            run.is_being_copied = True
            tails.append(run)
    entry = snapshot_entry(topic, complete_to, ceiling, has_records=True)
    return Capture(topic, entry, sealed, changed, active, tails, dead, dropped, exported)


def snapshot_entry(topic: Topic, complete_to: int, ceiling: int, has_records: bool) -> SnapshotTopic:
    return SnapshotTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        epoch=topic.epoch,
        config=topic.config,
        complete_to=complete_to,
        head=topic.head if has_records else 0,
        ceiling=ceiling,
        earliest_seq=topic.earliest_seq if has_records else 1,
        evict_floor=topic.evict_floor if has_records else 1,
        evicted_to=dict(topic.evicted_to) if has_records else {},
        ttl_logged=topic.evicted_to.get("ttl", 0) if has_records else 0,
        lost=[(lost.first, lost.last, lost.reason) for lost in topic.lost.ranges] if has_records else [],
        last_ts=topic.last_ts,
        windows_ms=list(topic.windows_ms),
        segments=[],
        sections={
            **route_section(topic),
            **ownership_section(topic),
            **schedule_section(topic),
            **(_sections(topic) if has_records else {}),
        },
    )


def _sections(topic: Topic) -> dict[str, bytes]:
    producers = {} if topic.producers is None else topic.producers.section()
    return {**producers, **cursor_section(topic), **queue_section(topic)}
