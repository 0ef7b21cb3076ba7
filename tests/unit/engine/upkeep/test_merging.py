"""Which segments are merged, how often a record is rewritten, and what a merged segment has."""

from __future__ import annotations

from math import log
from random import Random

import pytest

from tests.unit.segment.written_segment import NAME, PATHS, made_disk, replaced
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep.merging import GROWTH, SMALL, SOURCES_MAX, MergeLimits, groups_to_merge
from topicsd.segment.entry import HOT, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore

LIMITS = MergeLimits(records=1000, bytes=1 << 20)


def entry(first_seq: int, count: int, generation: int = 0) -> SegmentEntry:
    stem = NAME._replace(first_seq=first_seq, generation=generation).object_stem(1, "00000000")
    size = 100 * count
    return SegmentEntry(first_seq, count, generation, size, 0, 0, True, False, HOT, count, size, 0, 0, stem)


class Topic:
    """A topic that gets segments, and whose groups are merged at once."""

    def __init__(self) -> None:
        self.reader = SegmentReader(LocalStore(made_disk(), PATHS.root))
        self.runs: list[Run] = []
        self.rewrites: list[int] = []
        """For each record, how often it was rewritten."""

    def add(self, count: int, **changes: object) -> SealedRun:
        run = self._run(replaced(entry(len(self.rewrites) + 1, count), **changes))
        self.runs.append(run)
        self.rewrites += [0] * count
        return run

    def _run(self, of: SegmentEntry) -> SealedRun:
        return SealedRun(self.reader, NAME._replace(first_seq=of.first_seq, generation=of.generation), of)

    def groups(self, *excluded: SegmentName) -> list[list[int]]:
        return [[run.entry.count for run in group] for group in groups_to_merge(self.runs, LIMITS, excluded)]

    def merge(self) -> None:
        while groups := list(groups_to_merge(self.runs, LIMITS)):
            for group in groups:
                count = sum(run.entry.count for run in group)
                assert 2 <= len(group) <= SOURCES_MAX
                assert LIMITS.size(count, sum(run.live_bytes for run in group)) <= 1
                at = self.runs.index(group[0])
                self.runs[at : at + len(group)] = [self._run(entry(group[0].first_seq, count, 1))]
                for seq in range(group[0].first_seq, group[-1].next_seq):
                    self.rewrites[seq - 1] += 1


@pytest.mark.parametrize("seed", range(6))
def test_a_record_is_rewritten_at_most_once_for_each_factor_of_growth(seed: int) -> None:
    rng = Random(seed)
    topic = Topic()
    sizes = (range(1, 2), range(1, 5), range(1, 400))[seed % 3]
    for _ in range(3000 // sizes.stop):
        topic.add(rng.choice(sizes))
        if rng.random() < 0.5:
            topic.merge()
    topic.merge()
    assert max(topic.rewrites) <= log(LIMITS.records, GROWTH) + 1
    counts = [run.next_seq - run.first_seq for run in topic.runs]
    assert sum(counts) == len(topic.rewrites)
    # Between two segments that are not small, and after the last one, each tier has less than 2 * GROWTH.
    large = sum(count >= SMALL * LIMITS.records for count in counts)
    assert len(counts) < (large + 1) * 2 * GROWTH * (log(LIMITS.records, GROWTH) + 1)


def test_many_small_segments_are_merged_in_batches() -> None:
    topic = Topic()
    for _ in range(150):
        topic.add(1)
    assert list(map(len, topic.groups())) == [SOURCES_MAX, SOURCES_MAX, 21]


def test_few_small_segments_are_left_until_there_are_more() -> None:
    topic = Topic()
    for _ in range(GROWTH):
        topic.add(3)
        assert not topic.groups(), "the newest one is not merged"
    topic.add(3)
    assert topic.groups() == [[3] * GROWTH]


def test_a_merge_that_fills_a_segment_needs_only_two() -> None:
    topic = Topic()
    for _ in range(3):
        topic.add(300)
    assert topic.groups() == [[300, 300]]


def test_a_merge_stays_within_the_limits() -> None:
    topic = Topic()
    for count in (400, 400, 400, 1):
        topic.add(count)
    assert topic.groups() == [[400, 400]]
    heavy = Topic()
    for _ in range(20):
        heavy.add(1, live_bytes=LIMITS.bytes // 10)
    assert list(map(len, heavy.groups())) == [10, 9]


@pytest.mark.parametrize(
    "changes",
    [{"object_stem": ""}, {"live_count": 0}, {"live_bytes": 1 << 20}],
    ids=["local", "dead", "large"],
)
def test_what_may_not_be_merged_divides_a_topic(changes: dict[str, object]) -> None:
    topic = Topic()
    for _ in range(GROWTH - 1):
        topic.add(1)
    topic.add(1, **changes)
    for _ in range(GROWTH):
        topic.add(1)
    assert not topic.groups()
    topic.add(1)
    assert topic.groups() == [[1] * GROWTH]


def test_a_damaged_segment_and_a_gap_divide_a_topic() -> None:
    topic = Topic()
    for _ in range(2 * GROWTH + 1):
        topic.add(1)
    damaged = topic.runs[4]
    assert isinstance(damaged, SealedRun)
    assert topic.groups(damaged.name) == [[1] * (2 * GROWTH - 5)]
    del topic.runs[4]
    assert topic.groups() == [[1] * (2 * GROWTH - 5)]
