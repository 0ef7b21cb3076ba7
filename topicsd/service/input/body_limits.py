"""A check of large appends before decoding, which bounds the memory of decoded objects.

A text with one emoji takes four times its bytes in memory, a list of short texts twenty times, and ten
million records would be refused anyway. So the known fields are first decoded as raw bytes, which copies
nothing, and only counted and measured.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal, invalid, too_many
from shared.settings.settings import Settings
from topicsd.engine.requests import AppendRequest
from topicsd.engine.write.keyed_write import KEY_CHARACTERS_MAX
from topicsd.engine.write.producer_write import PRODUCER_CHARACTERS_MAX
from topicsd.service.input.json_body import JsonBody

APPEND_BODY_BYTES: Final = 4 << 20
# The shortest record: {"data":1} and a comma.
_RECORD_BYTES_MIN: Final = 11
# A character may be written as \u0061.
_ESCAPED: Final = 6
# An id of the maximum length in its longest spelling, a number, and room for white space.
PRODUCER_BYTES_MAX: Final = 2 * _ESCAPED * PRODUCER_CHARACTERS_MAX + 1024
# The longest topic name in its longest spelling, and all numbers.
CONFIG_BYTES_MAX: Final = 64 << 10
# Keys and white space, per record and besides the records.
RECORD_REST_BYTES: Final = 1 << 10
REST_BYTES: Final = 1 << 20
# Longer than any duration or time.
TIME_BYTES_MAX: Final = 1024
_NOTHING: Final = msgspec.Raw(b"")


class _TooManyRecords(Exception):
    pass


class _RecordBudget:
    remaining = 0


class _RawRecord(msgspec.Struct, gc=False):
    data: msgspec.Raw = _NOTHING
    data_base64: msgspec.Raw = _NOTHING
    tag: msgspec.Raw = _NOTHING
    node: msgspec.Raw = _NOTHING
    meta: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        _RecordBudget.remaining -= 1
        if _RecordBudget.remaining < 0:
            raise _TooManyRecords


class _RawAppend(msgspec.Struct, gc=False):
    records: list[_RawRecord] = []
    node: msgspec.Raw = _NOTHING
    idempotency_key: msgspec.Raw = _NOTHING
    producer: msgspec.Raw = _NOTHING
    config: msgspec.Raw = _NOTHING
    delay_ms: msgspec.Raw = _NOTHING
    not_before: msgspec.Raw = _NOTHING
    priority: msgspec.Raw = _NOTHING


_raw_append = msgspec.json.Decoder(_RawAppend)


def is_large_append(body: bytes, records_max: int) -> bool:
    """Return whether an append is large or may have too many records."""
    return len(body) > APPEND_BODY_BYTES or (
        len(body) > records_max * _RECORD_BYTES_MIN and body.count(b"{") > records_max
    )


def check_large_append(body: bytes, kind: JsonBody[AppendRequest], limits: Settings) -> Refusal | None:
    """Refuse malformed, unknown, too long or too many parts; the decoder refuses wrong types."""
    records_max = _RecordBudget.remaining = limits.max_batch_records
    try:
        request = _raw_append.decode(body)
    except _TooManyRecords:
        return too_many("records", records_max)
    except (msgspec.DecodeError, RecursionError) as error:
        return kind.explain(body, error)
    return _refuse_long(request, limits) or kind.refuse_rest(
        body, _known_bytes(request), REST_BYTES + RECORD_REST_BYTES * len(request.records)
    )


def _known_bytes(request: _RawAppend) -> int:
    known = len(request.node) + len(request.idempotency_key) + len(request.producer) + len(request.config)
    for record in request.records:
        known += len(record.data) + len(record.data_base64)
        known += len(record.meta) + len(record.tag) + len(record.node)
    return known


def _refuse_long(request: _RawAppend, limits: Settings) -> Refusal | None:
    tag_max, node_max = limits.max_tag_bytes, limits.max_node_bytes
    if len(request.node) > _ESCAPED * node_max + 2:
        return _too_long("node", node_max, "bytes")
    # A character beyond U+FFFF is written as two escapes.
    if len(request.idempotency_key) > 2 * _ESCAPED * KEY_CHARACTERS_MAX + 2:
        return _too_long("idempotency_key", KEY_CHARACTERS_MAX, "characters")
    if len(request.producer) > PRODUCER_BYTES_MAX:
        return _too_long("producer", PRODUCER_BYTES_MAX, "bytes")
    for field, size, bound in (
        ("config", len(request.config), CONFIG_BYTES_MAX),
        ("delay_ms", len(request.delay_ms), TIME_BYTES_MAX),
        ("not_before", len(request.not_before), TIME_BYTES_MAX),
        ("priority", len(request.priority), TIME_BYTES_MAX),
    ):
        if size > bound:
            return _too_long(field, bound, "bytes")
    for index, record in enumerate(request.records):
        if len(record.tag) > _ESCAPED * tag_max + 2:
            return _too_long(f"records[{index}].tag", tag_max, "bytes")
        if len(record.node) > _ESCAPED * node_max + 2:
            return _too_long(f"records[{index}].node", node_max, "bytes")
    return None


def _too_long(field: str, bound: int, unit: str) -> Refusal:
    return invalid(field, f"must be at most {bound} {unit}", bound)
