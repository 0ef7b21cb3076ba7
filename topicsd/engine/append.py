"""An append: check it, give it seqs, frame it, and have it join the batch of this turn.

Nothing is changed before everything that can be refused has been looked at. From joining the batch on the
log decides: the request is published, and answered, when its class is satisfied.

Must not know: HTTP, how the batch is written.
"""

from __future__ import annotations

from functools import partial

import msgspec

from shared.errors import (
    BATCH_TOO_LARGE,
    INVALID_REQUEST,
    RECORD_TOO_LARGE,
    TOPIC_FULL,
    TOPIC_NOT_FOUND,
    Refusal,
)
from topicsd.engine.ceilings import raise_ceiling
from topicsd.engine.dedupe import KeyedWrite
from topicsd.engine.encode_records import EncodedRecords, encode_records
from topicsd.engine.keyed_write import Key, key_of, settled_by_key
from topicsd.engine.requests import Appended, AppendRequest, Reply
from topicsd.engine.retention import enforce_caps
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_create import encode_create, new_topic, register_topic
from topicsd.engine.trim_report import log_expired
from topicsd.wal.control_frame import Idempotency, encode_control


def append(shard: ShardState, name: str, request: AppendRequest, reply: Reply) -> None:
    """Append all records of the request, or none; `reply` gets `Appended` or a `Refusal`."""
    topic = shard.topics.get(name)
    if topic is not None and topic.leaving is not None:
        topic.leaving.append(partial(append, shard, name, request, reply))
        return
    created = topic is None
    if topic is None:
        if request.create is False:
            reply(Refusal(TOPIC_NOT_FOUND, f'topic "{name}" does not exist, and create is false'))
            return
        made = new_topic(shard, name, request.config, len(request.records))
        if isinstance(made, Refusal):
            reply(made)
            return
        topic = made
    now_ms = shard.clock.now_ms()
    key: Key | None = None
    if request.idempotency_key is not None:
        keyed = key_of(topic, request)
        if isinstance(keyed, Refusal):
            reply(keyed)
            return
        if keyed is not None and settled_by_key(shard, topic, keyed, now_ms, reply):
            return
        key = keyed
    ts = now_ms if now_ms > topic.last_ts else topic.last_ts
    encoded = _encode(shard, topic, request, ts)
    if isinstance(encoded, Refusal):
        reply(encoded)
        return
    topic.last_ts = ts
    _join(shard, topic, PendingAppend(shard, topic, encoded, ts, key, reply, created), now_ms)


def _encode(shard: ShardState, topic: Topic, request: AppendRequest, ts: int) -> EncodedRecords | Refusal:
    """The request's frames, if it can be taken."""
    settings = shard.settings
    records = request.records
    if len(records) > settings.max_batch_records:
        message = (
            f"records: has {len(records)}, at most {settings.max_batch_records} are allowed in one write"
        )
        return Refusal(BATCH_TOO_LARGE, message, {"field": "records", "max": settings.max_batch_records})
    if not records:
        return Refusal(INVALID_REQUEST, "records: is empty, at least one is needed", {"field": "records"})
    encoded = encode_records(
        records,
        request.node,
        topic.topic_id,
        topic.next_seq,
        ts,
        topic.config.durability == "fsync",
        settings,
    )
    if isinstance(encoded, Refusal):
        return encoded
    if topic.is_capped and topic.config.discard == "reject":
        refusal = _refuse_full(shard, topic, encoded)
        if refusal is not None:
            return refusal
    return shard.log.admit(encoded.size_bytes) or encoded


def _refuse_full(shard: ShardState, topic: Topic, encoded: EncodedRecords) -> Refusal | None:
    """What a topic that discards nothing has no room for; records on their way count."""
    log_expired(shard, topic, shard.clock.now_ms())
    config = topic.config
    count, size = len(encoded.lengths), encoded.size_bytes
    for field, cap, new, used in (
        ("cap_records", config.cap_records, count, topic.live_count + topic.pending_count),
        ("cap_bytes", config.cap_bytes, size, topic.live_bytes + topic.pending_bytes),
    ):
        if cap and new > cap:
            message = f"records: this write alone is {new}, the {field} of the topic is {cap}"
            return Refusal(RECORD_TOO_LARGE, message, {"field": "records", "max": cap})
        if cap and used + new > cap:
            detail: dict[str, object] = {
                "cap_records": config.cap_records,
                "cap_bytes": config.cap_bytes,
                "head_seq": topic.head,
                "earliest_seq": topic.earliest_seq,
            }
            return Refusal(
                TOPIC_FULL, f'topic "{topic.name}" is full: {field} is {cap}, {used} are in use', detail
            )
    return None


def _join(shard: ShardState, topic: Topic, pending: PendingAppend, now_ms: int) -> None:
    """Everything was looked at: the request becomes part of the log."""
    log, encoded = shard.log, pending.encoded
    if topic.config.ttl_ms and topic.is_capped:
        log_expired(shard, topic, now_ms)
    ahead = []
    if pending.created:
        topic.epoch = log.batch.next_ordinal
        register_topic(shard, topic)
        ahead.append(encode_create(topic))
    if pending.key is not None:
        shard.keyed[pending.key.digest] = pending
        ahead.append(_encode_key(topic, pending, pending.key))
    topic.next_seq += len(encoded.lengths)
    topic.pending_bytes += encoded.size_bytes
    if topic.next_seq > topic.ceiling_mark:
        raise_ceiling(shard, topic, now_ms)
    waits = (
        pending.created
        or topic.config.durability == "fsync"
        or topic.next_seq - 1 > topic.ceiling
        or shard.must_wait(topic)
    )
    if topic.is_ephemeral:
        if waits:
            log.join(ahead, sum(map(len, ahead)), len(ahead), pending, wait_for_sync=True)
            topic.sync_after = log.batch.next_position
        else:
            pending.publish()
        return
    parts, size, count = encoded.parts, encoded.size_bytes, len(encoded.lengths)
    pending.position = log.batch.next_position
    if ahead:
        ahead_bytes = sum(map(len, ahead))
        parts, size, count = ahead + parts, ahead_bytes + size, len(ahead) + count
        pending.position += ahead_bytes
    if waits:
        topic.sync_after = pending.position + encoded.size_bytes
    log.join(parts, size, count, pending, waits)


def _encode_key(topic: Topic, pending: PendingAppend, key: Key) -> bytes:
    control = Idempotency(key.digest, key.records, topic.next_seq, len(pending.encoded.lengths))
    return encode_control(control, topic_id=topic.topic_id, ts=pending.ts)


class PendingAppend:
    """A request that has its seqs and joined the log, until its class is satisfied."""

    __slots__ = (
        "also_waiting",
        "created",
        "durability",
        "encoded",
        "first_seq",
        "key",
        "position",
        "reply",
        "shard",
        "topic",
        "ts",
    )

    def __init__(
        self,
        shard: ShardState,
        topic: Topic,
        encoded: EncodedRecords,
        ts: int,
        key: Key | None,
        reply: Reply,
        created: bool,
    ) -> None:
        self.shard = shard
        self.topic = topic
        self.encoded = encoded
        self.ts = ts
        self.key = key
        self.reply = reply
        self.created = created
        self.first_seq = topic.next_seq
        self.position = 0
        self.durability = topic.config.durability
        self.also_waiting: list[Reply] = []
        """Repeats of the write under its key that came while it was on its way."""

    def publish(self) -> None:
        topic, encoded = self.topic, self.encoded
        count = len(encoded.lengths)
        topic.run.extend(self.position, encoded.lengths, self.ts)
        if topic.run.frames is not None:
            topic.run.frames += encoded.whole_frames()
        assert topic.head == self.first_seq - 1
        topic.head += count
        topic.live_count += count
        topic.live_bytes += encoded.size_bytes
        topic.pending_bytes -= encoded.size_bytes
        topic.visible = True
        if encoded.tags is not None:
            for seq, tag in enumerate(encoded.tags, self.first_seq):
                if tag:
                    topic.tags.add(tag, seq)
        if topic.is_capped:
            enforce_caps(topic)
        answer = Appended(
            topic.name,
            self.first_seq,
            topic.head,
            topic.head,
            self.created,
            deduped=False,
            durability=self.durability,
        )
        if self.key is not None:
            self._remember_key(self.key)
        self.reply(answer)
        for reply in self.also_waiting:
            reply(msgspec.structs.replace(answer, created=False, deduped=True))

    def undo(self) -> None:
        topic = self.topic
        topic.next_seq = self.first_seq
        topic.pending_bytes -= self.encoded.size_bytes
        if self.created:
            self.shard.remove_topic(topic)

    def refuse(self, refusal: Refusal) -> None:
        if self.key is not None:
            del self.shard.keyed[self.key.digest]
        self.reply(refusal)
        for reply in self.also_waiting:
            reply(refusal)

    def _remember_key(self, key: Key) -> None:
        shard, topic = self.shard, self.topic
        del shard.keyed[key.digest]
        write = KeyedWrite(key.records, self.first_seq, len(self.encoded.lengths))
        shard.dedupe.add(key.digest, write, topic.config.idempotency_window_ms, self.ts)
