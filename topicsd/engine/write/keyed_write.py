"""A write with an idempotency key: answer it if the key was used before, otherwise log the key with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from shared.contract.errors import IDEMPOTENCY_MISMATCH, Refusal, invalid, limit_reached
from topicsd.engine.requests import AppendAnswer, AppendRequest, Reply
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.encode_records import records_digest
from topicsd.engine.write.idempotency import KeyedWrite, key_digest
from topicsd.log.control_frame import ControlPayload, Idempotency

if TYPE_CHECKING:
    from topicsd.engine.write.append import PendingAppend

KEY_CHARACTERS_MAX = 256


class WriteIdentity(Protocol):
    """The identity of a write that must be applied once; its frame is logged before the records."""

    def on_join(self, pending: PendingAppend) -> ControlPayload:
        """Note the write as pending; return the frame to log before its records."""
        ...

    def on_commit(self, pending: PendingAppend) -> None:
        """Store the write as published."""
        ...

    def on_abort(self, pending: PendingAppend) -> None:
        """Forget the pending write; called by the undo of a failed write, and by its refusal."""
        ...


class IdempotencyKey(NamedTuple):
    """The idempotency key of a write, and the digest of its records."""

    digest: bytes
    records: bytes

    def answer_if_duplicate(
        self, shard: ShardState, topic: Topic, now_ms: int, reply: Reply[AppendAnswer]
    ) -> bool:
        return answer_known_key(shard, topic, self, now_ms, reply)

    def on_join(self, pending: PendingAppend) -> ControlPayload:
        """Note the write as pending; return the frame to log before its records."""
        pending.shard.pending_keys[self.digest] = pending
        return Idempotency(self.digest, self.records, pending.first_seq, len(pending.encoded[1]))

    def on_commit(self, pending: PendingAppend) -> None:
        """Store the use of the key by a published write."""
        shard, topic = pending.shard, pending.topic
        del shard.pending_keys[self.digest]
        write = KeyedWrite(self.records, pending.first_seq, len(pending.encoded[1]))
        window_ms = topic.config.idempotency_window_ms
        shard.idempotency_keys.add(
            self.digest, write, window_ms, pending.ts, topic.topic_id, not topic.is_ephemeral
        )

    def on_abort(self, pending: PendingAppend) -> None:
        """Forget the pending write; called by the undo of a failed write, and by its refusal."""
        pending.shard.pending_keys.pop(self.digest, None)


def key_of(topic: Topic, request: AppendRequest) -> IdempotencyKey | Refusal | None:
    """Return the key of a request; None without one, or when the window of the topic is off."""
    key = request.idempotency_key
    if key is None or not topic.config.idempotency_window_ms:
        return None
    refusal = refuse_key(key)
    if refusal is not None:
        return refusal
    digest = key_digest(topic.epoch, topic.topic_id, key)
    return IdempotencyKey(digest, records_digest(request.records, request.node))


def refuse_key(key: str) -> Refusal | None:
    if 0 < len(key) <= KEY_CHARACTERS_MAX:
        return None
    rule = f"must be 1 to {KEY_CHARACTERS_MAX} characters, got {len(key)}"
    return invalid("idempotency_key", rule, KEY_CHARACTERS_MAX)


def answer_known_key(
    shard: ShardState, topic: Topic, key: IdempotencyKey, now_ms: int, reply: Reply[AppendAnswer]
) -> bool:
    """Answer a write whose key is known or has no room; return False for a new write.

    A repeat of a pending write is answered together with it.
    """
    pending = shard.pending_keys.get(key.digest)
    if pending is not None:
        assert isinstance(pending.key, IdempotencyKey)
        if pending.key.records != key.records:
            reply(_mismatch())
        else:
            pending.duplicate_replies = [*(pending.duplicate_replies or ()), reply]
        return True
    first = shard.idempotency_keys.find(key.digest, topic.windows_ms, now_ms)
    if first is not None:
        reply(
            _mismatch()
            if first.records != key.records
            else AppendAnswer(
                topic.name,
                first.first_seq,
                first.first_seq + first.records_count - 1,
                topic.head,
                created=False,
                deduped=True,
                durability=topic.config.durability,
            )
        )
        return True
    if not shard.idempotency_keys.has_room(now_ms, len(shard.pending_keys)):
        bound = shard.settings.max_idempotency_keys
        usage = f"the shard remembers {bound} idempotency keys"
        reply(limit_reached("max_idempotency_keys", bound, usage))
        return True
    return False


def _mismatch() -> Refusal:
    message = "idempotency_key: already used for other records; repeat those records or send a new key"
    return Refusal(IDEMPOTENCY_MISMATCH, message, {"field": "idempotency_key"})
