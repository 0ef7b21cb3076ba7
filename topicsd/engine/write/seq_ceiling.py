"""Ceilings: why no seq is used twice, even when a crash of the machine loses the tail of a log.

A topic of a class below fsync acknowledges records before they are on the disk. Such a topic therefore gives
out no seq above its *ceiling*, which a HeadWatermark frame on the disk has raised ahead of need. Unless the
end of the last run proves that nothing is missing, the head resumes at the ceiling after a restart, and the
seqs in between are a lost range that is reported to readers. When a topic is quiet and synced, its ceiling is
lowered to its head, so that an idle topic never reports a loss that did not happen.

A raise is published by the sync that covers its frame; until then the old ceiling applies. A lower ceiling
needs no sync: the topic applies it at once, and a higher ceiling on the disk is merely more cautious. All
changes of these ceilings are made in this module.

A node with a catalog has a second ceiling, in `ownership/owned.py`. The append path compares the head with
one mark, the lower one of the two.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from shared.contract.errors import Refusal
from shared.contract.topic_config import TopicConfig
from topicsd.engine.ownership.owned import needs_raise, pass_mark, refuse_above_ceiling
from topicsd.engine.pending import PendingFrame
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.retention.retention import note_evicted
from topicsd.engine.state import ShardState
from topicsd.engine.topic import NEVER, Topic
from topicsd.log.control_frame import HeadWatermark, encode_control

STEP_MIN = 256
AHEAD_MS = 2000
QUIET_SECONDS = 1.0
# Bounds the effect of a burst: a step is at most this many times the seqs given out since the last one.
GROWTH = 8
# A head that covers half of the step in less than this time is faster than the background sync.
SOON_MS = 200


class Ceiling(NamedTuple):
    """A ceiling, and the head at which to raise it."""

    value: int
    mark: int
    """The head at which the next raise is due: half of the step."""
    is_soon_needed: bool = False
    """True when the ceiling must be on the disk before the next background sync."""


def raised_ceiling(head: int, raised_head: int, elapsed_ms: int) -> Ceiling:
    """Return the next ceiling: two seconds ahead at the rate from `raised_head` to `head`."""
    advance = head - raised_head
    rate_ms = advance / max(elapsed_ms, 1)
    step = max(STEP_MIN, min(int(rate_ms * AHEAD_MS), advance * GROWTH))
    return Ceiling(head + step, head + step // 2, rate_ms * SOON_MS > step)


# The number of topics that one background tick checks.
LOWERED_A_TICK = 1024


class PendingLowering(PendingFrame):
    """A lowered ceiling, which the topic has applied already. Undone, it is lowered again by a later tick."""

    __slots__ = ("ceiling_before",)

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        before = topic.ceiling, topic.ceiling_logged, topic.ceiling_mark
        self.ceiling_before = topic.ceiling

        def undo() -> None:
            topic.ceiling, topic.ceiling_logged = before[:2]
            set_mark(topic, before[2])
            shard.watch_ceiling(topic)

        super().__init__(topic, undo=undo)


def needs_ceiling(config: TopicConfig) -> bool:
    """Return whether a topic needs a ceiling; the class `fsync` never loses its tail."""
    return config.durability != "fsync"


def first_ceiling(config: TopicConfig, head: int, first_records: int) -> Ceiling:
    """Return the first ceiling of a topic with this head, whose first write has `first_records`."""
    return raised_ceiling(head + first_records, head, 1) if needs_ceiling(config) else Ceiling(0, NEVER)


def set_mark(topic: Topic, mark: int) -> None:
    """Set the head at which the next raise is due: of this ceiling, or of the one of the catalog."""
    topic.ceiling_mark = mark if topic.ownership is None else min(mark, topic.ownership.mark)


def begin_ceiling(shard: ShardState, topic: Topic, ceiling: Ceiling) -> None:
    """Apply a ceiling whose frame is on the disk before any seq is given out under it."""
    topic.ceiling = topic.ceiling_logged = ceiling.value
    set_mark(topic, ceiling.mark)
    topic.raised_head, topic.raised_at_ms = topic.next_seq - 1, shard.clock.now_ms()
    if ceiling.mark != NEVER:
        shard.watch_ceiling(topic)


def resume_ceiling(shard: ShardState, topic: Topic) -> None:
    """Apply the ceiling of the log after a restart; the head is exact, or at the ceiling."""
    if needs_ceiling(topic.config):
        value = max(topic.ceiling, topic.head)
        begin_ceiling(shard, topic, Ceiling(value, max(topic.head + 1, (topic.head + value) // 2)))


def lost_tail(topic: Topic, heads_exact: bool) -> LostRange | None:
    """Return the seqs after the head that may have been given out and lost, or None."""
    if heads_exact or not needs_ceiling(topic.config) or topic.ceiling <= topic.head:
        return None
    return LostRange(topic.head + 1, topic.ceiling, "crash")


def resume_ephemeral(topic: Topic) -> None:
    """Resume the head of an ephemeral topic, whose records are lost, at its ceiling."""
    if topic.ceiling > topic.head:
        topic.head = topic.ceiling
        topic.earliest_seq = topic.head + 1
        topic.run.first_seq = topic.head + 1
        note_evicted(topic, topic.head, "crash")


def raise_ceiling(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """Log a higher ceiling with this batch; called when the head reaches the mark."""
    if pass_mark(topic):
        shard.catalog_work.add(topic)
    if not needs_ceiling(topic.config):
        set_mark(topic, NEVER)
        return
    head = topic.next_seq - 1
    ceiling = raised_ceiling(head, topic.raised_head, now_ms - topic.raised_at_ms)
    topic.raised_at_ms, topic.raised_head = now_ms, head
    if ceiling.value <= topic.ceiling_logged:
        # After a burst the new step may end below the present ceiling. The ceiling in the log must not fall
        # below one under which seqs are given out, so there is nothing to log yet.
        set_mark(topic, (head + topic.ceiling_logged) // 2)
        return
    before = topic.ceiling_logged, topic.ceiling_mark
    topic.ceiling_logged = ceiling.value
    set_mark(topic, ceiling.mark)

    def publish() -> None:
        topic.ceiling = max(topic.ceiling, ceiling.value)

    def undo() -> None:
        topic.ceiling_logged = before[0]
        set_mark(topic, before[1])  # The next append raises it again.

    shard.watch_ceiling(topic)
    pending = PendingFrame(topic, publish, undo)
    shard.note(topic, _frame(topic, ceiling.value), pending, ceiling.is_soon_needed)


def refuse_seqs(shard: ShardState, topic: Topic, count: int) -> Refusal | None:
    """Refuse seqs above the ceiling of the catalog, and have that raised."""
    refusal = refuse_above_ceiling(topic, count)
    if refusal is not None or needs_raise(topic, shard.clock.now_ms()):
        shard.catalog_work.add(topic)
    return refusal


def lower_quiet_ceilings(shard: ShardState, now: float) -> bool:
    """Lower the ceilings of quiet topics; return whether any are still raised.

    Quiet is measured by the head and the monotonic clock, because the clock of record times may step.
    """
    for topic in list(islice(shard.raised_ceilings, LOWERED_A_TICK)):
        seen = shard.raised_ceilings[topic]
        if seen is None or seen.head != topic.next_seq - 1:
            shard.watch_ceiling(topic, now)
        elif now - seen.at >= QUIET_SECONDS:
            del shard.raised_ceilings[topic]
            if not lower_ceiling(shard, topic):
                shard.watch_ceiling(topic, now)
    return bool(shard.raised_ceilings)


def lower_all_ceilings(shard: ShardState) -> None:
    """Lower all ceilings at a clean end, when everything is published and synced.

    The heads are then exact; the next run knows the head of an ephemeral topic only by its ceiling.
    """
    for topic in list(shard.raised_ceilings):
        lower_ceiling(shard, topic)
    shard.raised_ceilings.clear()


def lower_ceiling(shard: ShardState, topic: Topic) -> bool:
    """Lower a ceiling to the head if it is synced and nothing is pending.

    Return whether nothing is left to do.
    """
    if not needs_ceiling(topic.config) or topic.deferred_requests is not None:
        return topic.deferred_requests is None
    is_settled = topic.head == topic.next_seq - 1 and topic.ceiling_logged == topic.ceiling
    if not is_settled or not _is_synced(shard, topic):
        return False
    if topic.ceiling > topic.head:
        pending = PendingLowering(shard, topic)
        topic.ceiling = topic.ceiling_logged = topic.head
        set_mark(topic, topic.head + 1)
        shard.note(topic, _frame(topic, topic.head), pending)
    return True


def _is_synced(shard: ShardState, topic: Topic) -> bool:
    run = topic.run
    return topic.is_ephemeral or run.logged_count(shard.log.synced_position) == len(run.lengths)


def _frame(topic: Topic, ceiling: int) -> bytes:
    return encode_control(HeadWatermark(ceiling), topic_id=topic.topic_id, ts=topic.last_ts)
