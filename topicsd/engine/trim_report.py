"""What age took from a topic, and the frame that keeps it taken.

Eviction by a cap follows from the log and is found again by replay. Eviction by age follows from the clock,
and a clock may step back: so a floor that an answer reports is in the log from that turn on. It is not
waited for: what loses the frame loses the records in front of it that were not synced either, and an older
record whose age let it go may come back only if nobody was told.

Must not know: which answer it is.
"""

from __future__ import annotations

from shared.errors import Refusal
from topicsd.engine.retention import expire
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.wal.control_frame import EvictWatermark, encode_control


class PendingFloor:
    __slots__ = ("before", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.before = topic.ttl_logged

    def publish(self) -> None:
        pass  # Nobody waits for it.

    def undo(self) -> None:
        self.topic.ttl_logged = self.before

    def refuse(self, refusal: Refusal) -> None:
        pass  # The next answer that reports the floor logs it again.


def log_expired(shard: ShardState, topic: Topic, now_ms: int) -> None:
    """Evict what is too old now, and log how far that went."""
    expire(topic, now_ms)
    by_age = topic.evicted_to.get("ttl", 0)
    if by_age > topic.ttl_logged and not topic.is_ephemeral and topic.leaving is None:
        pending = PendingFloor(topic)
        topic.ttl_logged = by_age
        frame = encode_control(EvictWatermark({"ttl": by_age}), topic_id=topic.topic_id, ts=topic.last_ts)
        shard.note(topic, frame, pending)
