"""The first and last seq that a query reads of a topic, and the detection of loss in between.

A position is the seq of the next record to read, like Kafka's offsets. Deleted records are skipped silently.
Records lost to a cap, to age or to a crash are loss, and so is a topic that was created again under its name.
"""

from __future__ import annotations

from spark.errors import DataLoss, SourceError
from spark.source.read_options import EARLIEST, EARLIEST_NUMBER, LATEST, LATEST_NUMBER, Bound, ReadOptions
from spark.view.server_view import ServerTopic, ServerView
from spark.view.shard_view import DirectoryView, TopicView
from topicsd.engine.records.lost_range import LostRange

NEVER_HERE = "they never were here: this is an older copy, or the start is wrong"


def check_topics(view: DirectoryView | ServerView, options: ReadOptions) -> None:
    """Check that every topic named in the options exists.

    A stream that has begun follows its checkpoint and skips this check.
    """
    for name in options.selection.names:
        if name not in view.topics:
            raise SourceError(f'there is no topic "{name}" in {view.place}')
    for name, shards in options.selection.shards.items():
        if shards != [view.topics[name].shard]:
            raise SourceError(
                f'assign: topic "{name}" is in shard {view.topics[name].shard}, not in {shards}'
            )
    for option, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        named = bound.seqs if bound.seqs is not None else bound.stamps
        if named is not None and set(named) != set(view.topics):
            other = sorted(set(named) ^ set(view.topics))[0]
            told = "is not among the topics that are read" if other in named else "has no offset in it"
            raise SourceError(f'{option}: has to name each topic that is read: "{other}" {told}')


def start_of(view: TopicView | ServerTopic, options: ReadOptions) -> int:
    bound = options.start
    ts = _stamp(bound, view.name)
    if ts is not None:
        found = view.seq_at(ts)
        if found is not None and found < view.end:
            return found
        if not options.latest_if_young:
            option = "startingTimestamp" if bound.stamps is None else "startingOffsetsByTimestamp"
            raise SourceError(
                f'{option}: topic "{view.name}" has no record that is as young as {ts}; '
                "startingOffsetsByTimestampStrategy=latest begins behind its last one"
            )
        return view.end
    return _position(view, _named(bound, view.name, EARLIEST_NUMBER))


def end_of(view: TopicView | ServerTopic, options: ReadOptions) -> int:
    """Return the seq after the last one to read."""
    bound = options.end
    if bound.ts is not None:
        found = view.seq_at(bound.ts)
        return view.end if found is None else min(found, view.end)
    wanted = _position(view, _named(bound, view.name, LATEST_NUMBER))
    if wanted > view.end:
        raise SourceError(
            f'endingOffsets: topic "{view.name}" is on the disk up to seq {view.durable}, '
            f"so its end is at most {view.end}, not {wanted}"
        )
    return wanted


def _stamp(bound: Bound, name: str) -> int | None:
    return bound.ts if bound.stamps is None else bound.stamps[name]


def _named(bound: Bound, name: str, default: int) -> int:
    if bound.seqs is not None:
        return bound.seqs[name]
    return {EARLIEST: EARLIEST_NUMBER, LATEST: LATEST_NUMBER}.get(bound.word, default)


def _position(view: TopicView | ServerTopic, seq: int) -> int:
    if seq == EARLIEST_NUMBER:
        return min(view.earliest, view.end)
    if seq == LATEST_NUMBER:
        return view.end
    return max(1, seq)


def refuse_loss(view: TopicView | ServerTopic, start: int, end: int) -> None:
    """Raise DataLoss if records from `start` up to `end` are lost or never existed here.

    Deleted records are not loss. Records that never existed mean that the directory is an older copy of the
    one a checkpoint belongs to: new records of such a topic get seqs that the query has already passed, and
    would never be read.
    """
    lost = None
    if start > view.head + 1:
        lost = LostRange(view.head + 1, start - 1, NEVER_HERE)
    elif start < end:
        lost = LostRange(view.end, end - 1, NEVER_HERE) if end > view.end else view.lost(start, end)
    if lost is not None:
        raise loss_of(view.name, start, view.earliest, lost)


def recreated(view: TopicView | ServerTopic, start: int) -> DataLoss:
    return loss_of(view.name, start, view.earliest, LostRange(start, start, "recreated"))


def loss_of(topic: str, wanted: int, earliest: int, lost: LostRange) -> DataLoss:
    first, last, reason = lost
    gone = (
        f"seqs {first} to {last} are gone ({reason})" if last > first else f"seq {first} is gone ({reason})"
    )
    return DataLoss(
        f'topic "{topic}": wanted from seq {wanted}, earliest is {earliest}: {gone}; '
        "failOnDataLoss=false reads on without them"
    )
