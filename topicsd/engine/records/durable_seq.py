"""The highest seq of a topic that is known to be on the disk itself, whatever its durability class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.topic import Topic

if TYPE_CHECKING:
    from topicsd.engine.state import ShardState


def durable_seq(shard: ShardState, topic: Topic) -> int:
    """0 for an ephemeral topic, which is never on the disk."""
    return durable_seq_at(topic, shard.log.synced_position)


def durable_seq_at(topic: Topic, synced: int) -> int:
    """With everything before this position of the log on the disk."""
    if topic.is_ephemeral:
        return 0
    if synced < topic.forgotten_end:
        return topic.durable_floor
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


def note_forgotten(topic: Topic, run: TailRun, last: int) -> None:
    """Remember how far the topic is durable, before the records up to `last` leave the index.

    Until a sync covers all of them, the index cannot tell how many it covered.
    """
    if run.source is not None or run.frames is not None or last < run.first_seq:
        return
    end = run.logged_end(last)
    synced = topic.totals.synced_position()
    if synced < end:
        topic.durable_floor = durable_seq_at(topic, synced)
        topic.forgotten_end = end
