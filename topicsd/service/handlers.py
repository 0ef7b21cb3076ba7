"""Handlers of the endpoints, for every kind of connection: decode, call the engine, render."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from shared.contract.errors import (
    NOT_IMPLEMENTED,
    NOT_SUPPORTED,
    TOPIC_NOT_FOUND,
    Refusal,
    not_supported,
)
from shared.contract.names import is_topic_name, refuse_topic_name
from shared.contract.query import query_boolean
from shared.contract.topic_config import TopicConfigPatch
from shared.http.head import Fields
from shared.runtime.audit import audit, key_label
from shared.settings.settings import Settings
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import (
    AppendAnswer,
    AppendRequest,
    DeleteAnswer,
    Reply,
    TopicDeleted,
    TopicPut,
)
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import delete_topic, missing_topic, put_topic, topic_not_found, topic_state
from topicsd.service.call import Call, reply_of
from topicsd.service.cursors import CursorHandlers
from topicsd.service.input.append_body import AppendBody
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
from topicsd.service.input.cloud_events import events_append_of, has_events
from topicsd.service.input.position import query_seek
from topicsd.service.input.record_upload import record_append, return_seqs_of
from topicsd.service.queues.handlers import QueueHandlers
from topicsd.service.queues.schedules import ScheduleHandlers
from topicsd.service.render import encode, render_appended, render_config, render_queue
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shards.limits import Caps

# These operations take no body, or one that is not JSON.
GETS_DEAD_LETTERS = "gets_dead_letters"
"""The question of a broker to each shard whether a queue there has this dead-letter topic."""
HAS_NAME = "has_name"
"""The question of a broker whether the name is that of a local topic."""
WITHOUT_JSON = frozenset(
    {
        "topic_state",
        "delete_topic",
        "list_cursors",
        "cursor_state",
        "delete_cursor",
        "list_schedules",
        "schedule_state",
        "delete_schedule",
        "explain",
        "append_record",
        "record",
        "bounds",
    }
)


Handler = Callable[[Call], None]
DecodeBody = Callable[[bytes, Fields, str, Settings], AppendRequest | Refusal]
Redirect = Callable[[str, Call], None]
"""Has the owner of the call's topic perform an operation."""
OnTopicDeleted = Callable[[str, int, Callable[[list[str]], object]], None]
"""Called with the name and epoch of a deleted topic; reports the routes deleted with it."""


def _report_no_routes(name: str, epoch: int, reply: Callable[[list[str]], object]) -> None:
    reply([])


class _Operation:
    """One operation with its handler."""

    __slots__ = ("_name", "_redirect", "handle")

    def __init__(self, name: str, handler: Handler, redirect: Redirect) -> None:
        self._name = name
        self.handle = handler
        self._redirect = redirect

    def redirect(self, call: Call) -> None:
        call.cancel_wait = None
        self._redirect(self._name, call)


FindShared = Callable[[str, Callable[[bool | Refusal], object]], object]
"""Reports whether a shared topic has a name."""


class BrokerAccess(Protocol):
    """The way to the brokers of this node, for requests of topics that are not here."""

    @property
    def names_in_question(self) -> Mapping[str, object]:
        """Return the names that a broker is asked about now."""
        ...

    def start(self, operation: str, call: Call, start_here: Callable[[], None]) -> None:
        """Answer the call, or call `start_here` when no shared topic has the name."""
        ...

    def may_be_created(self, name: str) -> bool:
        """Return whether a broker may be creating a topic of the name now."""
        ...

    def reserve(self, name: str, broker: int) -> None:
        """Note that the broker asked about a name that is free."""
        ...

    def find_shared(self, name: str, reply: Callable[[bool | Refusal], object]) -> None:
        """Report whether a shared topic has the name."""
        ...

    def join(self, operation: str, call: Call, start_here: Callable[[], None]) -> None:
        """Call `start_here` after the requests for the name that a broker is asked about."""
        ...


def _no_redirect(operation: str, call: Call) -> None:
    raise AssertionError("a server of one shard never moves a topic")


class Handlers:
    def __init__(
        self,
        shard: Shard,
        caps: Caps | None = None,
        counts: RequestCounts | None = None,
        on_topic_deleted: OnTopicDeleted = _report_no_routes,
        others: Mapping[str, Handler] | None = None,
        redirect: Redirect = _no_redirect,
        is_elsewhere: Callable[[str], bool] = lambda name: False,
        brokers: BrokerAccess | None = None,
    ) -> None:
        """Build the table of handlers; `others` depend on more than this shard.

        `is_elsewhere` returns whether another shard owns a topic that this shard does not have. `brokers`
        are those of this node, if there are any.
        """
        state = shard.state
        self.shard = shard
        self._topics = state.topics
        self.settings = state.settings
        self.loop = state.loop
        self.caps = caps or Caps(state)
        self.monotonic = state.clock.monotonic
        self.body_bytes_max = state.settings.max_body_bytes
        self.counts = counts or RequestCounts(state.clock)
        self.performance = self.counts.performance
        self._on_topic_deleted = on_topic_deleted
        self._redirect = redirect
        self._is_elsewhere = is_elsewhere
        self._brokers = brokers
        self._names_in_question: Mapping[str, object] = {} if brokers is None else brokers.names_in_question
        self._find_shared = None if brokers is None else brokers.find_shared
        handlers: dict[str, Handler] = {
            "append": self._append,
            "publish": lambda call: self._append(call, PUBLISH_BODY),
            "append_record": lambda call: self._append(call, record_append),
            "append_events": lambda call: self._append(call, events_append_of),
            "put_topic": self._put_topic,
            "topic_state": self._topic_state,
            HAS_NAME: self._has_name,
            GETS_DEAD_LETTERS: self._gets_dead_letters,
            "delete_topic": self._delete_topic,
            "delete_records": self._delete_records,
            "fence": self._refuse_fence,
            "unfence": self._refuse_fence,
            **CursorHandlers(state, self.performance).table,
            **QueueHandlers(state, state.settings, self.counts).table,
            **ScheduleHandlers(state, state.settings, self.performance).table,
            **(others or {}),
        }
        self._table = {name: _Operation(name, handler, redirect) for name, handler in handlers.items()}

    def start(self, operation: str, call: Call, *, is_here: bool = False) -> None:
        """Answer the call, now or later, once; `is_here`: a broker has said that it has no such topic."""
        started = self._table.get(operation)
        if started is None:
            call.refuse(Refusal(NOT_IMPLEMENTED, f"{operation} is not implemented"))
            return
        call.operation = started
        # The name of an existing topic was checked when the topic was created.
        if call.name not in self._topics:
            if operation == GETS_DEAD_LETTERS:
                # A question about the queues of this shard, wherever the name is.
                started.handle(call)
                return
            refusal = refuse_topic_name(call.name)
            if refusal is not None:
                call.refuse(refusal)
                return
            if self._is_elsewhere(call.name):
                # Sent before its sender knew the present placement.
                self._redirect(operation, call)
                return
            if operation == HAS_NAME:
                started.handle(call)
                return
            if (
                self._brokers is not None
                and not is_here
                and (not call.is_unshared or self._brokers.may_be_created(call.name))
                and self._may_be_shared(call.name)
            ):
                self._brokers.start(operation, call, partial(self._start_unshared, operation, call))
                return
        if (
            self._names_in_question
            and call.name in self._names_in_question
            and not call.is_unshared
            and self._brokers is not None
        ):
            self._brokers.join(operation, call, partial(self._start_unshared, operation, call))
            return
        fields = call.fields
        if fields.event_attributes and operation == "append":
            started = self._table["append_events"]
        elif fields.content_type != "application/json" and call.body and operation not in WITHOUT_JSON:
            refusal = refuse_media_type(fields, call.body)
            if refusal is not None and operation == "append" and has_events(fields):
                started = self._table["append_events"]
            elif refusal is not None:
                call.refuse(refusal)
                return
        started.handle(call)

    def _start_unshared(self, operation: str, call: Call) -> None:
        call.is_unshared = True
        self.start(operation, call, is_here=True)

    def _may_be_shared(self, name: str) -> bool:
        """Return whether a name that is not here is neither of a departed topic nor of one that begins."""
        state = self.shard.state
        return name not in state.new_names and missing_topic(state, name).code == TOPIC_NOT_FOUND

    def _has_name(self, call: Call) -> None:
        """Answer a broker whether the name is, or is about to be, that of a local topic of this node."""
        if call.name in self._topics or not self._may_be_shared(call.name):
            call.send(b"{}")
            return
        if self._brokers is not None:
            self._brokers.reserve(call.name, int(call.body))
        call.refuse(topic_not_found(call.name))

    def _gets_dead_letters(self, call: Call) -> None:
        """Answer a broker whether a queue of this shard has the name as its dead-letter topic."""
        if self.shard.state.gets_dead_letters(call.name):
            call.send(b"{}")
        else:
            call.refuse(topic_not_found(call.name))

    def is_unknown(self, name: str) -> bool:
        """Return whether no topic of this valid name is here."""
        return name not in self._topics and is_topic_name(name)

    def _append(self, call: Call, kind: AppendBody | DecodeBody = APPEND_BODY) -> None:
        """Append the records of a body, which is of a kind of JSON, or has a decoder of its own."""
        with_seqs = True
        if call.query:
            return_seqs = return_seqs_of(call.query)
            if isinstance(return_seqs, Refusal):
                call.refuse(return_seqs)
                return
            with_seqs = return_seqs
        if isinstance(kind, AppendBody):
            request = decode_append(call.body, self.settings, kind)
        else:
            request = kind(call.body, call.fields, call.query, self.settings)
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
                        audit("append_config", call.name, key_label(call.key), call.address, 201)
                        config = self._topics[call.name].config
                        body = with_member(body, clamped_config(request.config, config, "config."))
                    call.send(body, 201)
                else:
                    call.send(body)
            except Exception as error:
                call.fail("append", error)

        append = self.caps.append
        if request.config is None:
            append(call.name, request, len(call.body), reply)
            return
        begin = partial(append, call.name, request, len(call.body), reply)
        self._check_dead_letter(call, request.config, "config.dead_letter", begin)

    def _check_dead_letter(
        self, call: Call, patch: TopicConfigPatch, field: str, begin: Callable[[], object]
    ) -> None:
        """Begin a change of a configuration unless that sends dead letters to a shared topic."""
        name = patch.dead_letter
        if self._find_shared is None or not isinstance(name, str) or not self.is_unknown(name):
            begin()
            return

        def on_answer(is_shared: bool | Refusal) -> None:
            try:
                if isinstance(is_shared, Refusal):
                    call.refuse(is_shared)
                elif is_shared:
                    call.refuse(not_supported("dead_letter", field))
                elif (
                    call.operation is not None
                    and self.is_unknown(call.name)
                    and self._is_elsewhere(call.name)
                ):
                    # The placement has changed meanwhile.
                    call.operation.redirect(call)
                else:
                    begin()
            except Exception as error:
                call.fail(field, error)

        self._find_shared(name, on_answer)

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
        begin = partial(self._begin_put, call.name, patch, reply)
        self._check_dead_letter(call, patch, "dead_letter", begin)

    def _begin_put(self, name: str, patch: TopicConfigPatch, reply: Reply[TopicPut]) -> None:
        state, caps = self.shard.state, self.caps
        put = partial(put_topic, state, name, patch, reply)
        if caps.has_shared_topic_cap and name not in state.topics:
            caps.create_topic(name, put, reply)
        else:
            put()

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
            "shard": self.shard.state.number,
            **position,
            "performance": self.performance(call),
        }
        call.send(encode(body))

    def _refuse_fence(self, call: Call) -> None:
        if call.name not in self._topics:
            call.refuse(missing_topic(self.shard.state, call.name))
            return
        message = "only a shared topic can be fenced; seal stops the writes of a local topic"
        call.refuse(Refusal(NOT_SUPPORTED, message, {"feature": "fence"}))

    def _delete_topic(self, call: Call) -> None:
        if_empty = query_boolean(call.query, "if_empty", False)
        if isinstance(if_empty, Refusal):
            call.refuse(if_empty)
            return

        topic = self._topics.get(call.name)

        def on_deleted(answer: TopicDeleted) -> None:
            # In the next turn: operations that waited for the name may recreate the topic in this one.
            self.loop.call_soon(self.caps.publish)
            if topic is None or not answer.deleted:
                respond(answer, [])
            else:
                self._on_topic_deleted(answer.topic, topic.epoch, reply_of(call, partial(respond, answer)))

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
            body
            if isinstance(body, Refusal)
            else delete_request(body.before_seq, body.match, body.seqs, body.after_seq)
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
