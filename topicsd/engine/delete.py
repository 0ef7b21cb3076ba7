"""Deleting records on purpose: permanent, silent, at once, and only what exists at the call.

The frame in the log carries the operation and the head that it was bound by; what it matches is found again
by replay. It has the class of its topic.

Must not know: HTTP, files.
"""

from __future__ import annotations

from functools import partial

from shared.errors import INVALID_REQUEST, Refusal
from topicsd.engine.requests import Deleted, DeleteRequest, Reply
from topicsd.engine.retention import delete_front, delete_one
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.engine.topic_entry import TopicEntry, tell
from topicsd.engine.trim_report import log_expired
from topicsd.wal.control_frame import Delete, encode_control


def delete_records(shard: ShardState, name: str, request: DeleteRequest, reply: Reply) -> None:
    """Delete what the request matches; `reply` gets `Deleted` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is not None and topic.leaving is not None:
        shard.defer(topic, partial(delete_records, shard, name, request, reply), reply)
        return
    refusal = _refuse(request) or shard.log.admit_control()
    if refusal is None and (topic is None or not topic.visible):
        refusal = topic_not_found(name)
    if refusal is not None or topic is None:
        reply(refusal)
        return
    log_expired(shard, topic, shard.clock.now_ms())
    below = topic.head + 1 if request.before_seq is None else min(request.before_seq, topic.head + 1)
    control = Delete(below, request.tag, request.is_prefix)
    pending = PendingDelete(topic, control, reply)
    waits = topic.config.durability == "fsync" or shard.must_wait(topic)
    if waits:
        pending.wait()
    frames = []
    if not topic.is_ephemeral:
        durable = topic.config.durable
        frames.append(encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=durable))
    shard.log.join(frames, sum(map(len, frames)), len(frames), pending, waits)


def apply_delete(topic: Topic, control: Delete) -> int:
    """Take out what the frame says; how many were alive."""
    if control.tag is None:
        return delete_front(topic, control.below - 1)
    return sum(
        delete_one(topic, seq)
        for seq in topic.tags.take(control.tag.encode(), control.is_prefix, control.below)
    )


def _refuse(request: DeleteRequest) -> Refusal | None:
    if request.before_seq is None and request.tag is None:
        return Refusal(INVALID_REQUEST, "before_seq, match: at least one of them is needed")
    if request.before_seq is not None and request.before_seq < 0:
        return Refusal(INVALID_REQUEST, "before_seq: must be at least 0", {"field": "before_seq"})
    return None


class PendingDelete(TopicEntry):
    __slots__ = ("control", "reply")

    def __init__(self, topic: Topic, control: Delete, reply: Reply) -> None:
        super().__init__(topic)
        self.control = control
        self.reply = reply

    def publish(self) -> None:
        self.end_wait()
        topic = self.topic
        deleted = apply_delete(topic, self.control)
        tell(
            self.reply,
            Deleted(topic.name, deleted, topic.earliest_seq, topic.head, topic.live_count, topic.live_bytes),
        )

    def undo(self) -> None:
        self.end_wait()  # Nothing is taken out before the frame is where its class wants it.

    def refuse(self, refusal: Refusal) -> None:
        tell(self.reply, refusal)
