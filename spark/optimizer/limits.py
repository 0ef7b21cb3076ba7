"""Limits of a query: the topics, seqs, times and tag that its filters allow.

Times and tags only narrow a read and never decide it alone. Record times never decrease within a topic, so a
time range is a range of seqs: of segments in the plan, and of records in the task, which reads the index
anyway. Tags are looked up in the tag file of a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from spark.source.read_options import SEQ_MAX
from spark.task.file_range import FileRange
from spark.view.query_topic import QueryTopic
from spark.view.topic_view import TopicView
from topicsd.segment.entry import SegmentDamage


class Limits(msgspec.Struct, frozen=True):
    topics: frozenset[str] | None = None
    first: int = 0
    last: int = SEQ_MAX
    from_ms: int = 0
    to_ms: int = SEQ_MAX
    """The newest time that is included."""
    tag: bytes | None = None
    is_prefix: bool = False

    def includes_topic(self, name: str) -> bool:
        return self.topics is None or name in self.topics

    @property
    def has_times(self) -> bool:
        return self.from_ms > 0 or self.to_ms < SEQ_MAX

    def seqs(self, view: QueryTopic, first: int, last: int) -> tuple[int, int]:
        first, last = max(first, self.first), min(last, self.last)
        if self.has_times:
            low, high = view.seqs_between(self.from_ms, self.to_ms)
            first, last = max(first, low), min(last, high)
        return first, last

    def with_tags(self, view: TopicView, ranges: Iterable[FileRange]) -> Iterator[FileRange]:
        """Yield the ranges that may contain the tag; skip sealed segments without it.

        A damaged segment is yielded: the task decides what its damage means.
        """
        for file_range in ranges:
            if self.tag is None or file_range.segment is None or not file_range.segment[1].is_sealed:
                yield file_range
                continue
            name, entry = file_range.segment
            below = file_range.last_seq + 1
            try:
                seqs = view.segments.find_tag(name, entry, self.tag, self.is_prefix, below)
            except SegmentDamage:
                yield file_range
                continue
            if seqs and seqs[-1] >= file_range.first_seq:
                yield file_range


NO_LIMITS = Limits()
