"""Handlers of the endpoints, for every kind of connection: decode, call the engine, render."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from shared.contract.errors import NOT_IMPLEMENTED, Refusal
from shared.contract.names import refuse_topic_name
from shared.runtime.disk_thread import Loop
from shared.settings.settings import Settings
from topicsd.engine.queue.claim import queue_of
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import (
    AppendAnswer,
    AppendRequest,
    DeleteAnswer,
    Reply,
    StampedAppend,
    TopicDeleted,
    TopicPut,
)
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import delete_topic, put_topic, topic_state
from topicsd.engine.write.append import append
from topicsd.service.call import Call, reply_of
from topicsd.service.cursors import CursorHandlers
from topicsd.service.input.bodies import (
    APPEND_BODY,
    PUBLISH_BODY,
    decode_append,
    decode_delete,
    decode_patch,
    delete_request,
    refuse_media_type,
)
from topicsd.service.input.bound_names import CONFIG_NEEDS_ADMIN, refuse_dead_letter
from topicsd.service.input.clamped import clamped_config, member, with_member
from topicsd.service.input.json_body import JsonBody
from topicsd.service.input.query import query_boolean, query_seek
from topicsd.service.queues.handlers import QueueHandlers
from topicsd.service.render import encode, render_appended, render_config, render_queue
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shards.caps import Caps

# These operations take no body.
WITHOUT_BODY = frozenset(
    {"topic_state", "delete_topic", "list_cursors", "cursor_state", "delete_cursor", "explain"}
)


_decode_stamped = msgspec.json.Decoder(StampedAppend).decode

OnTopicDeleted = Callable[[str, int, Callable[[list[str]], object]], None]


def _report_no_routes(name: str, epoch: int, reply: Callable[[list[str]], object]) -> None:
    reply([])


# Approximate bytes of a record in the log besides its data.
FRAME_BYTES = 64


class Handlers:
    def __init__(self, shard: Shard, settings: Settings, loop: Loop, caps: Caps | None = None) -> None:
        """Build the table of handlers; `caps` exist on a server with several shards."""
        self.shard = shard
        self._topics = shard.state.topics
        self.settings = settings
        self.loop = loop
        self._caps = caps or Caps(shard.state)
        self.monotonic = shard.state.clock.monotonic
        self.body_bytes_max = settings.max_body_bytes
        self.counts = RequestCounts()
        self.on_topic_deleted: OnTopicDeleted = _report_no_routes
        """Called with the name and epoch of a deleted topic; reports the routes deleted with it."""
        queues = QueueHandlers(shard.state, settings, self.performance)
        self._table = {
            "append": self._append,
            "publish": lambda call: self._append(call, PUBLISH_BODY),
            "dead_letter": self._append_moved,
            "bring_back": self._append_redriven,
            "put_topic": self._put_topic,
            "topic_state": self._topic_state,
            "delete_topic": self._delete_topic,
            "delete_records": self._delete_records,
            **CursorHandlers(shard.state, self.performance).table,
            **queues.table,
        }

    def add(self, operation: str, handler: Callable[[Call], None]) -> None:
        """Add a handler that depends on more than this shard."""
        self._table[operation] = handler

    def start(self, operation: str, call: Call) -> None:
        """Answer the call, now or later, once."""
        handler = self._table.get(operation)
        if handler is None:
            call.refuse(Refusal(NOT_IMPLEMENTED, f"{operation} is not implemented"))
            return
        # The name of an existing topic was checked when the topic was created.
        refusal = None if call.name in self._topics else refuse_topic_name(call.name)
        fields = call.fields
        if fields.content_type != "application/json" and call.body and operation not in WITHOUT_BODY:
            refusal = refusal or refuse_media_type(fields, call.body)
        if refusal is not None:
            call.refuse(refusal)
        else:
            handler(call)

    def elapsed_us(self, call: Call) -> int:
        return int((self.monotonic() - call.started) * 1e6)

    def performance(self, call: Call) -> dict[str, float]:
        elapsed_us = self.elapsed_us(call)
        others = self.counts.others
        others.counts[elapsed_us.bit_length()] += 1
        others.total += elapsed_us
        return {"server_total_ms": round(elapsed_us / 1000, 3)}

    def _append(self, call: Call, kind: JsonBody[AppendRequest] = APPEND_BODY) -> None:
        with_seqs = True
        if call.query:
            return_seqs = query_boolean(call.query, "return_seqs", True)
            if isinstance(return_seqs, Refusal):
                call.refuse(return_seqs)
                return
            with_seqs = return_seqs
        request = decode_append(call.body, self.settings, kind)
        if isinstance(request, Refusal):
            call.refuse(request)
            return
        if request.config is not None:
            refusal = refuse_dead_letter(call.prefixes, request.config)
            if not call.is_admin:
                refusal = CONFIG_NEEDS_ADMIN
            if refusal is not None:
                call.refuse(refusal)
                return
        if request.idempotency_key is None and call.fields.idempotency_key:
            request.idempotency_key = call.fields.idempotency_key

        log = self.shard.log

        def reply(answer: AppendAnswer | Refusal) -> None:
            if isinstance(answer, Refusal):
                call.refuse(answer)
                return
            try:
                elapsed_us = int((self.monotonic() - call.started) * 1e6)
                appends = self.counts.appends
                appends.counts[elapsed_us.bit_length()] += 1
                appends.total += elapsed_us
                if answer.last_seq != answer.first_seq:
                    self.counts.records_beyond_first += answer.last_seq - answer.first_seq
                body = render_appended(answer, with_seqs, elapsed_us, log.published_times)
                if answer.created:
                    if request.config is not None:
                        config = self._topics[call.name].config
                        body = with_member(body, clamped_config(request.config, config, "config."))
                    call.send(body, 201)
                else:
                    call.send(body)
            except Exception as error:
                call.fail("append", error)

        self._join_append(call, request, reply)

    def _append_redriven(self, call: Call) -> None:
        """Append redriven jobs, only to an existing queue."""
        queue = queue_of(self.shard.state, call.name)
        if isinstance(queue, Refusal):
            call.refuse(queue)
        else:
            self._append_moved(call, create=False)

    def _append_moved(self, call: Call, create: bool | None = None) -> None:
        """Append the records of a transfer (`transfer.py`). No endpoint leads here."""
        request = _decode_stamped(call.body)
        if create is not None:
            request.create = create

        def respond(answer: AppendAnswer) -> None:
            call.send(b"{}", 201 if answer.created else 200)

        self._join_append(call, request, reply_of(call, respond))

    def _join_append(self, call: Call, request: AppendRequest, reply: Reply[AppendAnswer]) -> None:
        caps, state = self._caps, self.shard.state
        counts_topic = (
            caps.has_shared_topic_cap and call.name not in state.topics and request.create is not False
        )
        if counts_topic or caps.bytes_max:
            self._append_capped(call, request, reply, counts_topic)
        else:
            append(state, call.name, request, reply)

    def _append_capped(
        self, call: Call, request: AppendRequest, reply: Reply[AppendAnswer], counts_topic: bool
    ) -> None:
        """Append, or refuse because of a cap over all shards."""
        caps, final_reply = self._caps, reply
        if caps.bytes_max:
            size = len(call.body) + FRAME_BYTES * len(request.records)
            refusal = caps.begin_bytes(call.name, request, size)
            if refusal is not None:
                call.refuse(refusal)
                return

            def final_reply(answer: AppendAnswer | Refusal) -> None:
                caps.end_bytes(size)
                reply(answer)

        create = _guarded(call, "append", lambda: append(self.shard.state, call.name, request, final_reply))
        if counts_topic:
            caps.create_topic(call.name, create, final_reply)
        else:
            create()

    def is_key_kept(self, name: str, retried_after_ms: int) -> bool:
        """Return whether a key used `retried_after_ms` ago is still remembered if its write was applied."""
        topic = self.shard.state.topics.get(name)
        return topic is None or topic.config.idempotency_window_ms > retried_after_ms

    def _put_topic(self, call: Call) -> None:
        decoded = decode_patch(call.body)
        if not isinstance(decoded, Refusal):
            decoded = refuse_dead_letter(call.prefixes, decoded) or decoded
        patch = decoded
        if isinstance(patch, Refusal):
            call.refuse(patch)
            return

        def respond(answer: TopicPut) -> None:
            body = {
                "topic": answer.topic,
                "created": answer.created,
                "config": render_config(answer.config),
                **member(clamped_config(patch, answer.config)),
                "performance": self.performance(call),
            }
            call.send(encode(body), 201 if answer.created else 200)

        reply = reply_of(call, respond)
        state, caps = self.shard.state, self._caps
        if caps.has_shared_topic_cap and call.name not in state.topics:
            create = _guarded(call, "put_topic", lambda: put_topic(state, call.name, patch, reply))
            caps.create_topic(call.name, create, reply)
        else:
            put_topic(state, call.name, patch, reply)

    def _topic_state(self, call: Call) -> None:
        position = query_seek(call.query, self.shard.state.clock) if call.query else None
        if isinstance(position, Refusal):
            call.refuse(position)
        elif position is not None:

            def respond(from_seq: int) -> None:
                self._answer_state(call, {"from_seq": from_seq})

            seek(self.shard.state, call.name, position, reply_of(call, respond))
        else:
            self._answer_state(call, {})

    def _answer_state(self, call: Call, position: dict[str, int]) -> None:
        touch = query_boolean(call.query, "touch", True)
        state = touch if isinstance(touch, Refusal) else topic_state(self.shard.state, call.name, touch)
        if isinstance(state, Refusal):
            call.refuse(state)
            return
        body = {
            "topic": state.topic,
            "type": state.config.type,
            "head_seq": state.head_seq,
            "earliest_seq": state.earliest_seq,
            "evict_floor": state.evict_floor,
            "next_seq": state.head_seq + 1,
            "count": state.count,
            "bytes": state.bytes,
            "config": render_config(state.config),
            **render_queue(state),
            "effective_priority": state.effective_priority,
            "last_write_ts": state.last_write_ts,
            "last_read_ts": state.last_read_ts,
            "durable_seq": state.durable_seq,
            "epoch": state.epoch,
            **position,
            "performance": self.performance(call),
        }
        call.send(encode(body))

    def _delete_topic(self, call: Call) -> None:
        if_empty = query_boolean(call.query, "if_empty", False)
        if isinstance(if_empty, Refusal):
            call.refuse(if_empty)
            return

        topic = self._topics.get(call.name)

        def on_deleted(answer: TopicDeleted) -> None:
            # In the next turn: operations that waited for the name may recreate the topic in this one.
            self.loop.call_soon(self._caps.publish)
            if topic is None or not answer.deleted:
                respond(answer, [])
            else:
                self.on_topic_deleted(answer.topic, topic.epoch, reply_of(call, partial(respond, answer)))

        def respond(answer: TopicDeleted, names: list[str]) -> None:
            body = {
                "topic": answer.topic,
                "deleted": answer.deleted,
                "routers_removed": sorted({*answer.routes, *names}),
                "performance": self.performance(call),
            }
            call.send(encode(body))

        delete_topic(self.shard.state, call.name, if_empty, reply_of(call, on_deleted))

    def _delete_records(self, call: Call) -> None:
        body = decode_delete(call.body)
        request = (
            body if isinstance(body, Refusal) else delete_request(body.before_seq, body.match, body.seqs)
        )
        if isinstance(request, Refusal):
            call.refuse(request)
            return

        def respond(answer: DeleteAnswer) -> None:
            body = {
                "topic": answer.topic,
                "deleted": answer.deleted,
                "earliest_seq": answer.earliest_seq,
                "head_seq": answer.head_seq,
                "count": answer.count,
                "bytes": answer.bytes,
                "performance": {**self.performance(call), "records_scanned": answer.deleted},
            }
            call.send(encode(body))

        delete_records(self.shard.state, call.name, request, reply_of(call, respond))


def _guarded(call: Call, operation: str, action: Callable[[], None]) -> Callable[[], None]:
    """Wrap `make` for a later turn, where no other code catches unexpected errors."""

    def guarded() -> None:
        try:
            action()
        except Exception as error:
            call.fail(operation, error)

    return guarded
