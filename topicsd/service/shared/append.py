"""Appends to one shared topic, as `/v0/topics` and WebSockets send them.

The request and the response are those of a local topic. An idempotency key makes the append id, so the
catalog recognises a repetition at any broker.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import xxhash

from shared.contract.errors import (
    THROTTLED,
    Refusal,
    in_doubt,
    not_supported,
)
from shared.runtime.audit import audit, key_label
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker
from topicsd.broker.frames_v1 import data_bytes
from topicsd.broker.refusals import topic_changed
from topicsd.broker.shared_config import SharedTopicConfig, config_of, merge_shared_config
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import Producer, SharedTopic
from topicsd.engine.requests import AppendAnswer, AppendRequest, NewRecord
from topicsd.engine.write.append import refuse_count
from topicsd.engine.write.encode_records import records_digest, refuse_lengths
from topicsd.engine.write.keyed_write import refuse_key
from topicsd.engine.write.producer_write import producer_of
from topicsd.service.call import Call
from topicsd.service.input.bodies import (
    APPEND_BODY,
    PUBLISH_BODY,
    decode_append,
    refuse_media_type,
)
from topicsd.service.input.bound_names import CONFIG_NEEDS_ADMIN
from topicsd.service.input.cloud_events import events_append_of, has_events
from topicsd.service.input.record_upload import record_append, return_seqs_of
from topicsd.service.render import render_appended
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.names import SharedNames

DURABILITY: Final = "fsync"
"""An append is acknowledged when the object and its place in the catalog are safe."""
PLACEMENT: Final = b'"placement"'


class SharedAppendHandlers:
    def __init__(self, broker: Broker, names: SharedNames, settings: Settings, counts: RequestCounts) -> None:
        self._broker = broker
        self._names = names
        self._settings = settings
        self._counts = counts
        operations = "append", "append_record", "publish"
        self.table: Final = {operation: partial(self._start, operation) for operation in operations}

    def makes_topic(self, operation: str, call: Call) -> bool:
        """Return whether the request creates a missing topic as a shared one."""
        if operation not in ("append", "publish") or PLACEMENT not in call.body:
            return False
        request = self._decode(operation, call)
        return isinstance(request, AppendRequest) and _is_shared(request) and request.create is not False

    def create(self, operation: str, call: Call) -> None:
        """Create the topic of a request, and append its records."""
        request = self._decode(operation, call)
        if isinstance(request, Refusal):
            call.refuse(request)
            return
        assert request.config is not None
        config = merge_shared_config(None, request.config)
        refusal = config.inside("config") if isinstance(config, Refusal) else self._refuse(call, request)
        if refusal is not None:
            call.refuse(refusal)
            return
        assert isinstance(config, SharedTopicConfig)

        def on_topic(topic: SharedTopic | Refusal | None) -> None:
            try:
                if isinstance(topic, SharedTopic):
                    if topic.head == 0:
                        audit("append_config", call.name, key_label(call.key), call.address, 201)
                    self._append_to(topic, call, request, is_new=topic.head == 0)
                else:
                    call.refuse(topic or topic_changed(call.name))
            except Exception as error:
                call.fail("append", error)

        self._names.create(call.name, config, on_topic)

    def _start(self, operation: str, call: Call) -> None:
        request = self._decode(operation, call)
        refusal = request if isinstance(request, Refusal) else self._refuse(call, request)
        topic = self._broker.topics.known(call.name)
        if refusal is None and topic is None:
            refusal = topic_changed(call.name)
        if refusal is not None:
            call.refuse(refusal)
            return
        assert isinstance(request, AppendRequest)
        assert topic is not None
        self._append_to(topic, call, request, is_new=False)

    def _decode(self, operation: str, call: Call) -> AppendRequest | Refusal:
        if operation == "append_record":
            return record_append(call.body, call.fields, call.query, self._settings)
        kind = PUBLISH_BODY if operation == "publish" else APPEND_BODY
        refusal = refuse_media_type(call.fields, call.body)
        if call.fields.event_attributes or (refusal is not None and has_events(call.fields)):
            return events_append_of(call.body, call.fields, call.query, self._settings)
        return refusal or decode_append(call.body, self._settings, kind)

    def _refuse(self, call: Call, request: AppendRequest) -> Refusal | None:
        """Refuse what this broker and what a shared topic do not do, and what exceeds the limits."""
        if self._broker.write_refusal is not None:
            return self._broker.write_refusal
        for field in ("delay_ms", "not_before", "priority", "expected_head"):
            if getattr(request, field) is not None:
                return not_supported(field, field)
        if request.config is not None and not call.is_admin:
            return CONFIG_NEEDS_ADMIN
        if request.idempotency_key is None and call.fields.idempotency_key:
            request.idempotency_key = call.fields.idempotency_key
        return _refuse_identity(request) or _refuse_records(request, self._settings)

    def _append_to(self, topic: SharedTopic, call: Call, request: AppendRequest, *, is_new: bool) -> None:
        config = config_of(topic.config)
        key = request.idempotency_key if config.idempotency_window_ms else None
        if call.retried_after_ms and request.producer is None and key is None:
            # The first attempt may have appended the records, and nothing would recognise a repetition.
            call.refuse(in_doubt(None, "; the topic remembers no idempotency keys", is_broker=True))
            return
        with_seqs = return_seqs_of(call.query) if call.query else True
        if isinstance(with_seqs, Refusal):
            call.refuse(with_seqs)
            return
        digest = records_digest(request.records, request.node).hex() if key is not None else ""
        group = Group(
            topic.name,
            _with_node(request.records, request.node),
            None if key is None else _append_id(topic.incarnation, key),
            _producer_of(request),
            topic.incarnation if is_new else None,
            digest,
            config.latency == "low",
        )
        self._broker.counts.produce_requests += 1
        self._broker.append(group, partial(self._on_answer, call, group, with_seqs, is_new))

    def _on_answer(
        self, call: Call, group: Group, with_seqs: bool, is_new: bool, answer: Appended | Refusal
    ) -> None:
        count_append(self._broker, group, answer)
        if isinstance(answer, Refusal):
            call.refuse(answer)
            return
        topic = self._broker.topics.known(group.topic)
        head = 0 if topic is None else self._broker.heads.head(group.topic, topic.incarnation)
        appended = AppendAnswer(
            group.topic,
            answer.first_seq,
            answer.last_seq,
            max(head, answer.last_seq),
            created=is_new and answer.first_seq == 1 and not answer.is_repeated,
            deduped=answer.is_repeated,
            durability=DURABILITY,
        )
        elapsed_us = self._counts.append(call, appended.last_seq - appended.first_seq + 1)
        call.send(render_appended(appended, with_seqs, elapsed_us), 201 if appended.created else 200)


def count_append(broker: Broker, group: Group, answer: Appended | Refusal) -> None:
    """Count a group of records in the metrics of the broker."""
    counts = broker.counts
    if isinstance(answer, Appended):
        counts.produce_records += len(group.records)
        counts.produce_bytes += data_bytes(group.records)
        return
    counts.produce_errors += 1
    counts.produce_throttled += answer.code == THROTTLED


def _is_shared(request: AppendRequest) -> bool:
    return request.config is not None and request.config.placement == "shared"


def _append_id(incarnation: int, key: str) -> str:
    return f"key-{xxhash.xxh3_128_hexdigest(b'%d/%b' % (incarnation, key.encode()))}"


def _producer_of(request: AppendRequest) -> Producer | None:
    producer = request.producer
    return None if producer is None else Producer(producer.id, producer.seq, producer.seq)


def _with_node(records: list[NewRecord], node: str | None) -> list[NewRecord]:
    if node:
        for record in records:
            record.node = record.node or node
    return records


def _refuse_identity(request: AppendRequest) -> Refusal | None:
    """Refuse a producer or an idempotency key that is not valid."""
    if request.producer is not None:
        producer = producer_of(request, request.producer)
        return producer if isinstance(producer, Refusal) else None
    return None if request.idempotency_key is None else refuse_key(request.idempotency_key)


def _refuse_records(request: AppendRequest, limits: Settings) -> Refusal | None:
    records = request.records
    if not 0 < len(records) <= limits.max_batch_records:
        return refuse_count(len(records), limits.max_batch_records)
    for index, record in enumerate(records):
        node = record.node or request.node
        if record.tag or node or record.meta or len(record.data) > limits.max_record_bytes:
            tag_bytes = record.tag.encode() if record.tag else b""
            node_bytes = node.encode() if node else b""
            sizes = len(record.data), len(record.meta)
            refusal = refuse_lengths(index, *sizes, tag_bytes, node_bytes, limits)
            if refusal is not None:
                return refusal
    return None
