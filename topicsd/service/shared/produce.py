"""`POST /produce`: records for several partitions, each of which is appended whole or not at all."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import msgspec

from shared.contract.errors import Refusal
from shared.runtime.unexpected_error import refuse_unexpected_error
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker
from topicsd.broker.partition_names import index_key
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.broker.refusals import topic_changed
from topicsd.broker.shared_config import SharedTopicConfig, config_of
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.service.call import Call
from topicsd.service.input.bodies import refuse_media_type
from topicsd.service.render import encode
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.append import count_append
from topicsd.service.shared.names import SharedNames
from topicsd.service.shared.partition_bodies import NewRecords, decode_produce
from topicsd.service.shared.partition_results import PartitionFailure, failure, send_results

logger = logging.getLogger("topicsd.http")

DEFAULTS: Final = SharedTopicConfig()


class _Written(msgspec.Struct, gc=False):
    topic: str
    partition: int
    ok: bool
    start_offset: int
    end_offset: int
    count: int
    index_key: str
    wal_uri: str


class ProduceHandler:
    def __init__(self, broker: Broker, names: SharedNames, settings: Settings, counts: RequestCounts) -> None:
        self._broker = broker
        self._names = names
        self._settings = settings
        self._counts = counts
        self._store_url = f"{broker.store_url.rstrip('/')}/"

    def start(self, call: Call) -> None:
        self._broker.counts.produce_requests += 1
        request = refuse_media_type(call.fields, call.body) or decode_produce(
            call.body, call.prefixes, self._settings
        )
        if isinstance(request, Refusal):
            call.refuse(request)
            return
        produce = _Produce(call, request, self._store_url, self._counts)
        for index, one in enumerate(request):
            topic = self._broker.topics.recent(one.name, ROW_SECONDS)
            if self._broker.write_refusal is not None:
                self._broker.counts.produce_errors += 1
                produce.on_answer(index, self._broker.write_refusal)
            elif topic is not None:
                self._append(produce, index, one, topic)
            else:
                on_topic = partial(self._on_found, produce, index, one)
                self._names.find(one.name, on_topic, may_create=True)

    def _on_found(
        self, produce: _Produce, index: int, one: NewRecords, topic: SharedTopic | Refusal | None
    ) -> None:
        if topic is None:
            created = partial(self._on_created, produce, index, one)
            self._names.create(one.name, DEFAULTS, created)
        else:
            self._on_created(produce, index, one, topic)

    def _on_created(
        self, produce: _Produce, index: int, one: NewRecords, topic: SharedTopic | Refusal | None
    ) -> None:
        if isinstance(topic, SharedTopic):
            self._append(produce, index, one, topic)
        else:
            produce.on_answer(index, topic or topic_changed(one.name))

    def _append(self, produce: _Produce, index: int, one: NewRecords, topic: SharedTopic) -> None:
        try:
            is_urgent = config_of(topic.config).latency == "low"
        except Exception as error:
            # The configuration of a newer release; the other partitions are appended.
            produce.on_answer(index, refuse_unexpected_error(logger, "produce", error))
            return
        group = Group(one.name, one.records, is_urgent=is_urgent)
        self._broker.append(group, partial(self._on_answer, produce, index, group))

    def _on_answer(self, produce: _Produce, index: int, group: Group, answer: Appended | Refusal) -> None:
        count_append(self._broker, group, answer)
        produce.on_answer(index, answer)


class _Produce:
    """One request, until each of its partitions is answered."""

    __slots__ = ("_answers", "_call", "_counts", "_groups", "_left", "_store_url")

    def __init__(self, call: Call, groups: list[NewRecords], store_url: str, counts: RequestCounts) -> None:
        self._call = call
        self._counts = counts
        self._groups = groups
        self._answers: list[Appended | Refusal | None] = [None] * len(groups)
        self._left = len(groups)
        self._store_url = store_url

    def on_answer(self, index: int, answer: Appended | Refusal) -> None:
        self._answers[index] = answer
        self._left -= 1
        if not self._left:
            try:
                self._send()
            except Exception as error:
                self._call.fail("produce", error)

    def _send(self) -> None:
        parts: list[bytes] = []
        failures: list[PartitionFailure] = []
        record_count = 0
        for one, answer in zip(self._groups, self._answers, strict=True):
            if isinstance(answer, Appended):
                parts.append(encode(self._written(one, answer)))
                record_count += len(one.records)
            else:
                assert answer is not None
                failures.append(failure(one.topic, one.partition, answer))
                parts.append(encode(failures[-1]))
        if record_count:
            self._counts.append(self._call, record_count)
        send_results(self._call, parts, failures, len(parts) - len(failures))

    def _written(self, one: NewRecords, answer: Appended) -> _Written:
        # The append id is of this blob, so a repeated commit found this blob, and no other one.
        return _Written(
            one.topic,
            one.partition,
            True,
            answer.first_seq,
            answer.last_seq,
            len(one.records),
            index_key(one.name, answer.last_seq),
            self._store_url + answer.key,
        )
