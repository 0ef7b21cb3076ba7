"""From a time, or a count from the end, to the cursor behind which a reader finds what was meant.

Times do not decrease within a topic, so a time is found by two searches: among the runs by their last times,
then in one run by its index. Only the index of a sealed segment may have to be read, on a thread. A cursor
by time stands behind the last record that is known to be older: what was lost in between is told to the
reader. What is no longer there at all is not: nobody knows how old it was.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from functools import partial

from shared.contract.seek import Seek
from topicsd.engine.pending import tell
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import Reply
from topicsd.engine.retention.eviction_log import log_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.segment.entry import COLD, SegmentDamage

logger = logging.getLogger("topicsd.engine")


def seek(shard: ShardState, name: str, asked: Seek, reply: Reply) -> None:
    """`reply` gets the cursor, at once or when the disk has answered, or a `Refusal`."""
    topic = shard.visible_topic(name)
    if topic is None:
        reply(topic_not_found(name))
        return
    log_expired(shard, topic, shard.clock.now_ms())
    ts = asked.from_ts
    if ts is None:
        assert asked.last is not None
        reply(_behind_all_but(topic, asked.last))
        return
    at = min(bisect_left(topic.runs, ts, key=_last_ts), len(topic.runs) - 1)
    run = topic.runs[at]
    if isinstance(run, SealedRun) and run.entry.first_ts < ts:
        thread = shard.threads.cold if run.entry.tier == COLD else shard.threads.read
        thread.submit(lambda: _place_in(run, ts), partial(_found, topic, run, reply))
    elif isinstance(run, TailRun) and (place := bisect_left(run.stamps, ts)):
        reply(_cursor(topic, run.first_seq + place - 1))
    else:
        reply(_cursor(topic, topic.runs[at - 1].next_seq - 1 if at else 0))


def _last_ts(run: Run) -> int:
    if isinstance(run, SealedRun):
        return run.entry.last_ts
    assert isinstance(run, TailRun)
    # The last run may be empty; what comes there is never too old.
    return run.stamps[-1] if run.stamps else NEVER


def _place_in(run: SealedRun, ts: int) -> int | SegmentDamage:
    """On a thread: how many of its records are older."""
    try:
        return bisect_left(run.stamps, ts)
    except SegmentDamage as damage:
        return damage


def _found(topic: Topic, run: SealedRun, reply: Reply, place: int | SegmentDamage | OSError) -> None:
    if not isinstance(place, int):
        # More than was asked for is better than nothing; whoever reads it is told of the damage.
        logger.error('topic "%s": where a time begins cannot be told: %s', topic.name, place)
        place = 0
    tell(reply, _cursor(topic, run.first_seq + place - 1))


def _cursor(topic: Topic, seq: int) -> int:
    return max(seq, topic.earliest_seq - 1)


def _behind_all_but(topic: Topic, count: int) -> int:
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
    """How many from `first` on are alive; needs no index."""
    if first >= run.next_seq:
        return 0
    return run.next_seq - first if run.dead is None else run.dead.count(0, first - run.first_seq)


def _nth_last(run: Run, low: int, count: int) -> int:
    """The seq from which on so many are alive."""
    if run.dead is None:
        return run.next_seq - count
    seqs = range(low, run.next_seq)
    return seqs[bisect_right(seqs, -count, key=lambda seq: -count_live(run, seq)) - 1]
