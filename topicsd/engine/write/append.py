"""The append path: check a request, assign seqs, frame its records, and join the batch of this turn.

All checks run before any state changes. Once a request has joined the batch, the log decides: the request is
published, and answered, when its durability class is satisfied.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import msgspec

from shared.contract.errors import (
    HEAD_MISMATCH,
    RECORD_TOO_LARGE,
    TOPIC_FULL,
    TOPIC_NOT_FOUND,
    Refusal,
    invalid,
    too_many,
)
from topicsd.engine.pending import PendingEntry, call_reply
from topicsd.engine.queue.delay import NewJobs, new_jobs, new_jobs_frame, new_jobs_frame_bytes
from topicsd.engine.queue.state import add_jobs
from topicsd.engine.requests import AppendAnswer, AppendRequest, Reply
from topicsd.engine.retention.eviction_log import evict_expired, evict_over_caps, prefetch_next_index
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_create import creation_frames, new_topic, register_topic
from topicsd.engine.write.encode_records import Encoded, encode_records, whole_frames
from topicsd.engine.write.keyed_write import IdempotencyKey, WriteIdentity, key_of
from topicsd.engine.write.producer_write import ProducerKey, producer_of
from topicsd.engine.write.schema_check import refuse_mismatch
from topicsd.engine.write.seq_ceiling import raise_ceiling, refuse_seqs
from topicsd.log.control_frame import ForwardCursor, Schedule, encode_control


def append(shard: ShardState, name: str, request: AppendRequest, reply: Reply[AppendAnswer]) -> None:
    """Append all records of a request, or none; `reply` gets `AppendAnswer` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(append, shard, name, request, reply), reply)
        return
    created = topic is None
    if topic is None:
        if shard.new_names.defer(name, partial(append, shard, name, request, reply), reply):
            return
        new = _new_topic(shard, name, request)
        if isinstance(new, Refusal):
            reply(new)
            return
        topic = new
    now_ms = shard.clock.now_ms()
    jobs: NewJobs | None = None
    if request.delay_ms is not None or request.not_before is not None or request.priority is not None:
        jobs_or_refusal = new_jobs(topic, request, now_ms)
        if isinstance(jobs_or_refusal, Refusal):
            reply(jobs_or_refusal)
            return
        jobs = jobs_or_refusal
    key: IdempotencyKey | ProducerKey | None = None
    if request.idempotency_key is not None or request.producer is not None:
        producer = request.producer
        keyed = key_of(topic, request) if producer is None else producer_of(request, producer)
        if isinstance(keyed, Refusal):
            reply(keyed)
            return
        if keyed is not None and keyed.answer_if_duplicate(shard, topic, now_ms, reply):
            return
        key = keyed
    if request.expected_head is not None and request.expected_head != topic.next_seq - 1:
        reply(_refuse_head(request.expected_head, topic))
        return
    ts = now_ms if now_ms > topic.last_ts else topic.last_ts
    records = request.records
    settings = shard.stamped_settings if request.is_stamped else shard.settings
    if not 0 < len(records) <= settings.max_batch_records:
        reply(refuse_count(len(records), settings.max_batch_records))
        return
    encoded = encode_records(
        records, request.node, topic.topic_id, topic.next_seq, ts, topic.is_durable, settings
    )
    if isinstance(encoded, Refusal):
        reply(encoded)
        return
    size = encoded[2]
    refusal = refuse_full(shard, topic, len(records), size) if topic.can_reject else None
    if topic.schema is not None and refusal is None and not request.is_stamped:
        refusal = refuse_mismatch(shard, topic, topic.schema, records)
    if jobs is not None:
        size += new_jobs_frame_bytes(len(records))
    if refusal is None and shard.log.batch.next_position + size > shard.log.admit_limit:
        refusal = shard.log.admit(size, request.disable_backpressure)
    if refusal is not None:
        reply(refusal)
        return
    if created and shard.new_names.defer_creation(
        topic, len(records), partial(append, shard, name, request, reply), reply
    ):
        return
    if jobs is not None:
        pending: PendingAppend = JobsAppend(jobs, shard, topic, encoded, ts, key, reply, created)
    else:
        pending = PendingAppend(shard, topic, encoded, ts, key, reply, created)
    topic.last_ts = ts
    join_append(shard, topic, pending, now_ms)


def _new_topic(shard: ShardState, name: str, request: AppendRequest) -> Topic | Refusal:
    if request.create is False:
        no_topic = Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist and create is false')
        return shard.departure_of(name) or no_topic
    return new_topic(shard, name, request.config, len(request.records), "config")


def _refuse_head(expected: int, topic: Topic) -> Refusal:
    head = topic.next_seq - 1
    message = f"expected_head: must be {head}, the head including writes in progress, got {expected}"
    return Refusal(HEAD_MISMATCH, message, {"field": "expected_head", "head_seq": head})


def refuse_count(count: int, bound: int) -> Refusal:
    if count == 0:
        return invalid("records", "must not be empty")
    return too_many("records", bound, count)


def refuse_full(shard: ShardState, topic: Topic, count: int, size: int) -> Refusal | None:
    """Refuse records over the caps of a topic that discards nothing, or over the ceiling of the catalog.

    Pending records count.
    """
    refusal = refuse_seqs(shard, topic, count)
    if refusal is not None:
        return refusal
    if topic.config.discard != "reject":
        return None
    evict_expired(shard, topic, shard.clock.now_ms())
    config = topic.config
    for field, unit, cap, new, used in (
        ("cap_records", "records", config.cap_records, count, topic.live_count + topic.pending_count),
        ("cap_bytes", "bytes", config.cap_bytes, size, topic.live_bytes + topic.pending_bytes),
    ):
        if cap and new > cap:
            message = f"records: must fit {field} of the topic, which is {cap}, got {new} {unit}"
            return Refusal(RECORD_TOO_LARGE, message, {"field": "records", "max": cap})
        if cap and used + new > cap:
            detail: dict[str, object] = {
                "cap_records": config.cap_records,
                "cap_bytes": config.cap_bytes,
                "head_seq": topic.head,
                "earliest_seq": topic.earliest_seq,
            }
            content = f"{used} {unit.removesuffix('s') if used == 1 else unit}"
            message = (
                f'topic "{topic.name}" is full: it holds {content}, {field} is {cap}; '
                f"delete records, or raise {field}"
            )
            return Refusal(TOPIC_FULL, message, detail)
    return None


def join_append(shard: ShardState, topic: Topic, pending: PendingAppend, now_ms: int) -> None:
    """Join a checked request to the batch of this turn."""
    log = shard.log
    parts, lengths, size, _ = pending.encoded
    frame_count = len(lengths)
    if topic.can_evict and topic.config.ttl_ms:
        evict_expired(shard, topic, now_ms)
    leading = _leading_frames(shard, topic, pending) if pending.created or pending.key is not None else None
    topic.next_seq += frame_count
    topic.pending_bytes += size
    if topic.next_seq > topic.ceiling_mark:
        raise_ceiling(shard, topic, now_ms)
    waits = (
        topic.is_durable
        or topic.waiting_count > 0
        or topic.next_seq > topic.ceiling + 1
        or log.is_lagging
        or pending.created
    )
    if waits:
        pending.count_as_waiting()
    if topic.is_ephemeral or not parts:
        parts, size, frame_count = [], 0, 0
    pending.position = log.batch.next_position
    if leading:
        leading_bytes = sum(map(len, leading))
        pending.position += leading_bytes
        parts, size, frame_count = leading + parts, leading_bytes + size, len(leading) + frame_count
    if pending.jobs is not None and not topic.is_ephemeral:
        frame = new_jobs_frame(topic, pending.first_seq, len(lengths), pending.jobs)
        parts, size, frame_count = [*parts, frame], size + len(frame), frame_count + 1
    log.join(parts, size, frame_count, pending, waits)


def _leading_frames(shard: ShardState, topic: Topic, pending: PendingAppend) -> list[bytes]:
    """Return the frames to log before the records: the topic's creation, the key of the write."""
    frames = []
    if pending.created:
        assert topic.epoch == shard.next_epoch() or shard.catalog_work.is_started
        frames += creation_frames(shard, topic)
        register_topic(shard, topic)
    key = pending.key
    if key is not None:
        control = key.on_join(pending)
        # An ephemeral topic loses its keys with its records, so they are not logged. The position of a route
        # or a schedule is logged, since it resumes there.
        if not topic.is_ephemeral or isinstance(control, ForwardCursor | Schedule):
            frames.append(encode_control(control, topic_id=topic.topic_id, ts=pending.ts))
    return frames


class PendingAppend(PendingEntry):
    """An append that has joined the log, pending until its durability class is satisfied."""

    __slots__ = (
        "created",
        "duplicate_replies",
        "durability",
        "encoded",
        "first_seq",
        "key",
        "position",
        "reply",
        "shard",
        "ts",
        "ts_before",
    )

    jobs: NewJobs | None = None
    """The delay and the priority of new jobs, if they have any."""
    originals: array[int] | None = None
    """The log positions of the original records, for copies by reference."""

    def __init__(
        self,
        shard: ShardState,
        topic: Topic,
        encoded: Encoded,
        ts: int,
        key: WriteIdentity | None,
        reply: Reply[AppendAnswer],
        created: bool,
    ) -> None:
        # Inlined from `PendingEntry.__init__`: hot path.
        self.topic = topic
        self._is_waiting = False
        self.shard = shard
        self.encoded = encoded
        self.ts = ts
        self.ts_before = topic.last_ts
        self.key = key
        self.reply = reply
        self.created = created
        self.first_seq = topic.next_seq
        self.position = 0
        self.durability = topic.config.durability
        self.duplicate_replies: list[Reply[AppendAnswer]] | None = None
        """The replies of repeats of this write that arrived while it was pending."""

    def publish(self) -> None:
        topic = self.topic
        if self._is_waiting:
            self.end_wait()
        parts, lengths, size, tags = self.encoded
        run = topic.run
        run.extend(self.position, lengths, self.ts, self.originals)
        if run.frames is not None:
            run.frames += whole_frames(parts)
        assert topic.head == self.first_seq - 1
        topic.head += len(lengths)
        topic.add_live(len(lengths), size)
        topic.pending_bytes -= size
        if not topic.visible:
            self.shard.show(topic)
        if tags is not None:
            for seq, tag in enumerate(tags, self.first_seq):
                if tag:
                    run.tags.add(tag, seq)
        if topic.queue is not None and (topic.queue.needs_tags or self.jobs is not None):
            add_jobs(topic.queue, self.first_seq, len(lengths), tags, self.jobs)
        if topic.can_evict:
            evict_over_caps(self.shard, topic)
            if topic.runs[0] is not run:
                prefetch_next_index(self.shard, topic)
        head = topic.head
        # Positional arguments: keyword arguments would cost more than the rest of the answer.
        answer = AppendAnswer(topic.name, self.first_seq, head, head, self.created, False, self.durability)
        if self.key is not None:
            self.key.on_commit(self)
        if topic.waiters is not None:
            self.shard.wake_queue.wake(topic)
        if self.duplicate_replies is not None:
            for reply in self.duplicate_replies:
                call_reply(reply, msgspec.structs.replace(answer, created=False, deduped=True))
        # Last and unguarded: the caller of `publish` logs an exception of the reply.
        self.reply(answer)

    def undo(self) -> None:
        self.end_wait()
        topic = self.topic
        topic.next_seq = self.first_seq
        topic.last_ts = self.ts_before
        topic.pending_bytes -= self.encoded[2]
        if self.key is not None:
            self.key.on_abort(self)
        if self.created:
            self.shard.delete_topic(topic)

    def refuse(self, refusal: Refusal) -> None:
        if self.key is not None:
            self.key.on_abort(self)
        call_reply(self.reply, refusal)
        for reply in self.duplicate_replies or ():
            call_reply(reply, refusal)


class JobsAppend(PendingAppend):
    """An append of jobs with a delay or a priority; a subclass, so that other appends need no slot for it."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: NewJobs, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.jobs = jobs


class ReferringAppend(PendingAppend):
    """An append of copies by reference: the frame of its key names the records in the log."""

    __slots__ = ("originals",)

    def __init__(self, originals: array[int], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.originals = originals
