"""Operations on whole topics: create, configure, delete, and return the state.

Configuration is always durable: these requests wait for a sync whatever the topic's class. A change takes
effect when its frame is on the disk; records appended before that keep the class they were appended under.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shared.contract.errors import TOPIC_NOT_EMPTY, TOPIC_NOT_FOUND, Refusal
from shared.contract.topic_config import TopicConfigPatch
from topicsd.engine.ownership.departed import FORGOTTEN, refuse_to_delete
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.queue.job import Counts
from topicsd.engine.queue.job_age import oldest_ready_ms
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.requests import Reply, TopicDeleted, TopicPut, TopicState
from topicsd.engine.retention.eviction_log import evict_expired, evict_over_caps
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_create import config_after, creation_frames, new_topic, register_topic
from topicsd.engine.write.seq_ceiling import Ceiling, first_ceiling, needs_ceiling, set_mark
from topicsd.log.control_frame import ConfigUpdate, TopicDelete

# The number of due jobs that one request for the state of a queue makes ready first. It is generous, because
# the counts should be current and the request is rare.
SEEN_MAX: Final = 500


def put_topic(shard: ShardState, name: str, patch: TopicConfigPatch, reply: Reply[TopicPut]) -> None:
    """Create a topic, or patch its configuration; `reply` gets `TopicPut` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is None:
        _create_topic(shard, name, patch, reply)
    elif topic.deferred_requests is not None:
        shard.defer(topic, partial(put_topic, shard, name, patch, reply), reply)
    else:
        _patch_topic(shard, topic, patch, reply)


def _create_topic(shard: ShardState, name: str, patch: TopicConfigPatch, reply: Reply[TopicPut]) -> None:
    retry = partial(put_topic, shard, name, patch, reply)
    if shard.new_names.defer(name, retry, reply):
        return
    topic = new_topic(shard, name, patch, 0)
    if isinstance(topic, Refusal):
        reply(topic)
        return
    if (refusal := shard.log.admit_control()) is not None:
        reply(refusal)
        return
    if shard.new_names.defer_creation(topic, 0, retry, reply):
        return
    frames = creation_frames(shard, topic)
    register_topic(shard, topic)

    def publish() -> None:
        shard.show(topic)
        call_reply(reply, TopicPut(name, created=True, config=topic.config))

    pending = PendingControl(topic, publish, reply, undo=partial(shard.delete_topic, topic))
    shard.join_durable(frames, pending)


def _patch_topic(shard: ShardState, topic: Topic, patch: TopicConfigPatch, reply: Reply[TopicPut]) -> None:
    before = topic.next_config
    config = config_after(shard, before, patch, topic.name)
    if isinstance(config, Refusal):
        reply(config)
        return
    if (refusal := shard.log.admit_control()) is not None:
        reply(refusal)
        return
    # While anything is pending this request waits too: it may be a change to another configuration and back.
    if config == topic.config == before and topic.visible and not topic.waiting_count:
        reply(TopicPut(topic.name, created=False, config=config))
        return
    ceiling_before = ceiling = Ceiling(topic.ceiling_logged, topic.ceiling_mark)
    changes_need = needs_ceiling(config) != needs_ceiling(before)
    if changes_need:
        # Logged with the change, so that a weaker class has seqs to give out above the head at once.
        ceiling = first_ceiling(config, topic.next_seq - 1, 0)
        topic.ceiling_logged = ceiling.value
        set_mark(topic, ceiling.mark)
        topic.raised_head, topic.raised_at_ms = topic.next_seq - 1, shard.clock.now_ms()
    topic.next_config = config

    def publish() -> None:
        shard.show(topic)
        if changes_need:
            topic.ceiling = ceiling.value
            if needs_ceiling(config):
                shard.watch_ceiling(topic)
        shard.set_config(topic, config)
        if topic.can_evict:
            evict_over_caps(shard, topic)
        if topic.queue is not None and topic.waiters is not None:
            # Jobs of a paused queue, or parked jobs, may be claimable now.
            shard.wake_queue.wake(topic)
        call_reply(reply, TopicPut(topic.name, created=False, config=topic.config))

    def undo() -> None:
        topic.next_config = before
        topic.ceiling_logged = ceiling_before.value
        set_mark(topic, ceiling_before.mark)

    pending = PendingControl(topic, publish, reply, undo)
    shard.join_config(topic, ConfigUpdate(config, ceiling.value), pending)


def delete_topic(shard: ShardState, name: str, if_empty: bool, reply: Reply[TopicDeleted]) -> None:
    """Delete a topic with all its records; `reply` gets `TopicDeleted` or a `Refusal`.

    A departed topic can be deleted when the catalog has forgotten it: then no other node needs its files.
    """
    topic = shard.topics.get(name)
    if topic is None and shard.new_names.defer(
        name, partial(delete_topic, shard, name, if_empty, reply), reply
    ):
        return
    if topic is None and (departed := shard.departed.get(name)) is not None:
        topic = shard.topics_by_id.get(departed.topic_id) if departed.state == FORGOTTEN else None
        if topic is None:
            reply(refuse_to_delete(departed))
            return
    if topic is None:
        reply(shard.departure_of(name) or TopicDeleted(name, deleted=False))
        return
    if topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_topic, shard, name, if_empty, reply), reply)
        return
    refusal = shard.log.admit_control()
    if refusal is None and if_empty:
        refusal = _refuse_if_not_empty(shard, topic)
    if refusal is not None:
        reply(refusal)
        return
    topic.deferred_requests = []

    def end(answer: TopicDeleted | Refusal) -> None:
        """Reply, and run the requests that were deferred during the deletion, in order."""
        call_reply(reply, answer)
        retry_deferred(topic)

    join_deletion(shard, topic, end)


def join_deletion(
    shard: ShardState, topic: Topic, reply: Reply[TopicDeleted], has_moved: bool = False
) -> None:
    """Log the deletion of a topic whose requests are deferred; `reply` gets the outcome after the sync."""
    assert topic.deferred_requests is not None

    def publish() -> None:
        topic.visible = False
        shard.delete_topic(topic, has_moved)
        shard.wake_queue.wake(topic)
        reply(TopicDeleted(topic.name, deleted=True, routes=sorted(topic.routes)))

    shard.join_config(topic, TopicDelete(topic.epoch, has_moved), PendingControl(topic, publish, reply))


def retry_deferred(topic: Topic) -> None:
    """End the deferral of a topic's requests, and run those that waited, in order."""
    waiting = topic.deferred_requests or []
    topic.deferred_requests = None
    for request in waiting:
        request.retry()


def _refuse_if_not_empty(shard: ShardState, topic: Topic) -> Refusal | None:
    evict_expired(shard, topic, shard.clock.now_ms())
    count = topic.live_count + topic.pending_count
    if not count:
        return None
    message = f'topic "{topic.name}" is not empty: it holds {count} {"record" if count == 1 else "records"}'
    return Refusal(TOPIC_NOT_EMPTY, message, {"count": count})


def topic_state(shard: ShardState, name: str, is_use: bool = False) -> TopicState | Refusal:
    """Return the state of a topic; `is_use` counts it as consumed, which raises its priority."""
    topic = shard.visible_topic(name)
    if topic is None:
        return missing_topic(shard, name)
    now_ms = shard.clock.now_ms()
    evict_expired(shard, topic, now_ms)
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


def missing_topic(shard: ShardState, name: str) -> Refusal:
    """Return the refusal of a request for a topic that is not on this shard."""
    return shard.departure_of(name) or topic_not_found(name)


def topic_not_found(name: str) -> Refusal:
    return Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist')
