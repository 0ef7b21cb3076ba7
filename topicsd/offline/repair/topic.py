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

from topicsd.engine.checkpoint.snapshot_format import TopicEntry
from topicsd.offline.check.segment_check import SegmentFacts
from topicsd.offline.repair.salvage import REASON
from topicsd.offline.repair.segment import Kept, kept_of
from topicsd.segment.entry import SegmentEntry

Marks = Callable[[SegmentEntry], bytearray | None]


class Action(Enum):
    """The action of a repair on one segment."""

    REWRITE = "rewrite"
    """Write the good records as files of the next generation."""
    DROP = "drop"
    """Remove the segment from the topic: no live record of it can be read."""
    RECOUNT = "recount"
    """Rebuild the entry from the files."""
    LEAVE = "leave"


class SegmentMend(NamedTuple):
    """The repair of one segment."""

    facts: SegmentFacts
    action: Action
    kept: Kept


class TopicMend(NamedTuple):
    """The repair of one topic's entry."""

    topic: TopicEntry
    """The entry as it is in the snapshot."""
    segments: dict[int, SegmentMend]
    """The faulty segments by first seq."""
    lost: list[tuple[int, int]]
    """The ranges of seqs that are given up."""
    earliest_seq: int

    @property
    def changes_entry(self) -> bool:
        return any(mend.action is not Action.LEAVE for mend in self.segments.values())

    def entry_with(self, segments: list[SegmentEntry]) -> TopicEntry:
        lost = [*self.topic.lost, *((first, last, REASON) for first, last in self.lost)]
        return msgspec.structs.replace(
            self.topic, segments=segments, lost=sorted(lost), earliest_seq=self.earliest_seq
        )


def mend_topic(topic: TopicEntry, found: list[SegmentFacts], revives: bool, marks: Marks) -> TopicMend:
    """Return the repair of a topic's entry.

    With `revives`, all records of a segment whose deletes are unknown become live.
    """
    segments, lost = {}, []
    for facts in found:
        kept = kept_of(facts, topic.earliest_seq)
        action = _action(topic, facts, kept, revives)
        segments[facts.entry.first_seq] = SegmentMend(facts, action, kept)
        if action is Action.REWRITE:
            lost += kept.lost
        elif action is Action.DROP and facts.entry.last_seq >= topic.earliest_seq:
            lost.append((max(facts.entry.first_seq, topic.earliest_seq), facts.entry.last_seq))
    mend = TopicMend(topic, segments, lost, topic.earliest_seq)
    if any(first <= topic.earliest_seq <= last for first, last in lost):
        mend = mend._replace(earliest_seq=next(_live_seqs(mend, marks), topic.head + 1))
    return mend


def _action(topic: TopicEntry, facts: SegmentFacts, kept: Kept, revives: bool) -> Action:
    if facts.in_dead and not revives:
        return Action.LEAVE
    if facts.damage:
        is_alive = kept.first_live(facts.entry.first_seq, topic.earliest_seq) is not None
        return Action.REWRITE if is_alive else Action.DROP
    has_no_tags = bool(facts.in_tags) and not facts.entry.has_tags
    return Action.RECOUNT if facts.in_dead or facts.in_entry or has_no_tags else Action.LEAVE


def _live_seqs(mend: TopicMend, marks: Marks) -> Iterator[int]:
    """Yield the first live seq of each segment, in order."""
    for entry in mend.topic.segments:
        if entry.last_seq < mend.topic.earliest_seq:
            continue
        one = mend.segments.get(entry.first_seq)
        if one is not None and one.action is Action.DROP:
            continue
        dead = one.kept.dead if one is not None else marks(entry) or bytearray(entry.count)
        found = Kept(dead, []).first_live(entry.first_seq, mend.topic.earliest_seq)
        if found is not None:
            yield found
