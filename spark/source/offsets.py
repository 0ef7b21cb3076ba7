"""The first and last seq that a query reads of a topic, and the detection of loss in between.

A position is the seq of the next record to read, like Kafka's offsets. Deleted records are skipped silently.
Records lost to a cap, to age or to a crash are loss, and so is a topic that was created again under its name.
"""

from __future__ import annotations

from spark.errors import DataLoss, SourceError
from spark.source.read_options import EARLIEST, EARLIEST_NUMBER, LATEST, LATEST_NUMBER, Bound, ReadOptions
from spark.view.query_topic import QueryTopic
from spark.view.server_view import ServerView
from spark.view.topic_view import FileView
from topicsd.engine.records.lost_range import LostRange

NEVER_WRITTEN = "never written here: the directory is an older copy, or the start is wrong"


def check_topics(view: FileView | ServerView, options: ReadOptions) -> None:
    """Check that every topic named in the options exists.

    A stream that has begun follows its checkpoint and skips this check.
    """
    for name in options.selection.names:
        if name not in view.topics and isinstance(view, FileView) and name in view.departed:
            raise SourceError(f"{view.departed[name]}; read it there, or from the object store")
        if name not in view.topics:
            raise SourceError(f'topic "{name}" does not exist in {view.location}')
    for name, shards in options.selection.shards.items():
        if shards != [view.topics[name].shard]:
            raise SourceError(
                f'assign: topic "{name}" must have shard {view.topics[name].shard}, got {shards}'
            )
    for option, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        by_topic = bound.seqs if bound.seqs is not None else bound.times_ms
        if by_topic is not None and set(by_topic) != set(view.topics):
            topic = sorted(set(by_topic) ^ set(view.topics))[0]
            problem = "is not read" if topic in by_topic else "is missing"
            raise SourceError(f'{option}: must name exactly the topics that are read: "{topic}" {problem}')


def start_of(view: QueryTopic, options: ReadOptions) -> int:
    bound = options.start
    ts = _time_ms_of(bound, view.name)
    if ts is not None:
        seq = view.seq_at(ts)
        if seq is not None and seq < view.end:
            return seq
        if not options.starts_at_latest:
            option = "startingTimestamp" if bound.times_ms is None else "startingOffsetsByTimestamp"
            raise SourceError(
                f'{option}: topic "{view.name}" has no record at or after {ts}; '
                "set startingOffsetsByTimestampStrategy=latest to begin after its last record"
            )
        return view.end
    return _position(view, _seq_of(bound, view.name, EARLIEST_NUMBER))


def end_of(view: QueryTopic, options: ReadOptions) -> int:
    """Return the seq after the last one to read."""
    bound = options.end
    if bound.ts is not None:
        seq = view.seq_at(bound.ts)
        return view.end if seq is None else min(seq, view.end)
    end = _position(view, _seq_of(bound, view.name, LATEST_NUMBER))
    if end > view.end:
        raise SourceError(
            f'endingOffsets: must be at most {view.end} for topic "{view.name}", whose last seq on disk is '
            f"{view.durable}, got {end}"
        )
    return end


def _time_ms_of(bound: Bound, name: str) -> int | None:
    return bound.ts if bound.times_ms is None else bound.times_ms[name]


def _seq_of(bound: Bound, name: str, default: int) -> int:
    if bound.seqs is not None:
        return bound.seqs[name]
    return {EARLIEST: EARLIEST_NUMBER, LATEST: LATEST_NUMBER}.get(bound.word, default)


def _position(view: QueryTopic, seq: int) -> int:
    if seq == EARLIEST_NUMBER:
        return min(view.earliest, view.end)
    if seq == LATEST_NUMBER:
        return view.end
    return max(1, seq)


def refuse_loss(view: QueryTopic, start: int, end: int) -> None:
    """Raise DataLoss if records from `start` up to `end` are lost or never existed here.

    Deleted records are not loss. Records that never existed mean that the directory is an older copy of the
    one a checkpoint belongs to: new records of such a topic get seqs that the query has already passed, and
    would never be read.
    """
    lost = None
    if start > view.head + 1:
        lost = LostRange(view.head + 1, start - 1, NEVER_WRITTEN)
    elif start < end:
        lost = LostRange(view.end, end - 1, NEVER_WRITTEN) if end > view.end else view.lost(start, end)
    if lost is not None:
        raise loss_of(view.name, start, view.earliest, lost)


def recreation_loss(view: QueryTopic, start: int) -> DataLoss:
    return loss_of(view.name, start, view.earliest, LostRange(start, start, "recreated"))


def loss_of(topic: str, start: int, earliest: int, lost: LostRange) -> DataLoss:
    first, last, reason = lost
    gone = (
        f"seqs {first} to {last} are gone ({reason})" if last > first else f"seq {first} is gone ({reason})"
    )
    return DataLoss(
        f'topic "{topic}": read from seq {start}, earliest is {earliest}: {gone}; '
        "set failOnDataLoss=false to skip them"
    )
