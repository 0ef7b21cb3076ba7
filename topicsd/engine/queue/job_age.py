"""The age of the oldest ready job: the time since it was written, or since its delay ended.

An expired lease, or the delay of a returned job, does not reset the age: the job is overdue.
"""

from __future__ import annotations

from collections.abc import Callable

from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.segment.entry import SegmentDamage


def oldest_ready_ms(topic: Topic, now_ms: int) -> int:
    """Return the age of the oldest ready job, or 0 if there is none or its time is unreadable."""
    queue = topic.queue
    seq = 0 if queue is None else queue.oldest_ready()
    run = topic.run_of(seq) if seq else None
    if queue is None or run is None:
        return 0
    try:
        since = max(run.times_ms[seq - run.first_seq], queue.ready_since(seq))
    except (SegmentDamage, OSError):
        return 0
    return max(0, now_ms - since)


def measure_oldest_ready(shard: ShardState, topic: Topic, on_age: Callable[[int], object]) -> None:
    """Pass that age to `on_age`, at once or when a thread has read the index of the job's segment."""
    assert topic.queue is not None
    topic.queue.collect(shard.clock.now_ms())
    seq = topic.queue.oldest_ready()
    run = topic.run_of(seq) if seq else None
    if not isinstance(run, SealedRun):
        on_age(oldest_ready_ms(topic, shard.clock.now_ms()))
        return

    def on_loaded(failure: object) -> None:
        # After a failure the age is 0. Another job may be the oldest by now; it is rarely in another segment.
        on_age(oldest_ready_ms(topic, shard.clock.now_ms()))

    shard.load_index(run, on_loaded)
