"""A look at a large body before anything is built of it, so that what is built is never much more than it.

A text of which one character is an emoji takes four times its bytes, a list of short texts twenty times; and
of ten million records none is wanted. So the fields that we know are first taken as they stand, which copies
nothing, and only counted and measured. Of a body that is not large not more can be made than it is worth.

Must not know: what the fields are for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared.config import Settings
from shared.errors import BATCH_TOO_LARGE, INVALID_REQUEST, Refusal
from topicsd.engine.keyed_write import KEY_CHARACTERS_MAX
from topicsd.engine.producer_write import PRODUCER_CHARACTERS_MAX

CONTROL_BODY_BYTES: Final = 256 << 10
APPEND_BODY_BYTES: Final = 4 << 20
# A known field of a control body; the longest that means anything is a list of nodes.
FIELD_BYTES_MAX: Final = CONTROL_BODY_BYTES
# No record is shorter: {"data":1} and a comma.
_RECORD_BYTES_MIN: Final = 11
# A character of a text may be written as \u0061, and there are its quotation marks.
_ESCAPED: Final = 6
# An id of the greatest length in its longest spelling, a number, and room for white space.
PRODUCER_BYTES_MAX: Final = 2 * _ESCAPED * PRODUCER_CHARACTERS_MAX + 1024
# No duration and no time is longer.
TIME_BYTES_MAX: Final = 1024
_NOTHING: Final = msgspec.Raw(b"")


class _TooManyRecords(Exception):
    pass


class _Room:
    left = 0


class _RawRecord(msgspec.Struct, gc=False):
    data: msgspec.Raw
    tag: msgspec.Raw = _NOTHING
    node: msgspec.Raw = _NOTHING

    def __post_init__(self) -> None:
        _Room.left -= 1
        if _Room.left < 0:
            raise _TooManyRecords


class _RawAppend(msgspec.Struct, gc=False):
    records: list[_RawRecord] = []
    node: msgspec.Raw = _NOTHING
    idempotency_key: msgspec.Raw = _NOTHING
    producer: msgspec.Raw = _NOTHING
    config: msgspec.Raw = _NOTHING
    delay_ms: msgspec.Raw = _NOTHING
    not_before: msgspec.Raw = _NOTHING


_raw_append = msgspec.json.Decoder(_RawAppend)


def needs_look(body: bytes, records_max: int) -> bool:
    """Whether an append is large, or may have too many records."""
    return len(body) > APPEND_BODY_BYTES or (
        len(body) > records_max * _RECORD_BYTES_MIN and body.count(b"{") > records_max
    )


def look_at_append(body: bytes, limits: Settings) -> Refusal | None:
    """What is too long or too much; what is wrong otherwise is for the decoder to say."""
    records_max = _Room.left = limits.max_batch_records
    try:
        request = _raw_append.decode(body)
    except _TooManyRecords:
        message = f"records: has more than {records_max}, which is what is allowed in one write"
        return Refusal(BATCH_TOO_LARGE, message, {"field": "records", "max": records_max})
    except (msgspec.DecodeError, RecursionError):
        return None
    tag_max, node_max = limits.max_tag_bytes, limits.max_node_bytes
    if len(request.node) > _ESCAPED * node_max + 2:
        return _too_long("node", node_max, "bytes")
    # A character beyond the first 65,536 is written with two of them.
    if len(request.idempotency_key) > 2 * _ESCAPED * KEY_CHARACTERS_MAX + 2:
        return _too_long("idempotency_key", KEY_CHARACTERS_MAX, "characters")
    if len(request.producer) > PRODUCER_BYTES_MAX:
        return _too_long("producer", PRODUCER_BYTES_MAX, "bytes")
    for field, size, bound in (
        ("config", len(request.config), FIELD_BYTES_MAX),
        ("delay_ms", len(request.delay_ms), TIME_BYTES_MAX),
        ("not_before", len(request.not_before), TIME_BYTES_MAX),
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
    message = f"{field}: has more than {bound} {unit}, which is what is allowed"
    return Refusal(INVALID_REQUEST, message, {"field": field, "max": bound})


def control_look(kind: type[msgspec.Struct]) -> Callable[[bytes], Refusal | None]:
    """The look at a body of which that is made."""
    fields: list[Any] = [(one.encode_name, msgspec.Raw, _NOTHING) for one in msgspec.structs.fields(kind)]
    decoder = msgspec.json.Decoder(msgspec.defstruct(f"Raw{kind.__name__}", fields))

    def look(body: bytes) -> Refusal | None:
        if len(body) <= CONTROL_BODY_BYTES:
            return None
        try:
            raw = decoder.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return None
        for field, _, _ in fields:
            size = len(getattr(raw, field))
            if size > FIELD_BYTES_MAX:
                message = f"{field}: has {size} bytes, at most {FIELD_BYTES_MAX} are allowed"
                return Refusal(INVALID_REQUEST, message, {"field": field, "max": FIELD_BYTES_MAX})
        return None

    return look
