"""Eviction by age, and the frame that makes it permanent.

Eviction by a cap follows from the log, and replay finds it again. Eviction by age follows from the clock,
which may step back: so a floor that a response reports is in the log from that turn on. No request waits for
it: a crash that loses the frame also loses the earlier records that were not synced, and an evicted record
returns only if no response reported its eviction.
"""

from __future__ import annotations

import logging
from typing import Final

from topicsd.engine.pending import PendingFrame
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.retention.retention import enforce_caps, expire
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import EvictWatermark, encode_control
from topicsd.segment.entry import SegmentDamage

logger = logging.getLogger("topicsd.engine")

AHEAD_RECORDS: Final = 1024


def prefetch_next_index(shard: ShardState, topic: Topic) -> None:
    """Load the index of the next segment on a thread before eviction reaches it.

    Otherwise the event loop would wait for a slow disk when the segment's records are counted.
    """
    first = topic.runs[0]
    if not isinstance(first, SealedRun) or first.is_next_prefetched:
        return
    if first.next_seq - topic.earliest_seq <= AHEAD_RECORDS:
        first.is_next_prefetched = True
        following = topic.runs[1]
        if isinstance(following, SealedRun):
            # The code that needs the index meets its damage again, and reports it.
            shard.load_index(following, lambda failure: None)


def evict_over_caps(shard: ShardData, topic: Topic) -> None:
    """Enforce the caps; if a segment is unreadable, log that and leave the topic over its caps."""
    try:
        enforce_caps(topic)
    except (SegmentDamage, OSError) as error:
        _log_failure_once(shard, topic, error)


def _log_failure_once(shard: ShardData, topic: Topic, error: Exception) -> None:
    if topic.cache_key not in shard.eviction_failures:
        shard.eviction_failures.add(topic.cache_key)
        logger.error('topic "%s": eviction failed, segment unreadable: %s', topic.name, error)


def evict_expired(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """Evict the records that are too old at `now_ms`, and log the new floor."""
    try:
        expire(topic, now_ms)
    except (SegmentDamage, OSError) as error:
        _log_failure_once(shard, topic, error)
    by_age = topic.evicted_to.get("ttl", 0)
    if by_age > topic.ttl_logged:
        prefetch_next_index(shard, topic)
    if by_age > topic.ttl_logged and not topic.is_ephemeral and topic.deferred_requests is None:
        _log_floor(shard, topic, by_age)


def _log_floor(shard: ShardState, topic: Topic, by_age: int) -> None:
    before, topic.ttl_logged = topic.ttl_logged, by_age

    def undo() -> None:
        topic.ttl_logged = before
        shard.unlogged_floors[topic] = None  # The background logs it again once there is room.

    frame = encode_control(EvictWatermark({"ttl": by_age}), topic_id=topic.topic_id, ts=topic.last_ts)
    shard.note(topic, frame, PendingFrame(topic, undo=undo))


def log_floors_again(shard: ShardState, now_ms: int) -> bool:
    """Log the floors that a full disk kept out of the log; return whether some are left."""
    if shard.unlogged_floors and not shard.log.is_disk_full:
        topics, shard.unlogged_floors = shard.unlogged_floors, {}
        for topic in topics:
            evict_expired(shard, topic, now_ms)
    return bool(shard.unlogged_floors)
