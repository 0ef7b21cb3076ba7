"""What becomes of a topic's entry in the snapshot when some of its segments are damaged.

Pure, but for the dead sets of segments that nothing is wrong with, which are asked for when the first live
seq moves through them. A record that cannot be read and was alive is in a lost range from here on; one that
was deleted, or stood in front of the floor, is not missed by anybody.
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
    REWRITE = "rewrite"
    """The good records go into files of the next generation."""
    DROP = "drop"
    """Nothing in it that can be read is alive."""
    RECOUNT = "recount"
    """The entry is made again from the files."""
    LEAVE = "leave"


class SegmentMend(NamedTuple):
    facts: SegmentFacts
    action: Action
    kept: Kept


class TopicMend(NamedTuple):
    topic: TopicEntry
    """As it is in the snapshot."""
    segments: dict[int, SegmentMend]
    """By first seq, those with which something is wrong."""
    lost: list[tuple[int, int]]
    """The seqs that are given up."""
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
    """`revives`: a segment whose deletes are unknown is taken with all that is in it."""
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
    """The first live seq of each segment."""
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
