"""Seeks: the position after which a read begins at a time, or a number of records from the end.

Times do not decrease within a topic, so a time is found by two binary searches: among the runs by their last
times, then in one run by its index. Only the index of a sealed segment may have to be read, on a thread. A
position by time is directly after the last record known to be older, so that a reader receives the tombstone
of a range lost in between. Loss before the earliest seq is not reported: the age of those records is unknown.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from functools import partial

from shared.contract.seek import Seek
from topicsd.engine.pending import call_reply
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import Reply
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.engine")


def seek(shard: ShardState, name: str, request: Seek, reply: Reply[int]) -> None:
    """Find the position of a seek; `reply` gets it now or after a disk read, or a `Refusal`."""
    topic = shard.visible_topic(name)
    if topic is None:
        reply(missing_topic(shard, name))
        return
    evict_expired(shard, topic, shard.clock.now_ms())
    ts = request.from_ts
    if ts is None:
        assert request.last is not None
        reply(_before_last(topic, request.last))
        return
    at = min(bisect_left(topic.runs, ts, key=_last_ts), len(topic.runs) - 1)
    run = topic.runs[at]
    if isinstance(run, SealedRun) and run.entry.first_ts < ts:
        shard.read_on_thread(run, partial(_count_older, run, ts), partial(_on_older_count, topic, run, reply))
    elif isinstance(run, TailRun) and (older := bisect_left(run.times_ms, ts)):
        reply(_position(topic, run.first_seq + older - 1))
    else:
        reply(_position(topic, topic.runs[at - 1].next_seq - 1 if at else 0))


def _last_ts(run: Run) -> int:
    if isinstance(run, SealedRun):
        return run.entry.last_ts
    assert isinstance(run, TailRun)
    # Only the last run may be empty; its future records are young enough for every seek.
    return run.times_ms[-1] if run.times_ms else NEVER


def _count_older(run: SealedRun, ts: int) -> int | SegmentDamage:
    """Return the number of records of the run that are older than `ts`; runs on a thread."""
    try:
        run.load_index()
        return bisect_left(run.times_ms, ts)
    except SegmentDamage as damage:
        return damage


def _on_older_count(
    topic: Topic, run: SealedRun, reply: Reply[int], older: int | SegmentDamage | OSError
) -> None:
    if not isinstance(older, int):
        # Fall back to the start of the segment: too many records are better than none, and reads report the
        # damage.
        logger.error(
            'topic "%s": timestamp lookup failed, reading from the start of the segment: %s',
            topic.name,
            older,
        )
        older = 0
    call_reply(reply, _position(topic, run.first_seq + older - 1))


def _position(topic: Topic, seq: int) -> int:
    return max(seq, topic.earliest_seq - 1)


def _before_last(topic: Topic, count: int) -> int:
    if not count:
        return topic.head
    if count < topic.live_count:
        for run in reversed(topic.runs):
            low = max(run.first_seq, topic.earliest_seq)
            alive = count_live(run, low)
            if count <= alive:
                return _nth_last(run, low, count) - 1
            count -= alive
    return topic.earliest_seq - 1


def count_live(run: Run, first: int) -> int:
    """Return the number of live records from `first` on; needs no index."""
    if first >= run.next_seq:
        return 0
    return run.next_seq - first if run.dead is None else run.dead.count(0, first - run.first_seq)


def _nth_last(run: Run, low: int, count: int) -> int:
    """Return the seq from which on `count` records of the run are live."""
    if run.dead is None:
        return run.next_seq - count
    seqs = range(low, run.next_seq)
    return seqs[bisect_right(seqs, -count, key=lambda seq: -count_live(run, seq)) - 1]
