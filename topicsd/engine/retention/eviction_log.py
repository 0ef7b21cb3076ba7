"""What age took from a topic, and the frame that keeps it taken.

Eviction by a cap follows from the log and is found again by replay. Eviction by age follows from the clock,
and a clock may step back: so a floor that an answer reports is in the log from that turn on. It is not
waited for: what loses the frame loses the records in front of it that were not synced either, and an older
record whose age let it go may come back only if nobody was told.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

from shared.contract.errors import Refusal
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.retention.retention import enforce_caps, expire
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import EvictWatermark, encode_control
from topicsd.segment.entry import COLD, SegmentDamage

logger = logging.getLogger("topicsd.engine")

AHEAD_RECORDS: Final = 1024


class PendingFloor:
    __slots__ = ("before", "ordinal", "shard", "topic")

    ordinal: int

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self.shard = shard
        self.topic = topic
        self.before = topic.ttl_logged

    def publish(self) -> None:
        pass  # Nobody waits for it.

    def undo(self) -> None:
        self.topic.ttl_logged = self.before
        self.shard.unlogged_floors[self.topic] = None

    def refuse(self, refusal: Refusal) -> None:
        pass  # The background logs it again, once there is room.


def look_ahead(shard: ShardState, topic: Topic) -> None:
    """What leaves the topic will soon be counted in the next segment: a thread reads its index meanwhile, so
    that the loop does not wait for a slow disk then."""
    first = topic.runs[0]
    if not isinstance(first, SealedRun) or first.has_looked_ahead:
        return
    if first.next_seq - topic.earliest_seq <= AHEAD_RECORDS:
        first.has_looked_ahead = True
        behind = topic.runs[1]
        if isinstance(behind, SealedRun):
            thread = shard.threads.cold if behind.entry.tier == COLD else shard.threads.read
            thread.submit(partial(_load, behind), lambda outcome: None)


def _load(run: SealedRun) -> None:
    # Who needs it meets the damage again, and says so.
    with suppress(SegmentDamage):
        run.load_index()


def keep_to_caps(shard: ShardData, topic: Topic) -> None:
    """`enforce_caps`, but for a segment that cannot be counted: then the topic stays over its caps."""
    try:
        enforce_caps(topic)
    except (SegmentDamage, OSError) as error:
        _say_once(shard, topic, error)


def _say_once(shard: ShardData, topic: Topic, error: Exception) -> None:
    if topic.epoch not in shard.overfull:
        shard.overfull.add(topic.epoch)
        logger.error('what is to leave topic "%s" cannot be told, and stays: %s', topic.name, error)


def log_expired(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """Evict what is too old now, and log how far that went."""
    try:
        expire(topic, now_ms)
    except (SegmentDamage, OSError) as error:
        _say_once(shard, topic, error)
    by_age = topic.evicted_to.get("ttl", 0)
    if by_age > topic.ttl_logged:
        look_ahead(shard, topic)
    if by_age > topic.ttl_logged and not topic.is_ephemeral and topic.leaving is None:
        pending = PendingFloor(shard, topic)
        topic.ttl_logged = by_age
        frame = encode_control(EvictWatermark({"ttl": by_age}), topic_id=topic.topic_id, ts=topic.last_ts)
        shard.note(topic, frame, pending)


def log_floors_again(shard: ShardState, now_ms: int) -> bool:
    """What a full disk kept out of the log, once there is room; True while there is something left."""
    if shard.unlogged_floors and not shard.log.lacks_room:
        topics, shard.unlogged_floors = shard.unlogged_floors, {}
        for topic in topics:
            log_expired(shard, topic, now_ms)
    return bool(shard.unlogged_floors)
