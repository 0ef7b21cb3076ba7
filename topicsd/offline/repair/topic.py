"""The repair of a topic's entry in the snapshot when some of its segments are damaged.

The decisions are pure functions, except that they read the dead sets of good segments when the first live seq
has to be found. An unreadable record that was live becomes part of a lost range. An unreadable record that
was deleted, or is before the earliest seq, is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import msgspec

from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.offline.check.segment_check import SegmentFacts
from topicsd.offline.repair.salvage import REASON
from topicsd.offline.repair.segment import GoodRecords, good_records
from topicsd.segment.entry import SegmentEntry

ReadMarks = Callable[[SegmentEntry], bytearray | None]


class Action(Enum):
    """The action of a repair on one segment."""

    REWRITE = "rewrite"
    """Write the good records as files of the next generation."""
    DROP = "drop"
    """Remove the segment from the topic: no live record of it can be read."""
    RECOUNT = "recount"
    """Rebuild the entry from the files."""
    LEAVE = "leave"


class SegmentRepair(NamedTuple):
    """The repair of one segment."""

    facts: SegmentFacts
    action: Action
    good: GoodRecords


class TopicRepair(NamedTuple):
    """The repair of one topic's entry."""

    topic: SnapshotTopic
    """The entry as it is in the snapshot."""
    segments: dict[int, SegmentRepair]
    """The faulty segments by first seq."""
    lost: list[tuple[int, int]]
    """The ranges of seqs that are given up."""
    earliest_seq: int

    @property
    def changes_entry(self) -> bool:
        return any(repair.action is not Action.LEAVE for repair in self.segments.values())

    def entry_with(self, segments: list[SegmentEntry]) -> SnapshotTopic:
        lost = [*self.topic.lost, *((first, last, REASON) for first, last in self.lost)]
        return msgspec.structs.replace(
            self.topic, segments=segments, lost=sorted(lost), earliest_seq=self.earliest_seq
        )


def repair_topic(
    topic: SnapshotTopic, faults: list[SegmentFacts], revives: bool, read_marks: ReadMarks
) -> TopicRepair:
    """Return the repair of a topic's entry.

    With `revives`, all records of a segment whose deletes are unknown become live.
    """
    segments, lost = {}, []
    for facts in faults:
        good = good_records(facts, topic.earliest_seq)
        action = _action(topic, facts, good, revives)
        segments[facts.entry.first_seq] = SegmentRepair(facts, action, good)
        if action is Action.REWRITE:
            lost += good.lost
        elif action is Action.DROP and facts.entry.last_seq >= topic.earliest_seq:
            lost.append((max(facts.entry.first_seq, topic.earliest_seq), facts.entry.last_seq))
    repair = TopicRepair(topic, segments, lost, topic.earliest_seq)
    if any(first <= topic.earliest_seq <= last for first, last in lost):
        repair = repair._replace(earliest_seq=next(_live_seqs(repair, read_marks), topic.head + 1))
    return repair


def _action(topic: SnapshotTopic, facts: SegmentFacts, good: GoodRecords, revives: bool) -> Action:
    if facts.in_dead and not revives:
        return Action.LEAVE
    if facts.damage:
        is_alive = good.first_live(facts.entry.first_seq, topic.earliest_seq) is not None
        return Action.REWRITE if is_alive else Action.DROP
    has_no_tags = bool(facts.in_tags) and not facts.entry.has_tags
    return Action.RECOUNT if facts.in_dead or facts.in_entry or has_no_tags else Action.LEAVE


def _live_seqs(repair: TopicRepair, read_marks: ReadMarks) -> Iterator[int]:
    """Yield the first live seq of each segment, in order."""
    for entry in repair.topic.segments:
        if entry.last_seq < repair.topic.earliest_seq:
            continue
        one = repair.segments.get(entry.first_seq)
        if one is not None and one.action is Action.DROP:
            continue
        dead = one.good.dead if one is not None else read_marks(entry) or bytearray(entry.count)
        first_seq = GoodRecords(dead, []).first_live(entry.first_seq, repair.topic.earliest_seq)
        if first_seq is not None:
            yield first_seq
