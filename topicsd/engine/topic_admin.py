"""Operations on whole topics: create, configure, delete, and return the state.

Configuration is always durable: these requests wait for a sync whatever the topic's class. A change takes
effect when its frame is on the disk; records appended before that keep the class they were appended under.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.contract.errors import TOPIC_NOT_EMPTY, TOPIC_NOT_FOUND, Refusal
from shared.contract.topic_config import TopicConfig, TopicConfigPatch
from topicsd.engine.pending import PendingEntry, call_reply
from topicsd.engine.queue.job import Counts
from topicsd.engine.queue.job_age import oldest_ready_ms
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.requests import Reply, TopicDeleted, TopicPut, TopicState
from topicsd.engine.retention.eviction_log import evict_over_caps, log_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_create import config_after, encode_create, new_topic, register_topic
from topicsd.engine.write.seq_ceiling import Ceiling, first_ceiling, needs_ceiling
from topicsd.log.control_frame import ConfigUpdate, TopicDelete, encode_control

# The number of due jobs that one request for the state of a queue makes ready first. It is generous, because
# the counts should be current and the request is rare.
SEEN_MAX: Final = 500


def put_topic(shard: ShardState, name: str, patch: TopicConfigPatch, reply: Reply) -> None:
    """Create a topic, or patch its configuration; `reply` gets `TopicPut` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is None:
        topic_or_refusal = new_topic(shard, name, patch, 0)
        refusal = topic_or_refusal if isinstance(topic_or_refusal, Refusal) else shard.log.admit_control()
        if isinstance(topic_or_refusal, Refusal) or refusal is not None:
            reply(refusal)
            return
        topic_or_refusal.epoch = shard.log.batch.next_ordinal
        register_topic(shard, topic_or_refusal)
        _join(shard, encode_create(topic_or_refusal), PendingPut(shard, topic_or_refusal, None, reply))
        return
    if topic.deferred_requests is not None:
        shard.defer(topic, partial(put_topic, shard, name, patch, reply), reply)
        return
    config = config_after(shard, topic.next_config, patch, name)
    refusal = config if isinstance(config, Refusal) else shard.log.admit_control()
    if isinstance(config, Refusal) or refusal is not None:
        reply(refusal)
        return
    # While anything is pending this request waits too: it may be a change to another configuration and back.
    if config == topic.config == topic.next_config and topic.visible and not topic.waiting_count:
        reply(TopicPut(name, created=False, config=config))
        return
    pending = PendingPut(shard, topic, config, reply)
    control = ConfigUpdate(config, pending.ceiling.value)
    topic.next_config = config
    _join(
        shard,
        encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=True),
        pending,
    )


def delete_topic(shard: ShardState, name: str, if_empty: bool, reply: Reply) -> None:
    """Delete a topic with all its records; `reply` gets `TopicDeleted` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is None:
        reply(TopicDeleted(name, deleted=False))
        return
    if topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_topic, shard, name, if_empty, reply), reply)
        return
    refusal = shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    if if_empty:
        log_expired(shard, topic, shard.clock.now_ms())
        if topic.live_count or topic.pending_count:
            count = topic.live_count + topic.pending_count
            reply(
                Refusal(
                    TOPIC_NOT_EMPTY,
                    f'topic "{name}" is not empty: it holds {count} records',
                    {"count": count},
                )
            )
            return
    topic.deferred_requests = []
    frame = encode_control(TopicDelete(topic.epoch), topic_id=topic.topic_id, ts=topic.last_ts, durable=True)
    _join(shard, frame, PendingTopicDelete(shard, topic, reply))


def topic_state(shard: ShardState, name: str, is_use: bool = False) -> TopicState | Refusal:
    """Return the state of a topic; `is_use` counts it as consumed, which raises its priority."""
    topic = shard.visible_topic(name)
    if topic is None:
        return topic_not_found(name)
    now_ms = shard.clock.now_ms()
    log_expired(shard, topic, now_ms)
    state = TopicState(
        topic=topic.name,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        evict_floor=topic.evict_floor,
        durable_seq=durable_seq(shard, topic),
        count=topic.live_count,
        bytes=topic.live_bytes,
        last_write_ts=topic.last_ts,
        last_read_ts=topic.last_read_ms,
        effective_priority=shard.wake_queue.effective_priority(topic),
        config=topic.config,
        queue=queue_counts(topic, now_ms),
        oldest_ready_ms=oldest_ready_ms(topic, now_ms),
    )
    if is_use:
        topic.last_state_read_ms = now_ms
    return state


def queue_counts(topic: Topic, now_ms: int) -> Counts | None:
    if topic.queue is None:
        return None
    topic.queue.collect(now_ms, SEEN_MAX)
    return topic.queue.counts()


def topic_not_found(name: str) -> Refusal:
    return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist')


def _join(shard: ShardState, frame: bytes, pending: PendingPut | PendingTopicDelete) -> None:
    pending.wait()
    shard.log.join([frame], len(frame), 1, pending, wait_for_sync=True)


class PendingPut(PendingEntry):
    """A pending creation of a topic (`config` is None) or change of its configuration."""

    __slots__ = ("before", "ceiling", "changes_need", "config", "reply", "shard")

    def __init__(self, shard: ShardState, topic: Topic, config: TopicConfig | None, reply: Reply) -> None:
        super().__init__(topic)
        self.shard = shard
        self.config = config
        self.reply = reply
        logged = Ceiling(topic.ceiling_logged, topic.ceiling_mark)
        self.before = (topic.next_config, logged)
        self.ceiling = logged
        self.changes_need = config is not None and needs_ceiling(config) != needs_ceiling(topic.next_config)
        if config is not None and self.changes_need:
            # Logged with the change, so that a weaker class has seqs to give out above the head at once.
            self.ceiling = first_ceiling(config, topic.next_seq - 1, 0)
            topic.ceiling_logged, topic.ceiling_mark = self.ceiling.value, self.ceiling.mark
            topic.raised_head, topic.raised_at_ms = topic.next_seq - 1, shard.clock.now_ms()

    def publish(self) -> None:
        self.end_wait()
        topic, config = self.topic, self.config
        topic.visible = True
        if config is not None:
            if self.changes_need:
                topic.ceiling = self.ceiling.value
                if needs_ceiling(config):
                    self.shard.watch_ceiling(topic)
            self.shard.set_config(topic, config)
            if topic.can_evict:
                evict_over_caps(self.shard, topic)
            if topic.queue is not None and topic.waiters is not None:
                # Jobs of a paused queue, or parked jobs, may be claimable now.
                self.shard.wake_queue.wake(topic)
        call_reply(self.reply, TopicPut(topic.name, created=config is None, config=topic.config))

    def undo(self) -> None:
        self.end_wait()
        topic = self.topic
        topic.next_config, (topic.ceiling_logged, topic.ceiling_mark, _) = self.before
        if self.config is None:
            self.shard.remove_topic(self.topic)

    def refuse(self, refusal: Refusal) -> None:
        call_reply(self.reply, refusal)


class PendingTopicDelete(PendingEntry):
    """A pending deletion of a topic."""

    __slots__ = ("reply", "shard")

    def __init__(self, shard: ShardState, topic: Topic, reply: Reply) -> None:
        super().__init__(topic)
        self.shard = shard
        self.reply = reply

    def publish(self) -> None:
        self.end_wait()
        self.topic.visible = False
        self.shard.remove_topic(self.topic)
        self.shard.wake_queue.wake(self.topic)
        call_reply(self.reply, TopicDeleted(self.topic.name, deleted=True, routes=sorted(self.topic.routes)))
        self._run_deferred()

    def undo(self) -> None:
        self.end_wait()  # `refuse` runs the deferred requests.

    def refuse(self, refusal: Refusal) -> None:
        call_reply(self.reply, refusal)
        self._run_deferred()

    def _run_deferred(self) -> None:
        """Run the requests that were deferred during the deletion, in order."""
        waiting: list[Callable[[], Any]] = self.topic.deferred_requests or []
        self.topic.deferred_requests = None
        for retry in waiting:
            retry()
