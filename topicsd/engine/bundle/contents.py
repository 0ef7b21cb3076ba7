"""The parts of a bundle: the final entry of a topic, the marks of its segments, and its idempotency keys.

`gather_apart` makes the bundle of a topic without a change of its shard. `gather_loaded` does so without a
running server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from topicsd.engine.bundle.bundle_format import Bundle, SegmentMarks, check_bundle, without_ordinals
from topicsd.engine.checkpoint.capture import Capture, PendingRequests, capture
from topicsd.engine.checkpoint.install import undo_capture
from topicsd.engine.checkpoint.segment_copy import Files, SegmentBounds, SegmentCopy, marks_of
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration, SnapshotTopic
from topicsd.engine.jobs import BackgroundJob, run_blocking
from topicsd.engine.queue.state import queue_section
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.engine.write.idempotency import IdempotencyKeys
from topicsd.segment.dead_file import pack_marks
from topicsd.segment.entry import DATA, INDEX, SegmentEntry
from topicsd.segment.index_file import ENTRY_BYTES
from topicsd.segment.store import LocalStore


class NotMovable(Exception):
    """A topic that cannot be made a bundle; the message says why."""


def gather_loaded(shard: ShardData, topic: Topic, files: Files, *, heads_exact: bool) -> Bundle:
    """Return the bundle of a topic of a loaded shard; raise NotMovable for a damaged active segment.

    `files.log` is the loaded log. Unless the heads are exact, the seqs up to the ceiling are lost, as a start
    would report it.
    """
    is_final = heads_exact and not topic.is_ephemeral
    head = topic.head if is_final else max(topic.head, topic.ceiling)
    return run_blocking(gather_apart(shard, topic, files, head))


def gather_apart(shard: ShardData, topic: Topic, files: Files, head: int) -> BackgroundJob[Bundle]:
    """Return the bundle of a topic that does not change meanwhile; raise NotMovable.

    What no sealed segment has is written into segments below `files.paths`: records of the log, and the
    active segment, which is copied first. The shard and its directory stay as they are.
    """
    captured = capture(topic, PendingRequests({}, {}, 0))
    had_files = topic.has_files
    try:
        # Both in the turn of the capture: reads may evict by age from the next turn on.
        entry = final_entry(topic, captured.entry, [], head if topic.is_ephemeral else topic.head)
        marks = sealed_marks(topic)
        if captured.active is not None:
            yield partial(_copy_active, shard, files, captured.active)
        bounds = SegmentBounds.of(shard.settings)
        copy = SegmentCopy(files, bounds, captured, shard.clock.now_ms(), seals_all=True)
        yield from copy.run()
        if copy.damages:
            raise NotMovable(f'topic "{topic.name}" has a damaged active segment: {copy.damages[0]}')
        marks |= copied_marks(copy, captured)
        entry = msgspec.structs.replace(entry, segments=copy.entries())
        if not topic.is_ephemeral:
            entry = end_at(entry, head, "crash")
        keys: list[KeyGeneration] = []
        for generation in keys_of(shard.idempotency_keys, topic):
            keys.append(generation)
            yield None
        return checked_bundle(entry, marks, keys)
    finally:
        topic.has_files = had_files
        undo_capture(captured)


def _copy_active(shard: ShardData, files: Files, active: TailRun) -> None:
    """Copy the valid part of an active segment, to be continued and sealed below `files.paths`."""
    assert active.source is not None
    name, entry = active.source.name, active.source.entry
    target = LocalStore(files.fs, files.paths.root)
    try:
        for suffix, size in ((DATA, entry.data_bytes), (INDEX, entry.count * ENTRY_BYTES)):
            key = name.key(suffix)
            target.put(key, partial(shard.segments.hot.read_range, key), size)
    except OSError as error:
        raise NotMovable(f"{name.key(DATA)}: the active segment cannot be copied: {error}") from error
    finally:
        target.close()


def checked_bundle(entry: SnapshotTopic, marks: Mapping[int, bytes], keys: list[KeyGeneration]) -> Bundle:
    """Return the bundle of a final entry; `marks` are those of its segments by first seq."""
    packed = [
        SegmentMarks(one.first_seq, pack_marks(marks[one.first_seq]))
        for one in entry.segments
        if one.dead_count
    ]
    bundle = without_ordinals(Bundle(entry, packed, keys))
    check_bundle(bundle)
    return bundle


def sealed_marks(topic: Topic) -> dict[int, bytes]:
    """Return the marks of the sealed segments of a topic now, by first seq."""
    return {
        run.first_seq: bytes(run.dead)
        for run in topic.runs
        if isinstance(run, SealedRun) and run.dead is not None
    }


def copied_marks(copy: SegmentCopy, captured: Capture) -> dict[int, bytes]:
    """Return the marks of the segments that a copy made or continued, by first seq."""
    marks = {one.first_seq: marks_of(one.first_seq, one.next_seq, captured) for one in copy.segments}
    return {first_seq: one for first_seq, one in marks.items() if one is not None}


def final_entry(topic: Topic, entry: SnapshotTopic, segments: list[SegmentEntry], head: int) -> SnapshotTopic:
    """Return the entry of a topic as another shard continues it after `head`, with all leases."""
    entry = msgspec.structs.replace(entry, segments=segments)
    if topic.is_ephemeral:
        return msgspec.structs.replace(entry, ceiling=head)
    sections = {**entry.sections, **queue_section(topic, with_leases=True)}
    return end_at(msgspec.structs.replace(entry, sections=sections), head, "crash")


def end_at(entry: SnapshotTopic, head: int, reason: str) -> SnapshotTopic:
    """Return the entry with the seqs after its head, up to `head`, lost for this reason.

    For an owner that is gone: the seqs up to its ceiling may have been given out.
    """
    assert head >= entry.head
    if head == entry.head:
        return msgspec.structs.replace(entry, ceiling=min(entry.ceiling, head))
    is_empty = not any(one.live_count for one in entry.segments)
    return msgspec.structs.replace(
        entry,
        head=head,
        ceiling=head,
        earliest_seq=head + 1 if is_empty else entry.earliest_seq,
        lost=[*entry.lost, (entry.head + 1, head, reason)],
    )


def keys_of(keys: IdempotencyKeys, topic: Topic) -> Iterator[KeyGeneration]:
    """Yield the idempotency keys of a topic, and those of unknown topics, some at a time."""
    windows_ms = set(topic.windows_ms)
    for columns in keys.columns():
        if columns.window_ms in windows_ms and (own := columns.of_topic(topic.topic_id)) is not None:
            yield KeyGeneration(*own)
