"""The durable seq: the highest seq of a topic known to be on the disk itself, whatever its class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.topic import Topic

if TYPE_CHECKING:
    from topicsd.engine.state import ShardState


def durable_seq(shard: ShardState, topic: Topic) -> int:
    """Return the durable seq of a topic; 0 for an ephemeral topic, which is never on the disk."""
    return durable_seq_at(topic, shard.log.synced_position)


def durable_seq_at(topic: Topic, synced: int) -> int:
    """Return the durable seq of a topic when the log is on the disk up to position `synced`."""
    if topic.is_ephemeral:
        return 0
    if synced < topic.forgotten_end:
        return topic.durable_floor
    end = topic.head
    for run in reversed(topic.runs):
        if not isinstance(run, TailRun) or run.source is not None:
            return end  # Durable: a checkpoint copies records that are on the disk, and syncs its copy.
        count = run.logged_count(synced)
        if count < len(run.lengths):
            end = run.first_seq + count - 1
        if count:
            return end
    return end


def note_forgotten(topic: Topic, run: TailRun, last: int) -> None:
    """Remember the durable seq of the topic before the records up to `last` leave the index.

    Without it, a later sync that covers only some of them could not be mapped to a seq.
    """
    if run.source is not None or run.frames is not None or last < run.first_seq:
        return
    end = run.logged_end(last)
    synced = topic.totals.synced_position()
    if synced < end:
        topic.durable_floor = durable_seq_at(topic, synced)
        topic.forgotten_end = end
