"""How far behind a cursor is: the live records behind it, their bytes, and the age of the first of them.

What was trimmed or deleted is not counted. Whole runs say their numbers; of the run that the cursor stands in
the index is needed, which a thread reads where that is a sealed segment. Records alone are counted without.

Must not know: HTTP, who asks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from topicsd.engine.requests import Reply
from topicsd.engine.run import Run
from topicsd.engine.sealed_run import SealedRun
from topicsd.engine.seek import count_live
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_entry import tell
from topicsd.engine.trim_report import log_expired
from topicsd.segment.entry import COLD, SegmentDamage

logger = logging.getLogger("topicsd.engine")


class Lag(NamedTuple):
    records: int
    bytes: int
    ms: int


NO_LAG = Lag(0, 0, 0)


def records_behind(topic: Topic, seqs: Sequence[int]) -> list[int]:
    """Live records behind each of the cursors, counted in one walk over the topic."""
    behind = [0]
    for run in reversed(topic.runs):
        behind.append(behind[-1] + count_live(run, max(topic.earliest_seq, run.first_seq)))
    behind.reverse()
    found = []
    for seq in seqs:
        first = max(seq + 1, topic.earliest_seq)
        at = topic.run_index(first)
        here = (
            0 if at == len(topic.runs) else count_live(topic.runs[at], max(first, topic.runs[at].first_seq))
        )
        found.append(here + behind[min(at + 1, len(topic.runs))])
    return found


def measure_lag(shard: ShardState, topic: Topic, seq: int, reply: Reply) -> None:
    """`reply` gets a `Lag`, at once or when the disk has answered."""
    log_expired(shard, topic, shard.clock.now_ms())
    first = topic.next_live(seq + 1)
    run = topic.run_of(first)
    if first > topic.head or run is None:
        reply(NO_LAG)
    elif not isinstance(run, SealedRun):
        reply(_lag(shard, topic, run, first))
    else:
        thread = shard.threads.cold if run.entry.tier == COLD else shard.threads.read

        def loaded(failure: SegmentDamage | OSError | None) -> None:
            if failure is not None:
                tell(reply, _unknown(topic, run, failure))
            elif first < topic.earliest_seq or topic.run_of(first) is not run:
                measure_lag(shard, topic, seq, reply)
            else:
                tell(reply, _lag(shard, topic, run, first))

        thread.submit(lambda: _load(run), loaded)


def _load(run: SealedRun) -> SegmentDamage | None:
    try:
        run.load_index()
    except SegmentDamage as damage:
        return damage
    return None


def _lag(shard: ShardState, topic: Topic, run: Run, first: int) -> Lag:
    """What is in front is taken from what is alive in all, as of the segments there it takes no look. Only
    in the running one the shorter side is counted."""
    ts = run.stamps[first - run.first_seq]
    if run is topic.run and run.next_seq - first < first - run.first_seq:
        return _told(shard, *run.live_totals(first, run.next_seq - 1), ts)
    low = max(topic.earliest_seq, run.first_seq)
    count, size = run.live_totals(low, first - 1) if low < first else (0, 0)
    for other in topic.runs:
        if other.next_seq <= run.first_seq:
            more, bytes_more = _totals(topic, other)
            count, size = count + more, size + bytes_more
    return _told(shard, topic.live_count - count, topic.live_bytes - size, ts)


def _told(shard: ShardState, count: int, size: int, ts: int) -> Lag:
    return Lag(count, size, max(0, shard.clock.now_ms() - ts)) if count else NO_LAG


def _totals(topic: Topic, run: Run) -> tuple[int, int]:
    if isinstance(run, SealedRun):
        return run.live_count, run.live_bytes
    low = max(topic.earliest_seq, run.first_seq)
    return run.live_totals(low, run.next_seq - 1) if low < run.next_seq else (0, 0)


def _unknown(topic: Topic, run: SealedRun, error: Exception) -> Lag:
    """The index cannot be read: as if the cursor stood in front of the segment."""
    logger.error('topic "%s": how far a cursor is behind cannot be told exactly: %s', topic.name, error)
    behind = [_totals(topic, other) for other in topic.runs if other.first_seq >= run.first_seq]
    return Lag(sum(count for count, _ in behind), sum(size for _, size in behind), 0)
