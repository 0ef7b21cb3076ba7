"""Ceilings in the log: raised ahead of need, brought down when a topic is quiet.

A raise is published by the sync that covers its frame; until then the old ceiling holds. Bringing one down
needs no sync: the topic obeys the lower one at once, and a higher one on the disk is only careful. Every
change of a topic's ceiling is made here.

Seqs are never used twice, also when a crash of the machine takes the tail of a log.

A class below fsync acks before the disk has it. So no such topic gives out a seq above its *ceiling*,
which a HeadWatermark on the disk has raised ahead of need. After an unclean end the head resumes at the
ceiling, and the seqs in between are a lost range that readers are told. When a topic is quiet and
synced its ceiling comes down to its head, so that an idle topic never reports a loss that was none.

Pure: numbers in, numbers out. Must not know: frames, files.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfig
from topicsd.engine.state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.log.control_frame import HeadWatermark, encode_control

STEP_MIN = 256
AHEAD_MS = 2000
QUIET_SECONDS = 1.0
# A burst is no rate: a step is at most this many times what has come since the last one.
GROWTH = 8
# A head that comes half of the way in less than this is faster than the background sync.
SOON_MS = 200


class Ceiling(NamedTuple):
    value: int
    mark: int
    """The head at which the next one is due: half of the way."""
    is_soon_needed: bool = False
    """It has to be on the disk before the next background sync would put it there."""


def raised_ceiling(head: int, raised_head: int, elapsed_ms: int) -> Ceiling:
    """For a head that has come from `raised_head` in this time: two seconds of that rate ahead."""
    advance = head - raised_head
    rate_ms = advance / max(elapsed_ms, 1)
    step = max(STEP_MIN, min(int(rate_ms * AHEAD_MS), advance * GROWTH))
    return Ceiling(head + step, head + step // 2, rate_ms * SOON_MS > step)


# How many topics one background tick looks at.
LOWERED_A_TICK = 1024


class Before(NamedTuple):
    """A topic's ceiling as it was, for a change that may be undone."""

    value: int
    logged: int
    mark: int


class PendingRaise:
    """A raised ceiling whose frame is in the log and not yet on the disk."""

    __slots__ = ("before", "ceiling", "ordinal", "topic")

    ordinal: int

    def __init__(self, topic: Topic, ceiling: Ceiling) -> None:
        self.topic = topic
        self.ceiling = ceiling
        self.before = _before(topic)

    def publish(self) -> None:
        self.topic.ceiling = max(self.topic.ceiling, self.ceiling.value)

    def undo(self) -> None:
        self.topic.ceiling_logged, self.topic.ceiling_mark = self.before.logged, self.before.mark

    def refuse(self, refusal: Refusal) -> None:
        pass  # Nobody asked; the next append raises it again.


class PendingLowering:
    """A ceiling that was brought down, until the frame that says so is on the disk."""

    __slots__ = ("before", "ordinal", "shard", "topic")

    ordinal: int

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self.shard = shard
        self.topic = topic
        self.before = _before(topic)

    def publish(self) -> None:
        pass  # The topic obeys it since it was logged.

    def undo(self) -> None:
        topic = self.topic
        topic.ceiling, topic.ceiling_logged, topic.ceiling_mark = self.before
        self.shard.watch_ceiling(topic)

    def refuse(self, refusal: Refusal) -> None:
        pass  # Nobody asked; it is brought down again by a later tick.


def needs_ceiling(config: TopicConfig) -> bool:
    """What is acked after a sync never loses its tail."""
    return config.durability != "fsync"


def first_ceiling(config: TopicConfig, head: int, first_records: int) -> Ceiling:
    """For a topic that begins to need one at `head`, with so many records at once."""
    return raised_ceiling(head + first_records, head, 1) if needs_ceiling(config) else Ceiling(0, NEVER)


def begin_ceiling(shard: ShardState, topic: Topic, ceiling: Ceiling) -> None:
    """The frame that carries this ceiling is on the disk before any seq is given out by it."""
    topic.ceiling = topic.ceiling_logged = ceiling.value
    topic.ceiling_mark = ceiling.mark
    topic.raised_head, topic.raised_at_ms = topic.next_seq - 1, shard.clock.now_ms()
    if ceiling.mark != NEVER:
        shard.watch_ceiling(topic)


def resume_ceiling(shard: ShardState, topic: Topic) -> None:
    """After a restart: the log's ceiling, and a head that is exact or stands at it."""
    if needs_ceiling(topic.config):
        value = max(topic.ceiling, topic.head)
        begin_ceiling(shard, topic, Ceiling(value, max(topic.head + 1, (topic.head + value) // 2)))


def raise_ceiling(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """The topic has come half of the way: log a higher ceiling with this batch."""
    head = topic.next_seq - 1
    ceiling = raised_ceiling(head, topic.raised_head, now_ms - topic.raised_at_ms)
    topic.raised_at_ms, topic.raised_head = now_ms, head
    if ceiling.value <= topic.ceiling_logged:
        # After a burst a step may be smaller than what is left of it. The log's ceiling must not fall below
        # one that seqs are given out by, so there is nothing to log yet.
        topic.ceiling_mark = (head + topic.ceiling_logged) // 2
        return
    pending = PendingRaise(topic, ceiling)
    topic.ceiling_logged, topic.ceiling_mark = ceiling.value, ceiling.mark
    shard.watch_ceiling(topic)
    shard.note(topic, _frame(topic, ceiling.value), pending, ceiling.is_soon_needed)


def lower_quiet_ceilings(shard: ShardState, now: float) -> bool:
    """Bring down the ceilings of topics that were quiet for a while; True while others are still raised.

    Quiet by the head and the monotonic clock: what records are stamped with may step.
    """
    for topic in list(islice(shard.raised, LOWERED_A_TICK)):
        seen = shard.raised[topic]
        if seen is None or seen.head != topic.next_seq - 1:
            shard.watch_ceiling(topic, now)
        elif now - seen.at >= QUIET_SECONDS:
            del shard.raised[topic]
            if not lower_ceiling(shard, topic):
                shard.watch_ceiling(topic, now)
    return bool(shard.raised)


def lower_all_ceilings(shard: ShardState) -> None:
    """At a clean end, when all is published and synced: heads are exact, and an ephemeral topic's head is
    known to the next run by its ceiling only."""
    for topic in list(shard.raised):
        lower_ceiling(shard, topic)
    shard.raised.clear()


def lower_ceiling(shard: ShardState, topic: Topic) -> bool:
    """To the head, if that is on the disk and nothing is on its way; whether there is nothing left to do."""
    if not needs_ceiling(topic.config) or topic.leaving is not None:
        return topic.leaving is None
    is_settled = topic.head == topic.next_seq - 1 and topic.ceiling_logged == topic.ceiling
    if not is_settled or not _is_synced(shard, topic):
        return False
    if topic.ceiling > topic.head:
        pending = PendingLowering(shard, topic)
        topic.ceiling = topic.ceiling_logged = topic.head
        topic.ceiling_mark = topic.head + 1
        shard.note(topic, _frame(topic, topic.head), pending)
    return True


def _is_synced(shard: ShardState, topic: Topic) -> bool:
    run = topic.run
    return topic.is_ephemeral or run.logged_count(shard.log.synced_position) == len(run.lengths)


def _before(topic: Topic) -> Before:
    return Before(topic.ceiling, topic.ceiling_logged, topic.ceiling_mark)


def _frame(topic: Topic, ceiling: int) -> bytes:
    return encode_control(HeadWatermark(ceiling), topic_id=topic.topic_id, ts=topic.last_ts)
