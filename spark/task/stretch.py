"""What a task reads: stretches of a topic's seqs, each in one segment or in one file of the log.

A stretch says all that it takes to read it: files and numbers, the marks of what is not alive, and for the
log also where each frame stands, since nothing but the log tells that. It is what was alive when the query
was planned, whatever happens to the topic meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from spark.view.shard_view import TopicView
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.segment.dead_file import pack_marks
from topicsd.segment.entry import SegmentEntry, SegmentName


class LogPieces(NamedTuple):
    """Records of a file of the log: arrays of numbers, as bytes."""

    file: int
    """By its first ordinal."""
    offsets: bytes
    lengths: bytes
    stamps: bytes
    copies: bytes
    """A mark for each record that is a copy, of which the original stands there; empty when none is."""


class Stretch(NamedTuple):
    topic: str
    topic_id: int
    epoch: int
    shard: int
    first_seq: int
    last_seq: int
    dead: bytes
    """A bitmap from `first_seq` on, empty when all are alive."""
    size_bytes: int
    """Of the frames, about."""
    segment: tuple[SegmentName, SegmentEntry] | None
    log: LogPieces | None

    @property
    def record_count(self) -> int:
        return self.last_seq - self.first_seq + 1


class StretchPartition(InputPartition):
    """Some stretches of one shard."""

    def __init__(self, shard: int, stretches: list[Stretch]) -> None:
        super().__init__((shard, stretches[0].topic, stretches[0].first_seq))
        self.shard = shard
        self.stretches = stretches


def stretches_of(view: TopicView, first: int, last: int, records_max: int) -> Iterator[Stretch]:
    """What is alive and on the disk of the seqs from `first` to `last`, at most so many records each."""
    topic = view.topic
    last = min(last, view.durable)
    for run in topic.runs:
        low, high = max(first, run.first_seq, topic.earliest_seq), min(last, run.next_seq - 1)
        if isinstance(run, SealedRun) and not run.live_count:
            continue
        while low <= high:
            upto = min(high, low + records_max - 1)
            if run.next_live(low) <= upto:
                if isinstance(run, SealedRun):
                    yield _of_segment(view, run.name, run.entry, run.dead, low, upto)
                elif isinstance(run, TailRun) and run.source is not None:
                    # Only what a checkpoint has copied is in such a run.
                    yield _of_segment(view, run.source.name, run.source.entry, run.dead, low, upto)
                elif isinstance(run, TailRun):
                    yield from _of_log(view, run, low, upto)
            low = upto + 1


def _marks(dead: bytearray | None, first_seq: int, low: int, high: int) -> bytes:
    marks = b"" if dead is None else dead[low - first_seq : high - first_seq + 1]
    return pack_marks(marks) if any(marks) else b""


def _of_segment(
    view: TopicView, name: SegmentName, entry: SegmentEntry, dead: bytearray | None, low: int, high: int
) -> Stretch:
    topic = view.topic
    size = entry.data_bytes * (high - low + 1) // max(1, entry.count)
    marks = _marks(dead, entry.first_seq, low, high)
    place = (topic.name, topic.topic_id, topic.epoch, view.shard)
    return Stretch(*place, low, high, marks, size, (name, entry), None)


def _of_log(view: TopicView, run: TailRun, low: int, high: int) -> Iterator[Stretch]:
    """One for each file of the log; where there are copies, frames do not stand there in their order."""
    topic = view.topic
    at, stop = low - run.first_seq, high - run.first_seq + 1
    places = np.array(run.places[at:stop], dtype=np.int64)
    numbers = np.searchsorted(view.wal_starts, places, side="right") - 1
    changes = np.flatnonzero(np.diff(numbers)) + 1
    for begin, end in pairwise([0, *changes.tolist(), stop - at]):
        file, start = view.wal_file(int(numbers[begin]))
        offsets = places[begin:end] - start + FILE_HEADER_BYTES
        here = slice(at + begin, at + end)
        lengths, stamps = run.lengths[here], run.stamps[here]
        copies = run.copies(here.start, here.stop) or b""
        pieces = LogPieces(
            file, offsets.astype(np.uint64).tobytes(), lengths.tobytes(), stamps.tobytes(), copies
        )
        first, last = low + begin, low + end - 1
        dead = _marks(run.dead, run.first_seq, first, last)
        place = (topic.name, topic.topic_id, topic.epoch, view.shard)
        yield Stretch(*place, first, last, dead, sum(lengths), None, pieces)


class PartitionSize(NamedTuple):
    records_max: int
    bytes_max: int | None = None
    partitions_min: int = 1


def divided(
    stretches: list[Stretch], views: Mapping[str, TopicView], wanted: PartitionSize
) -> list[StretchPartition]:
    """As partitions, so small that there are as many as are wanted."""
    total = sum(stretch.record_count for stretch in stretches)
    enough = max(1, min(wanted.records_max, -(-total // wanted.partitions_min)))
    if enough < wanted.records_max:
        stretches = [
            piece
            for one in stretches
            for piece in stretches_of(views[one.topic], one.first_seq, one.last_seq, enough)
        ]
    return partitions_of(stretches, enough, wanted.bytes_max)


def partitions_of(
    stretches: Sequence[Stretch], records_max: int, bytes_max: int | None
) -> list[StretchPartition]:
    """Neighbours of one shard together, up to the bounds, since a task costs more than a segment of 10,000
    records; and about equal, or the last ones would be waited for.

    Spark takes a list that is empty for one partition that is None; whoever reads has to know.
    """
    partitions = []
    for shard, found in groupby(sorted(stretches, key=_shard), key=_shard):
        ones = list(found)
        full = _groups(ones, records_max, bytes_max, 1)
        even = _groups(ones, records_max, bytes_max, len(full))
        groups = even if len(even) == len(full) else full
        partitions += [StretchPartition(shard, group) for group in groups]
    return partitions


def _shard(stretch: Stretch) -> int:
    return stretch.shard


def _groups(
    stretches: list[Stretch], records_max: int, bytes_max: int | None, count: int
) -> list[list[Stretch]]:
    """Up to the bounds, and no more in one than ends behind its part of so many equal ones."""
    total = sum(stretch.size_bytes for stretch in stretches)
    groups: list[list[Stretch]] = []
    records = size = before = 0
    for stretch in stretches:
        records += stretch.record_count
        size += stretch.size_bytes
        fits = records <= records_max and (bytes_max is None or size <= bytes_max)
        if groups and fits and before * count < len(groups) * total:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
            records, size = stretch.record_count, stretch.size_bytes
        before += stretch.size_bytes
    return groups
