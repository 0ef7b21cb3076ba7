"""Ceilings in the log: raised ahead of need, brought down when a topic is quiet.

A raise is published by the sync that covers its frame; until then the old ceiling holds. Bringing one down
needs no sync: the topic obeys the lower one at once, and a higher one on the disk is only careful.

Must not know: how high a ceiling should be (`head_ceiling.py`).
"""

from __future__ import annotations

from itertools import islice

from shared.contract import TopicConfig
from shared.errors import Refusal
from topicsd.engine.head_ceiling import Ceiling, is_quiet, raised_ceiling
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.wal.control_frame import HeadWatermark, encode_control

# How many topics one background tick looks at.
LOWERED_A_TICK = 256


class PendingCeiling:
    """A raised ceiling whose frame is in the log and not yet on the disk."""

    __slots__ = ("before", "ceiling", "topic")

    def __init__(self, topic: Topic, ceiling: Ceiling) -> None:
        self.topic = topic
        self.ceiling = ceiling
        self.before = (topic.ceiling_logged, topic.ceiling_mark)

    def publish(self) -> None:
        self.topic.ceiling = max(self.topic.ceiling, self.ceiling.value)

    def undo(self) -> None:
        self.topic.ceiling_logged, self.topic.ceiling_mark = self.before

    def refuse(self, refusal: Refusal) -> None:
        pass  # Nobody asked; the next append raises it again.


def first_ceiling(config: TopicConfig, first_records: int) -> Ceiling:
    """Of a topic that is created, with so many records at once: on the disk together with its creation."""
    return raised_ceiling(first_records, 0, 0) if needs_ceiling(config) else Ceiling(0, NEVER)


def needs_ceiling(config: TopicConfig) -> bool:
    """What is acked after a sync never loses its tail."""
    return config.durability != "fsync"


def set_ceiling(topic: Topic, ceiling: Ceiling) -> None:
    """Of a topic whose frame that says so is on the disk before any of its seqs is given out."""
    topic.ceiling = topic.ceiling_logged = ceiling.value
    topic.ceiling_mark = ceiling.mark


def raise_ceiling(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """The topic has come half of the way: log a higher ceiling with this batch."""
    head = topic.next_seq - 1
    ceiling = raised_ceiling(head, topic.raised_head, now_ms - topic.raised_at_ms)
    pending = PendingCeiling(topic, ceiling)
    topic.ceiling_logged, topic.ceiling_mark = ceiling.value, ceiling.mark
    topic.raised_at_ms, topic.raised_head = now_ms, head
    shard.raised[topic] = None
    shard.log.join_in_passing(_frame(topic, ceiling.value), pending, ceiling.is_soon_needed)


def lower_quiet_ceilings(shard: ShardState, now_ms: int, quiet_only: bool = True) -> bool:
    """Bring down the ceilings of topics that are quiet and synced; True while others are still raised."""
    for topic in list(islice(shard.raised, LOWERED_A_TICK)) if quiet_only else list(shard.raised):
        del shard.raised[topic]
        if not needs_ceiling(topic.config):
            continue
        is_settled = topic.head == topic.next_seq - 1 and topic.ceiling_logged == topic.ceiling
        if not (
            is_settled and _is_synced(shard, topic) and (not quiet_only or is_quiet(topic.last_ts, now_ms))
        ):
            shard.raised[topic] = None
            continue
        if topic.ceiling > topic.head:
            topic.ceiling = topic.ceiling_logged = topic.head
            topic.ceiling_mark = topic.head + 1
            shard.log.join_in_passing(_frame(topic, topic.head))
    return bool(shard.raised)


def _is_synced(shard: ShardState, topic: Topic) -> bool:
    run = topic.run
    return (
        topic.is_ephemeral
        or not run.lengths
        or run.positions[-1] + run.lengths[-1] <= shard.log.synced_position
    )


def _frame(topic: Topic, ceiling: int) -> bytes:
    return encode_control(HeadWatermark(ceiling), topic_id=topic.topic_id, ts=topic.last_ts)
