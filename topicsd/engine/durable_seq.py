"""Up to which seq a topic is on the disk itself, whatever its class promises.

Must not know: who asks, or why.
"""

from __future__ import annotations

from topicsd.engine.shard_state import ShardState
from topicsd.engine.tail_run import TailRun
from topicsd.engine.topic import Topic


def durable_seq(shard: ShardState, topic: Topic) -> int:
    """0 for an ephemeral topic, which is never on the disk."""
    return durable_seq_at(topic, shard.log.synced_position)


def durable_seq_at(topic: Topic, synced: int) -> int:
    """With everything before this position of the log on the disk."""
    if topic.is_ephemeral:
        return 0
    end = topic.head
    for run in reversed(topic.runs):
        if not isinstance(run, TailRun) or run.source is not None:
            return end  # A checkpoint copies what is on the disk, and syncs its copy.
        count = run.logged_count(synced)
        if count < len(run.lengths):
            end = run.first_seq + count - 1
        if count:
            return end
    return end
