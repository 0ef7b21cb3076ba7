"""Merging: adjacent small exported segments become one, so that a slow topic has few objects.

A topic with few writes is exported at each interval, in a segment of its own each time. Which segments are
merged is decided here; they are rewritten as in a compaction (`compaction.py`), and exported again.

M1  Only segments that the store has are merged, and never the newest of them. So the segments that are not
    exported for the first time are always the last ones of a topic.
M2  The size of a segment is its share of the limits at which a segment is sealed. A merge pays if the new
    segment has GROWTH times the size of each source, or is not small itself, which is final. So a record is
    rewritten at most once for each factor of GROWTH between its first segment and the limits, and once more.
M3  One merge has at most SOURCES_MAX sources, and its result is within the limits.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from shared.settings.settings import Settings
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.segment.entry import SegmentName

GROWTH: Final = 8
SMALL: Final = 0.5
"""A segment of at least this size is not merged."""
SOURCES_MAX: Final = 64


class MergeLimits(NamedTuple):
    """The limits of a segment."""

    records: int
    bytes: int

    @classmethod
    def of(cls, settings: Settings) -> MergeLimits:
        return cls(settings.segment_max_events, settings.segment_max_bytes)

    def size(self, records: int, size_bytes: int) -> float:
        """Return the share of the limits; 1 is a full segment."""
        return max(records / self.records, size_bytes / self.bytes)


def groups_to_merge(
    runs: Sequence[Run], limits: MergeLimits, excluded: Container[SegmentName] = ()
) -> Iterator[list[SealedRun]]:
    """Yield groups of segments of a topic, each to be merged into one; none of `excluded`."""
    for adjacent in _adjacent_runs(runs, limits, excluded):
        at = 0
        while at + 1 < len(adjacent):
            count = _count_to_merge(adjacent, at, limits)
            if count:
                yield adjacent[at : at + count]
            at += count or 1


def _adjacent_runs(
    runs: Sequence[Run], limits: MergeLimits, excluded: Container[SegmentName]
) -> Iterator[list[SealedRun]]:
    """Yield longest lists of adjacent segments that may be merged (M1)."""
    newest = next(
        (run for run in reversed(runs) if isinstance(run, SealedRun) and run.entry.object_stem), None
    )
    adjacent: list[SealedRun] = []
    for run in runs:
        may_merge = (
            isinstance(run, SealedRun)
            and run.entry.object_stem != ""
            and run is not newest
            and run.live_count > 0
            and limits.size(run.entry.count, run.live_bytes) < SMALL
            and run.name not in excluded
        )
        if adjacent and not (may_merge and adjacent[-1].next_seq == run.first_seq):
            yield adjacent
            adjacent = []
        if may_merge:
            assert isinstance(run, SealedRun)
            adjacent.append(run)
    if adjacent:
        yield adjacent


def _count_to_merge(adjacent: list[SealedRun], at: int, limits: MergeLimits) -> int:
    """Return how many segments from `at` on make the largest merge that pays (M2, M3); 0 when none does."""
    count = records = size_bytes = 0
    largest = 0.0
    for number, run in enumerate(islice(adjacent, at, at + SOURCES_MAX), 1):
        records += run.entry.count
        size_bytes += run.live_bytes
        size = limits.size(records, size_bytes)
        if size > 1:
            break
        largest = max(largest, limits.size(run.entry.count, run.live_bytes))
        if number > 1 and (size >= SMALL or size >= GROWTH * largest):
            count = number
    return count
