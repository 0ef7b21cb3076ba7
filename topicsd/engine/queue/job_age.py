"""How long the oldest job that is ready has been so: since it was written, or since its delay was over.

A lease that ran out, or a delay of one that was given back, makes no job younger: it should have been done
by then.
"""

from __future__ import annotations

from collections.abc import Callable

from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.segment.entry import COLD, SegmentDamage


def oldest_ready_ms(topic: Topic, now_ms: int) -> int:
    """0 when there is none, or nobody can tell."""
    queue = topic.queue
    seq = 0 if queue is None else queue.oldest_ready()
    run = topic.run_of(seq) if seq else None
    if queue is None or run is None:
        return 0
    try:
        since = max(run.stamps[seq - run.first_seq], queue.ready_since(seq))
    except (SegmentDamage, OSError):
        return 0
    return max(0, now_ms - since)


def measure_oldest_ready(shard: ShardState, topic: Topic, told: Callable[[int], object]) -> None:
    """`told` gets the same, at once or when a thread has read the index of the segment where it stands."""
    assert topic.queue is not None
    topic.queue.collect(shard.clock.now_ms())
    seq = topic.queue.oldest_ready()
    run = topic.run_of(seq) if seq else None
    if not isinstance(run, SealedRun):
        told(oldest_ready_ms(topic, shard.clock.now_ms()))
        return
    thread = shard.threads.cold if run.entry.tier == COLD else shard.threads.read

    def loaded(outcome: object) -> None:
        # Meanwhile another one may be the oldest, which is rarely in another segment.
        told(oldest_ready_ms(topic, shard.clock.now_ms()))

    thread.submit(lambda: _load(run), loaded)


def _load(run: SealedRun) -> None:
    try:
        run.load_index()
    except SegmentDamage:
        return  # Nobody can tell.
