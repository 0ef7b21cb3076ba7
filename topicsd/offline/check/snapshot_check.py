"""The invariants between the parts of one snapshot, which hold independently of other files.

S1  A topic's id is that of its name. Its epoch is below the end ordinal of the capture, or at most the epoch
    floor, if topics were adopted.
S2  Each topic is complete to an ordinal between the start of replay and the end of the capture.
S3  `1 <= evict_floor <= earliest_seq <= head + 1`, and the floor is above every evicted seq.
S4  The ceiling of a topic that needs one is at or above its head.
S5  Segments are in order and do not overlap. The first live seq is in a segment or a lost range. Seqs between
    segments are lost or deleted: a segment without live records is dropped.
S6  Lost ranges are in order, do not overlap, and end at or below the head.
S7  A segment has at least one record. Its live and dead counts are not negative and do not exceed its count.
S8  The columns of idempotency keys have the same number of entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from shared.contract.names import topic_id
from topicsd.engine.checkpoint.snapshot_format import (
    KeyGeneration,
    Snapshot,
    SnapshotHead,
    SnapshotTopic,
    epoch_floor_of,
)
from topicsd.engine.write.seq_ceiling import needs_ceiling
from topicsd.segment.entry import SegmentEntry

_DIGEST_BYTES = 16
_U64_BYTES = 8
_U32_BYTES = 4


def check_snapshot(snapshot: Snapshot) -> Iterator[tuple[str | None, str]]:
    """Yield each violation: the topic or None, and a sentence."""
    for topic in snapshot.topics:
        for what in _check_topic(snapshot.head, topic):
            yield topic.name, what
    for keys in snapshot.keys:
        if not _columns_fit(keys):
            yield None, f"the columns of the idempotency keys of generation {keys.number} differ in length"


def _check_topic(head: SnapshotHead, topic: SnapshotTopic) -> Iterator[str]:
    if topic.topic_id != topic_id(topic.name):
        yield "its id does not match its name"
    end = max(head.end_ordinal, epoch_floor_of(head) + 1)
    if not topic.epoch < end:
        yield f"its epoch {topic.epoch} is not below the end ordinal of the capture, {end}"
    if not head.start.ordinal <= topic.complete_to <= head.end_ordinal:
        window = f"{head.start.ordinal} to {head.end_ordinal}"
        yield f"it is complete to ordinal {topic.complete_to}, which is outside {window}"
    if topic.config.durability == "ephemeral":
        if topic.segments:
            yield "it is ephemeral, but has segments"
        return
    if not 1 <= topic.evict_floor <= topic.earliest_seq <= topic.head + 1:
        floors = f"floor {topic.evict_floor}, earliest {topic.earliest_seq}, head {topic.head}"
        yield f"its numbers are out of order: {floors}"
    if topic.evict_floor <= max(topic.evicted_to.values(), default=0):
        yield f"its floor {topic.evict_floor} is not above every evicted seq"
    if needs_ceiling(topic.config) and topic.ceiling < topic.head:
        yield f"its ceiling {topic.ceiling} is below its head {topic.head}"
    yield from _check_lost(topic)
    yield from _check_segments(topic)


def _check_lost(topic: SnapshotTopic) -> Iterator[str]:
    before = 0
    for low, high, _ in topic.lost:
        if not before < low <= high <= topic.head:
            yield f"its lost range {low} to {high} is out of order, or ends above the head"
        before = high


def _check_segments(topic: SnapshotTopic) -> Iterator[str]:
    before = 0
    for number, entry in enumerate(topic.segments):
        if not before < entry.first_seq <= entry.last_seq <= topic.head:
            seqs = f"{entry.first_seq} to {entry.last_seq}"
            yield f"its segment with seqs {seqs} overlaps another segment, or ends above the head"
        before = max(before, entry.last_seq)
        if not entry.is_sealed and number < len(topic.segments) - 1:
            yield f"its segment from seq {entry.first_seq} on is active, but not the last segment"
        if not _counts_fit(entry):
            yield f"its segment from seq {entry.first_seq} on has impossible counts"
    first = topic.earliest_seq
    ranges = [(one.first_seq, one.last_seq) for one in topic.segments]
    ranges += [(low, high) for low, high, _ in topic.lost]
    if first <= topic.head and not any(low <= first <= high for low, high in ranges):
        yield f"its first live seq, {first}, is in no segment or lost range"


def _counts_fit(entry: SegmentEntry) -> bool:
    live, dead = entry.live_count, entry.dead_count
    return entry.count > 0 and min(live, dead) >= 0 and live + dead <= entry.count


def _columns_fit(keys: KeyGeneration) -> bool:
    sizes = {
        len(keys.digests) / _DIGEST_BYTES,
        len(keys.records) / _DIGEST_BYTES,
        len(keys.first_seqs) / _U64_BYTES,
        len(keys.counts) / _U32_BYTES,
        len(keys.used_ms) / _U64_BYTES,
        # Snapshots from before this column have none.
        len(keys.topic_ids or keys.used_ms) / _U64_BYTES,
    }
    return len(sizes) == 1
