"""Bodies of requests: what they are decoded to, and the refusals when they are none.

Must not know: what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from shared.config import Settings
from shared.contract import NUMBER_MAX, TopicConfigPatch
from shared.errors import BATCH_TOO_LARGE, INVALID_REQUEST, UNSUPPORTED_MEDIA_TYPE, Refusal
from shared.http_head import Fields
from shared.json_bounds import (
    CONTROL_DEPTH_MAX,
    DATA_DEPTH_MAX,
    is_too_deep,
    is_utf8,
    may_have_key,
    may_hold_nul,
)
from topicsd.engine.encode_records import refuse_lengths
from topicsd.engine.requests import NO_META, AppendRequest, NewRecord
from topicsd.http.record_count import TooManyRecords, decode_counted, may_hold_more

T = TypeVar("T")

META_KEYS_MAX = 64
# `data` and `meta` stand in a record, in the list of records, in the body.
APPEND_DEPTH_MAX = DATA_DEPTH_MAX + 3


class DiffBody(msgspec.Struct, gc=False):
    from_seq: int = 0
    limit: int = 256
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    epoch: int | None = None


class DeleteBody(msgspec.Struct, gc=False):
    before_seq: int | None = None
    match: str | list[str] | None = None


_append = msgspec.json.Decoder(AppendRequest)
_diff = msgspec.json.Decoder(DiffBody)
_delete = msgspec.json.Decoder(DeleteBody)
_patch = msgspec.json.Decoder(TopicConfigPatch)
_meta = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_media_type(fields: Fields, body: bytes) -> Refusal | None:
    """A body has to say that it is JSON."""
    if fields.content_type == "application/json":
        return None
    kind = fields.content_type.partition(";")[0].strip().lower()
    if body and kind != "application/json":
        return Refusal(UNSUPPORTED_MEDIA_TYPE, f'content-type: must be application/json, it is "{kind[:64]}"')
    return None


def decode_append(body: bytes, limits: Settings) -> AppendRequest | Refusal:
    records_max = limits.max_batch_records
    try:
        if may_hold_more(body, records_max):
            request = _decode(partial(decode_counted, records_max=records_max), body, APPEND_DEPTH_MAX)
        else:
            request = _decode(_append.decode, body, APPEND_DEPTH_MAX)
    except TooManyRecords:
        message = f"records: has more than {records_max}, which is what is allowed in one write"
        return Refusal(BATCH_TOO_LARGE, message, {"field": "records", "max": records_max})
    if isinstance(request, Refusal):
        return request
    if len(body) > limits.max_record_bytes:
        # Before the engine has a copy of it.
        refusal = _refuse_records(request, limits)
        if refusal is not None:
            return refusal
    if may_hold_nul(body):
        refusal = _refuse_nul(request)
        if refusal is not None:
            return refusal
    if may_have_key(body, b'"meta"'):
        for index, record in enumerate(request.records):
            refusal = _refuse_meta(index, record, limits.max_meta_bytes)
            if refusal is not None:
                return refusal
    return request


def decode_diff(body: bytes) -> DiffBody | Refusal:
    request = _decode(_diff.decode, body or b"{}", CONTROL_DEPTH_MAX)
    if isinstance(request, Refusal):
        return request
    refusal = _refuse_number("from_seq", request.from_seq)
    # These are clamped from above.
    for field, value in (("limit", min(request.limit, 0)), ("wait_ms", min(request.wait_ms, 0))):
        refusal = refusal or _refuse_number(field, value)
    if may_hold_nul(body):
        nodes = [request.node] if isinstance(request.node, str) else request.node
        refusal = refusal or _refuse_nul_in("node", nodes)
    return refusal or request


def decode_delete(body: bytes) -> DeleteBody | Refusal:
    request = _decode(_delete.decode, body or b"{}", CONTROL_DEPTH_MAX)
    if isinstance(request, Refusal):
        return request
    refusal = _refuse_number("before_seq", request.before_seq)
    if may_hold_nul(body):
        match = [request.match] if isinstance(request.match, str) else request.match
        refusal = refusal or _refuse_nul_in("match", match)
    return refusal or request


def decode_patch(body: bytes) -> TopicConfigPatch | Refusal:
    return _decode(_patch.decode, body or b"{}", CONTROL_DEPTH_MAX)


def _decode(decode: Callable[[bytes], T], body: bytes, depth_max: int) -> T | Refusal:
    if not is_utf8(body):
        return Refusal(INVALID_REQUEST, "the body is not UTF-8")
    if is_too_deep(body, depth_max):
        return Refusal(INVALID_REQUEST, f"the body is nested deeper than {depth_max} levels")
    try:
        return decode(body)
    except RecursionError:
        return Refusal(INVALID_REQUEST, "the body is nested too deep")
    except msgspec.ValidationError as error:
        return Refusal(INVALID_REQUEST, f"the body: {error}")
    except msgspec.DecodeError as error:
        return Refusal(INVALID_REQUEST, f"the body is not JSON: {error}")


def _refuse_records(request: AppendRequest, limits: Settings) -> Refusal | None:
    for index, record in enumerate(request.records):
        data_bytes, meta_bytes = len(record.data), len(record.meta)
        if data_bytes + meta_bytes > limits.max_record_bytes:
            return refuse_lengths(index, data_bytes, meta_bytes, b"", b"", limits)
    return None


def _refuse_nul(request: AppendRequest) -> Refusal | None:
    refusal = _refuse_nul_in("node", [request.node]) or _refuse_nul_in(
        "idempotency_key", [request.idempotency_key]
    )
    for index, record in enumerate(request.records):
        refusal = (
            refusal
            or _refuse_nul_in(f"records[{index}].tag", [record.tag])
            or _refuse_nul_in(f"records[{index}].node", [record.node])
        )
    return refusal


def _refuse_nul_in(field: str, texts: Sequence[str | None] | None) -> Refusal | None:
    if any(text is not None and "\0" in text for text in texts or ()):
        return Refusal(INVALID_REQUEST, f"{field}: holds a NUL", {"field": field})
    return None


def _refuse_meta(index: int, record: NewRecord, bytes_max: int) -> Refusal | None:
    # What is too long is for the engine to refuse; it is not built to count its keys.
    if record.meta is NO_META or len(record.meta) > bytes_max:
        return None
    field = f"records[{index}].meta"
    try:
        keys = _meta.decode(record.meta)
    except msgspec.DecodeError:
        if bytes(record.meta) == b"null":
            record.meta = NO_META
            return None
        return Refusal(INVALID_REQUEST, f"{field}: must be a JSON object", {"field": field})
    if len(keys) > META_KEYS_MAX:
        message = f"{field}: has {len(keys)} keys, at most {META_KEYS_MAX} are allowed"
        return Refusal(INVALID_REQUEST, message, {"field": field, "max": META_KEYS_MAX})
    return None


def _refuse_number(field: str, value: int | None) -> Refusal | None:
    if value is not None and not 0 <= value <= NUMBER_MAX:
        bound = "at least 0" if value < 0 else f"at most {NUMBER_MAX}"
        return Refusal(INVALID_REQUEST, f"{field}: must be {bound}", {"field": field})
    return None
