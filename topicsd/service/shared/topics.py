"""Operations on one shared topic: its configuration, state, deletion, trimming and fence.

Each is one request to the catalog, which is safe to repeat. Its answer is of the topic as the catalog has it
now, and not as this broker knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from shared.contract.errors import TOPIC_NOT_EMPTY, Refusal, invalid, not_supported, throttled
from shared.contract.query import query_boolean
from shared.contract.seek import Seek
from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.clock import Clock
from topicsd.broker.broker import Broker
from topicsd.broker.refusals import no_catalog, no_such_topic, topic_changed
from topicsd.broker.shared_config import (
    SharedTopicConfig,
    config_of,
    encode_shared_config,
    merge_shared_config,
)
from topicsd.broker.steps import Steps, run
from topicsd.catalog.shared.shared_catalog import LogState, SharedTopic
from topicsd.engine.requests import Reply
from topicsd.service.call import Call, Performance
from topicsd.service.input.bodies import decode_delete, decode_patch, refuse_media_type
from topicsd.service.input.position import query_seek
from topicsd.service.render import encode
from topicsd.service.shared.names import SharedNames

CHANGES_MAX: Final = 5
DELETES_MISSING: Final = {"match": "delete_by_tag", "seqs": "delete_by_seqs", "after_seq": "truncation"}
"""Fields of a delete that a shared topic does not have, and their features."""
"""Attempts to change a configuration that others change at the same time."""

SeekTopic = Callable[[str, Seek, Reply[int]], object]
Outcome = tuple[dict[str, Any], int]
"""The members of a response, and its status."""


class SharedTopicHandlers:
    def __init__(
        self, broker: Broker, names: SharedNames, clock: Clock, performance: Performance, seek: SeekTopic
    ) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock
        self._performance = performance
        self._seek = seek
        self.table: Final[dict[str, Callable[[Call], None]]] = {
            "put_topic": partial(self._start, self._put),
            "topic_state": partial(self._start, self._state),
            "delete_topic": partial(self._start, self._delete),
            "delete_records": partial(self._start, self._delete_records),
            "fence": partial(self._start, partial(self._fence, "FENCED")),
            "unfence": partial(self._start, partial(self._fence, "OPEN")),
        }

    def _start(self, steps: Callable[[Call], Steps[Outcome | Refusal]], call: Call) -> None:
        def end(outcome: Outcome | Refusal | OSError) -> None:
            if isinstance(outcome, OSError):
                call.refuse(no_catalog(outcome))
            elif isinstance(outcome, Refusal):
                call.refuse(outcome)
            else:
                body, status = outcome
                call.send(encode({**body, "performance": self._performance(call)}), status)

        run(steps(call), end)

    # -- create and configure

    def makes_topic(self, call: Call) -> bool:
        """Return whether the request creates a missing topic as a shared one."""
        patch = decode_patch(call.body)
        return isinstance(patch, TopicConfigPatch) and patch.placement == "shared"

    def create(self, call: Call) -> None:
        """Create the topic of a request."""
        config = _merged(None, call)
        if isinstance(config, Refusal):
            call.refuse(config)
            return

        def on_topic(topic: SharedTopic | Refusal | None) -> None:
            try:
                if not isinstance(topic, SharedTopic):
                    call.refuse(topic or topic_changed(call.name))
                elif config_of(topic.config) == config and topic.head == 0:
                    body = {**_put_body(topic, created=True), "performance": self._performance(call)}
                    call.send(encode(body), 201)
                else:
                    # Another request created it.
                    self._start(self._put, call)
            except Exception as error:
                call.fail("put_topic", error)

        self._names.create(call.name, config, on_topic)

    def _put(self, call: Call) -> Steps[Outcome | Refusal]:
        topic: SharedTopic | None = yield self._names.current(call.name)
        for _ in range(CHANGES_MAX):
            if topic is None:
                return topic_changed(call.name)
            config = _merged(config_of(topic.config), call)
            if isinstance(config, Refusal):
                return config
            if config == config_of(topic.config):
                return _put_body(topic, created=False), 200
            topic = yield self._broker.configure(topic, encode_shared_config(config))
        return throttled("others change the configuration at the same time")

    # -- state

    def _state(self, call: Call) -> Steps[Outcome | Refusal]:
        position = query_seek(call.query, self._clock) if call.query else None
        touch = query_boolean(call.query, "touch", True)
        for refusal in (position, touch):
            if isinstance(refusal, Refusal):
                return refusal
        topic: SharedTopic | None = yield self._names.current(call.name)
        if topic is None:
            return no_such_topic(call.name)
        body = {
            "topic": topic.name,
            "type": "log",
            "placement": "shared",
            "log_state": topic.log_state,
            "head_seq": topic.head,
            "earliest_seq": topic.first_seq,
            "evict_floor": topic.evicted_to + 1,
            "next_seq": topic.head + 1,
            "count": topic.head - topic.first_seq + 1,
            "config": msgspec.structs.asdict(config_of(topic.config)),
            "config_version": topic.config_version,
            "created_ts": topic.created_ms,
            "durable_seq": topic.head,
            "epoch": topic.incarnation,
        }
        if isinstance(position, Seek):
            from_seq: int | Refusal = yield partial(self._seek, topic.name, position)
            if isinstance(from_seq, Refusal):
                return from_seq
            body["from_seq"] = from_seq
        return body, 200

    # -- deletion

    def _delete(self, call: Call) -> Steps[Outcome | Refusal]:
        if_empty = query_boolean(call.query, "if_empty", False)
        if isinstance(if_empty, Refusal):
            return if_empty
        topic: SharedTopic | None = yield self._names.current(call.name)
        if topic is not None:
            count = topic.head - topic.first_seq + 1
            if if_empty and count:
                message = f'topic "{topic.name}" has {count} records'
                return Refusal(TOPIC_NOT_EMPTY, message, {"count": count})
            yield self._broker.delete(topic.name, topic.incarnation)
        return {"topic": call.name, "deleted": topic is not None, "routers_removed": []}, 200

    def _delete_records(self, call: Call) -> Steps[Outcome | Refusal]:
        body = refuse_media_type(call.fields, call.body) or decode_delete(call.body)
        if isinstance(body, Refusal):
            return body
        for field, feature in DELETES_MISSING.items():
            if getattr(body, field) is not None:
                return not_supported(feature, field)
        if body.before_seq is None:
            return invalid("before_seq", "is required")
        topic: SharedTopic | None = yield self._names.current(call.name)
        if topic is None:
            return no_such_topic(call.name)
        after: SharedTopic | None = topic
        if topic.first_seq < body.before_seq:
            to_seq = min(body.before_seq - 1, topic.head)
            after = yield self._broker.trim(topic, to_seq, "deleted")
        if after is None:
            return topic_changed(call.name)
        return {
            "topic": after.name,
            "deleted": after.first_seq - topic.first_seq,
            "earliest_seq": after.first_seq,
            "head_seq": after.head,
            "count": after.head - after.first_seq + 1,
        }, 200

    def _fence(self, log_state: LogState, call: Call) -> Steps[Outcome | Refusal]:
        topic: SharedTopic | None = yield self._names.current(call.name)
        if topic is not None:
            topic = yield self._broker.fence(topic.name, topic.incarnation, log_state)
        if topic is None:
            return no_such_topic(call.name)
        return {"topic": topic.name, "log_state": topic.log_state, "head_seq": topic.head}, 200


def _merged(existing: SharedTopicConfig | None, call: Call) -> SharedTopicConfig | Refusal:
    patch = refuse_media_type(call.fields, call.body) or decode_patch(call.body)
    return patch if isinstance(patch, Refusal) else merge_shared_config(existing, patch)


def _put_body(topic: SharedTopic, *, created: bool) -> dict[str, Any]:
    config = msgspec.structs.asdict(config_of(topic.config))
    return {"topic": topic.name, "created": created, "config": config}
