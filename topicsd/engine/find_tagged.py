"""What a delete by tag matches, found on a thread where that may be much: segments have to be read, and very
many records looked at.

All that it may match is there at the call; so what is found is complete, whatever comes meanwhile.

Must not know: what is done with it.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from topicsd.engine.delete_marks import Marks, mark
from topicsd.engine.run import Run
from topicsd.engine.sealed_run import SealedRun
from topicsd.engine.tag_index import TagIndex
from topicsd.engine.tail_run import TailRun
from topicsd.engine.topic import Topic
from topicsd.segment.entry import SegmentDamage

# So many of a run are faster taken out one by one.
FEW_RECORDS: Final = 64

Found = dict[Run, list[int] | Marks]
"""A few seqs of a run, of which some may be dead, or marks."""


class Wanted(NamedTuple):
    tag: bytes
    is_prefix: bool
    below: int


class _Tail(NamedTuple):
    """What is asked of a run that goes on growing, and lets go of its front."""

    run: TailRun
    first_seq: int
    lengths: array[int]
    dead: bytes | None


class Search(NamedTuple):
    wanted: Wanted
    earliest_seq: int
    sealed: list[SealedRun]
    tails: list[_Tail]


class LookedUp(NamedTuple):
    found: Found
    tags: dict[TailRun, TagIndex]
    """Of active segments whose tags were not known since the start."""


def search_of(topic: Topic, wanted: Wanted) -> Search | None:
    """What a thread is to look through; None when the loop finds it as fast."""
    sealed = [run for run in topic.runs if isinstance(run, SealedRun) and run.entry.has_tags]
    tails = [run for run in topic.runs if isinstance(run, TailRun)]
    is_known = not any(run.tags.is_unknown for run in tails)
    if is_known and not sealed and not any(run.tags.is_much(wanted.tag, wanted.is_prefix) for run in tails):
        return None
    kept = [
        _Tail(run, run.first_seq, run.lengths[:], None if run.dead is None else bytes(run.dead))
        for run in tails
    ]
    return Search(wanted, topic.earliest_seq, sealed, kept)


def look_up(search: Search) -> LookedUp | SegmentDamage:
    """On a thread: what is there, with all that taking it out will need."""
    tag, is_prefix, below = search.wanted
    found: Found = {}
    tags: dict[TailRun, TagIndex] = {}
    try:
        for run in search.sealed:
            seqs = run.find_tag(tag, is_prefix, below)
            if len(seqs) > FEW_RECORDS:
                dead = None if run.dead is None else bytes(run.dead)
                found[run] = mark(seqs, run.first_seq, run.lengths, dead, search.earliest_seq)
            elif seqs:
                run.load_index()
                found[run] = seqs
        for tail in search.tails:
            index = tail.run.tags
            if index.is_unknown and tail.run.source is not None:
                index = tags[tail.run] = TagIndex.of(tail.run.source.tags())
            seqs = index.find(tag, is_prefix, below)
            if len(seqs) > FEW_RECORDS:
                seqs = [seq for seq in seqs if seq >= tail.first_seq]
                marks = mark(seqs, tail.first_seq, tail.lengths, tail.dead, search.earliest_seq)
                found[tail.run] = marks
            elif seqs:
                found[tail.run] = seqs
        return LookedUp(found, tags)
    except SegmentDamage as damage:
        return damage
