"""The bodies of `/produce` and `/consume`, and their bounds.

P1  A string is a record of text, and is kept as the JSON that it is; `{"base64":"..."}` is one of bytes.
P2  What is wrong with the shape of a request refuses all of it, and names the field.
P3  The number of records of a large body is bounded before they are decoded: a list of short texts takes
    thirty times its bytes in memory. Only one with more commas than records are allowed is looked at twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from shared.contract.errors import BATCH_TOO_LARGE, RECORD_TOO_LARGE, Refusal, invalid, too_many
from shared.contract.topic_config import NUMBER_MAX
from shared.settings.settings import Settings
from shared.text.message import size_text
from topicsd.broker.frames_v1 import Texts
from topicsd.broker.partition_names import name_of_partition
from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE
from topicsd.service.diff import WAIT_MS_MAX
from topicsd.service.input.bound_names import is_within, refuse_uncovered
from topicsd.service.input.json_body import JsonBody

PARTITIONS_MAX: Final = TOPICS_AT_ONCE
READ_BYTES_MAX: Final = 64 << 20
READ_BYTES: Final = 8 << 20
PARTITION_READ_BYTES: Final = 1 << 20
FIELD: Final = "topic_partitions"
COUNTED_BYTES_MIN: Final = 1 << 20
"""Bodies up to this size are decoded at once."""
_QUOTE: Final = ord('"')
_BRACE: Final = ord("{")


class TextRecord(msgspec.Struct, gc=False):
    """A record of text; `data` is a JSON string."""

    data: bytes
    tag: ClassVar[None] = None
    node: ClassVar[None] = None
    meta: ClassVar[bytes] = b""
    is_bytes: ClassVar[bool] = False


class BinaryRecord(TextRecord, gc=False):
    """A record of bytes."""

    is_bytes: ClassVar[bool] = True


class _Base64(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    base64: bytes


_decode_base64: Final = msgspec.json.Decoder(_Base64).decode


class PartitionWrite(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    topic: str
    partition: int
    records: list[msgspec.Raw]


class ProduceBody(msgspec.Struct, forbid_unknown_fields=True):
    topic_partitions: list[PartitionWrite]


class PartitionRead(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    topic: str
    partition: int
    fetch_offset: int
    partition_max_bytes: int = PARTITION_READ_BYTES


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True):
    topic_partitions: list[PartitionRead]
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = READ_BYTES


_PRODUCE: Final = JsonBody(
    ProduceBody, '{"topic_partitions":[{"topic":"orders","partition":0,"records":["alpha"]}]}'
)
_CONSUME: Final = JsonBody(
    ConsumeBody, '{"topic_partitions":[{"topic":"orders","partition":0,"fetch_offset":1}]}'
)


class NewRecords(msgspec.Struct, gc=False):
    """The records of a request for one partition."""

    topic: str
    partition: int
    name: str
    """Of the shared topic."""
    records: list[TextRecord] | Texts


class RequestedRecords(msgspec.Struct, gc=False):
    """What a request wants of one partition."""

    topic: str
    partition: int
    name: str
    fetch_offset: int
    bytes_max: int


# -- produce


def decode_produce(body: bytes, prefixes: Sequence[str], limits: Settings) -> list[NewRecords] | Refusal:
    records_max = limits.max_batch_records
    # The count of commas takes a tenth of the time of the request.
    if len(body) > COUNTED_BYTES_MIN and body.count(b",") >= records_max:
        refusal = _refuse_counts(body, records_max)
        if refusal is not None:
            return refusal
    request = _PRODUCE.decode_any(body)
    if isinstance(request, Refusal):
        return request
    refusal = _refuse_partition_count(len(request.topic_partitions))
    if refusal is None and sum(len(one.records) for one in request.topic_partitions) > records_max:
        refusal = _too_many_records(records_max)
    if refusal is not None:
        return refusal
    groups: list[NewRecords] = []
    for index, one in enumerate(request.topic_partitions):
        name = _name_of(index, one.topic, one.partition, prefixes)
        if isinstance(name, Refusal):
            return name
        records = _records_of(f"{FIELD}[{index}].records", one.records, limits, len(body))
        if isinstance(records, Refusal):
            return records
        groups.append(NewRecords(one.topic, one.partition, name, records))
    return groups


def _records_of(
    field: str, given: list[msgspec.Raw], limits: Settings, total_bytes: int
) -> list[TextRecord] | Texts | Refusal:
    """Return the records of a partition in a body of `total_bytes`."""
    if not given:
        return invalid(field, "must not be empty")
    texts = Texts(map(bytes, given))
    bytes_max = limits.max_record_bytes
    is_small = total_bytes <= bytes_max or max(map(len, texts)) <= bytes_max
    if is_small and not [data for data in texts if data[0] != _QUOTE]:
        return texts
    records: list[TextRecord] = []
    add = records.append
    for data in texts:
        first = data[0]
        if first == _QUOTE:
            record = TextRecord(data)
        elif first == _BRACE:
            try:
                record = BinaryRecord(_decode_base64(data).base64)
            except msgspec.DecodeError as error:
                return _not_a_record(f"{field}[{len(records)}]", str(error))
        else:
            return _not_a_record(f"{field}[{len(records)}]", f"got {data[:20].decode(errors='replace')}")
        if len(record.data) > bytes_max:
            return _too_large(f"{field}[{len(records)}]", len(record.data), bytes_max)
        add(record)
    return records


def _not_a_record(field: str, reason: str) -> Refusal:
    return invalid(field, f'must be a string or {{"base64":"..."}}: {reason}')


def _too_large(field: str, size: int, bound: int) -> Refusal:
    message = f"{field}: must be at most {size_text(bound)}, got {size} bytes"
    return Refusal(RECORD_TOO_LARGE, message, {"field": field, "max": bound})


class _Budget:
    """What a body may still have, of records and partitions together."""

    left = 0

    @classmethod
    def take(cls) -> None:
        cls.left -= 1
        if cls.left < 0:
            raise _TooMany


class _Counted:
    """A record that is counted, and not kept."""


class _TooMany(Exception):
    pass


class _CountedWrite(msgspec.Struct, gc=False):
    records: list[_Counted] = []

    def __post_init__(self) -> None:
        _Budget.take()


class _CountedBody(msgspec.Struct):
    topic_partitions: list[_CountedWrite] = []


_COUNTED: Final = _Counted()


def _count(kind: type, value: Any) -> _Counted:
    _Budget.take()
    return _COUNTED


_count_all: Final = msgspec.json.Decoder(_CountedBody, dec_hook=_count).decode


def _refuse_counts(body: bytes, records_max: int) -> Refusal | None:
    """Refuse more records than a request may have (P3); another decoder refuses wrong types."""
    _Budget.left = PARTITIONS_MAX + records_max
    try:
        _count_all(body)
    except _TooMany:
        return _too_many_records(records_max)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None


def _too_many_records(bound: int) -> Refusal:
    message = f"records: a request must have at most {bound}, in all partitions together"
    return Refusal(BATCH_TOO_LARGE, message, {"field": "records", "max": bound})


# -- consume


def decode_consume(
    body: bytes, prefixes: Sequence[str]
) -> tuple[ConsumeBody, list[RequestedRecords]] | Refusal:
    request = _CONSUME.decode(body)
    if isinstance(request, Refusal):
        return request
    refusal = _refuse_partition_count(len(request.topic_partitions)) or (
        _refuse_bounds("max_wait_ms", request.max_wait_ms, 0, WAIT_MS_MAX)
        or _refuse_bounds("max_bytes", request.max_bytes, 1, READ_BYTES_MAX)
        or _refuse_bounds("min_bytes", request.min_bytes, 0, request.max_bytes)
    )
    if refusal is not None:
        return refusal
    reads: dict[str, RequestedRecords] = {}
    for index, one in enumerate(request.topic_partitions):
        field = f"{FIELD}[{index}]"
        name = _name_of(index, one.topic, one.partition, prefixes)
        refusal = (
            (name if isinstance(name, Refusal) else None)
            or _refuse_bounds(f"{field}.fetch_offset", one.fetch_offset, 1, NUMBER_MAX)
            or _refuse_bounds(f"{field}.partition_max_bytes", one.partition_max_bytes, 1, READ_BYTES_MAX)
        )
        if refusal is not None:
            return refusal
        assert isinstance(name, str)
        if name in reads:
            return invalid(field, f"names partition {one.partition} of topic {one.topic} twice")
        bytes_max = one.partition_max_bytes
        reads[name] = RequestedRecords(one.topic, one.partition, name, one.fetch_offset, bytes_max)
    return request, list(reads.values())


def _refuse_bounds(field: str, value: int, low: int, high: int) -> Refusal | None:
    if low <= value <= high:
        return None
    return invalid(field, f"must be from {low} to {high}, got {value}", high)


def _refuse_partition_count(count: int) -> Refusal | None:
    if not count:
        return invalid(FIELD, "must not be empty")
    return too_many(FIELD, PARTITIONS_MAX, count) if count > PARTITIONS_MAX else None


def _name_of(index: int, topic: str, partition: int, prefixes: Sequence[str]) -> str | Refusal:
    name = name_of_partition(topic, partition)
    if isinstance(name, Refusal):
        return name.inside(f"{FIELD}[{index}]")
    return name if is_within(prefixes, name) else refuse_uncovered(f"{FIELD}[{index}].topic", name)
