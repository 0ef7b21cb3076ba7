"""Bodies of requests: what they are decoded to, and the refusals when they are none.

Must not know: what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from shared.clock import Clock
from shared.config import Settings
from shared.contract import NUMBER_MAX, Discard, Durability, OrderBy, TopicConfigPatch, TopicType
from shared.errors import INVALID_REQUEST, UNSUPPORTED_MEDIA_TYPE, Refusal
from shared.http_head import Fields
from shared.json_bounds import (
    BACKSLASH,
    CONTROL_DEPTH_MAX,
    DATA_DEPTH_MAX,
    are_too_deep,
    is_too_deep,
    is_utf8,
    may_hold_nul,
)
from shared.units import duration_ms, instant_ms
from topicsd.engine.copy_stamp import STAMP_KEY
from topicsd.engine.encode_records import refuse_lengths
from topicsd.engine.requests import NO_META, AppendRequest, DeleteRequest, NewRecord, Producer
from topicsd.http.large_bodies import control_look, look_at_append, needs_look
from topicsd.http.position import one_position
from topicsd.http.tag_match import parse_match

T = TypeVar("T")
Consistency = Literal["eventual", "strong"]
Guarantee = Literal["at_least_once", "exactly_once"]
Beginning = Literal["head", "earliest"]

META_KEYS_MAX = 64
TOLD_MAX = 240
# `data` and `meta` stand in a record, in the list of records, in the body.
RECORD_DEPTH = 3
APPEND_DEPTH_MAX = DATA_DEPTH_MAX + RECORD_DEPTH
DATA_TOO_DEEP: Final = f"{DATA_DEPTH_MAX} levels in data or meta"
CHOICES: Final = {
    "type": get_args(TopicType),
    "discard": get_args(Discard),
    "durability": get_args(Durability),
    "order_by": get_args(OrderBy),
    "consistency": get_args(Consistency),
    "guarantee": get_args(Guarantee),
    "from": get_args(Beginning),
}


class DiffBody(msgspec.Struct, gc=False):
    from_seq: int | UnsetType = UNSET
    after_seq: int | UnsetType = UNSET
    limit: int = 0
    """0 is the default."""
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int | str = 0
    epoch: int | None = None
    from_ts: int | str | None = None
    last: int | None = None


class _KnownRecord(NewRecord, forbid_unknown_fields=True, gc=False):
    pass


class _KnownProducer(Producer, forbid_unknown_fields=True, gc=False):
    pass


class _KnownPatch(TopicConfigPatch, frozen=True, forbid_unknown_fields=True):
    pass


class _KnownAppend(AppendRequest, forbid_unknown_fields=True, gc=False):
    """An append in which nothing but data and meta can be nested."""

    records: list[_KnownRecord]  # type: ignore[assignment]
    config: _KnownPatch | None = None
    disable_backpressure: bool = False
    """The API names it, so it is no reason to look closer."""
    producer: _KnownProducer | None = None


class DeleteBody(msgspec.Struct, gc=False):
    before_seq: int | None = None
    match: str | list[str] | None = None
    seqs: list[int] | None = None


class CursorBody(msgspec.Struct, gc=False):
    from_seq: int | UnsetType = UNSET
    after_seq: int | UnsetType = UNSET
    epoch: int | None = None


_append = msgspec.json.Decoder(AppendRequest)
_known_append: msgspec.json.Decoder[AppendRequest] = msgspec.json.Decoder(_KnownAppend)
_diff = msgspec.json.Decoder(DiffBody)
_delete = msgspec.json.Decoder(DeleteBody)
_patch = msgspec.json.Decoder(TopicConfigPatch)
_cursor = msgspec.json.Decoder(CursorBody)
_look_at_diff = control_look(DiffBody)
_look_at_delete = control_look(DeleteBody)
_look_at_patch = control_look(TopicConfigPatch)
_look_at_cursor = control_look(CursorBody)
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
    # A short one is worth no look: nothing in it can be deep, whatever its fields are, or too much.
    is_short = len(body) <= 2 * CONTROL_DEPTH_MAX
    if not is_short and needs_look(body, limits.max_batch_records):
        refusal = look_at_append(body, limits)
        if refusal is not None:
            return refusal
    if not (body.isascii() or is_utf8(body)):
        return _not_utf8()
    try:
        request = (_append if is_short else _known_append).decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = _decode_unknown(body)
        if isinstance(decoded, Refusal):
            return decoded
        request = decoded
    if len(body) > 2 * DATA_DEPTH_MAX:
        refusal = _refuse_deep(request.records)
        if refusal is not None:
            return refusal
    if request.node is not None:
        refusal = refuse_node(request.node, limits.max_node_bytes)
        if refusal is not None:
            return refusal
    if len(body) > limits.max_record_bytes:
        # Before the engine has a copy of it.
        refusal = _refuse_records(request, limits)
        if refusal is not None:
            return refusal
    if BACKSLASH in body and may_hold_nul(body):
        refusal = _refuse_nul(request)
        if refusal is not None:
            return refusal
    for record in request.records:
        if record.meta is not NO_META:
            return _refuse_meta(request.records, limits.max_meta_bytes) or request
    return request


def _refuse_deep(records: list[NewRecord]) -> Refusal | None:
    """Where every field is known, nothing can be deep but data, when it is long, and meta, at which all look.

    What a key that stands twice had at first was thrown away unread, however deep it was.
    """
    for record in records:
        if len(record.data) > 2 * DATA_DEPTH_MAX and is_too_deep(record.data, DATA_DEPTH_MAX):
            return _too_deep(DATA_TOO_DEEP)
    return None


def _decode_unknown(body: bytes) -> AppendRequest | Refusal:
    """One that may have fields which mean nothing, or is wrong."""
    is_deep = is_too_deep(body, CONTROL_DEPTH_MAX)
    if is_deep and is_too_deep(body, APPEND_DEPTH_MAX):
        return _too_deep(DATA_TOO_DEEP)
    request = decode_body(_append.decode, body)
    if isinstance(request, Refusal) or not is_deep:
        return request
    if are_too_deep(_control_parts(body, request), CONTROL_DEPTH_MAX):
        return _too_deep(f"{CONTROL_DEPTH_MAX} levels beside data and meta")
    return request


def decode_diff(body: bytes, clock: Clock) -> DiffBody | Refusal:
    request = decode_control_body(_diff.decode, body, _look_at_diff)
    if isinstance(request, Refusal):
        return request
    seq = request.from_seq
    # Inlined for the common case: hot path.
    if seq is UNSET or request.after_seq is not UNSET or not 0 <= seq <= NUMBER_MAX:
        found = one_position("", seq, request.after_seq)
        if isinstance(found, Refusal):
            return found
        request.from_seq = seq = found or 0
    refusal = None
    if isinstance(request.wait_ms, str):
        wait_ms = duration_ms("wait_ms", request.wait_ms)
        if isinstance(wait_ms, Refusal):
            return wait_ms
        request.wait_ms = wait_ms
    if request.limit < 0 or request.wait_ms < 0:
        # These are clamped from above.
        for field, value in (("limit", min(request.limit, 0)), ("wait_ms", min(request.wait_ms, 0))):
            refusal = refusal or refuse_number(field, value)
    if request.from_ts is not None or request.last is not None:
        is_placed = seq != 0 or request.epoch is not None
        sought = settle_seek("", request.from_ts, request.last, is_placed, clock)
        if isinstance(sought, Refusal):
            return refusal or sought
        request.from_ts = sought
    if BACKSLASH in body and may_hold_nul(body):
        nodes = [request.node] if isinstance(request.node, str) else request.node
        refusal = refusal or refuse_nul_in("node", nodes)
    return refusal or request


def decode_delete(body: bytes) -> DeleteBody | Refusal:
    request = decode_control_body(_delete.decode, body, _look_at_delete)
    if isinstance(request, Refusal):
        return request
    refusal = refuse_number("before_seq", request.before_seq)
    if may_hold_nul(body):
        match = [request.match] if isinstance(request.match, str) else request.match
        refusal = refusal or refuse_nul_in("match", match)
    return refusal or request


def delete_request(
    before_seq: int | None, match: str | list[str] | None, seqs: list[int] | None = None
) -> DeleteRequest | Refusal:
    if seqs is not None:
        if before_seq is not None or match is not None:
            return Refusal(INVALID_REQUEST, "seqs: excludes before_seq and match", {"field": "seqs"})
        return DeleteRequest(seqs=seqs)
    if match is None:
        return DeleteRequest(before_seq)
    found = parse_match("match", match)
    return found if isinstance(found, Refusal) else DeleteRequest(before_seq, found.tag, found.is_prefix)


def decode_cursor(body: bytes) -> CursorBody | Refusal:
    request = decode_control_body(_cursor.decode, body, _look_at_cursor)
    if isinstance(request, Refusal):
        return request
    seq = one_position("", request.from_seq, request.after_seq)
    if seq is None:
        seq = Refusal(INVALID_REQUEST, "after_seq: is required", {"field": "after_seq"})
    if isinstance(seq, Refusal):
        return seq
    request.from_seq = seq
    return refuse_number("epoch", request.epoch) or request


def decode_patch(body: bytes) -> TopicConfigPatch | Refusal:
    return decode_control_body(_patch.decode, body, _look_at_patch)


def decode_control_body(
    decode: Callable[[bytes], T], body: bytes, look: Callable[[bytes], Refusal | None]
) -> T | Refusal:
    """A body without data: none is an empty object."""
    if len(body) > 2 * CONTROL_DEPTH_MAX:
        # Only a longer one can be deep, or large.
        if is_too_deep(body, CONTROL_DEPTH_MAX):
            return _too_deep(f"{CONTROL_DEPTH_MAX} levels")
        refusal = look(body)
        if refusal is not None:
            return refusal
    return decode_body(decode, body or b"{}")


def _too_deep(told: str) -> Refusal:
    return Refusal(INVALID_REQUEST, f"the body is nested deeper than {told}")


def _not_utf8() -> Refusal:
    return Refusal(INVALID_REQUEST, "the body is not UTF-8")


def _control_parts(body: bytes, request: AppendRequest) -> Iterator[memoryview]:
    """The body without what is deep in data and meta, in pieces; for a body that is deep somewhere.

    A value is found by its bytes, in the order of the records. Where the same bytes stand in front of it,
    they are cut out in its place, and what is as deep is still there and refused.
    """
    whole, at = memoryview(body), 0
    depth_max = CONTROL_DEPTH_MAX - RECORD_DEPTH
    for record in request.records:
        if len(record.data) <= 2 * depth_max and len(record.meta) <= 2 * depth_max:
            continue
        values = [memoryview(value) for value in (record.data, record.meta)]
        deep = [value for value in values if are_too_deep([value], depth_max)]
        # Which of the two stands first nobody has said; they may be the same.
        deep.sort(key=partial(_place, body, at))
        for value in deep:
            start = body.find(value, at)
            if start >= 0:
                yield whole[at:start]
                at = start + len(value)
    yield whole[at:]


def _place(body: bytes, at: int, value: memoryview) -> int:
    return body.find(value, at)


def decode_body(decode: Callable[[bytes], T], body: bytes) -> T | Refusal:
    if not body:
        return Refusal(INVALID_REQUEST, "the body is empty, a JSON object is needed")
    if not (body.isascii() or is_utf8(body)):
        return _not_utf8()
    try:
        return decode(body)
    except RecursionError:
        return Refusal(INVALID_REQUEST, "the body is nested too deep")
    except msgspec.ValidationError as error:
        return _wrong(error)
    except msgspec.DecodeError as error:
        return Refusal(INVALID_REQUEST, f"the body is not JSON: {_told(error)}")


def _wrong(error: msgspec.ValidationError) -> Refusal:
    """The decoder says at its end where that is, as "- at `$.records[0].tag`"; nothing is all of the body."""
    text = _told(error)
    told, _, place = text.rpartition(" - at `$.")
    if not told:
        return Refusal(INVALID_REQUEST, f"the body: {text}")
    field = place.removesuffix("`")
    choices = CHOICES.get(field.rpartition(".")[2])
    if choices is not None:
        told += f", must be one of {', '.join(choices)}"
    return Refusal(INVALID_REQUEST, f"{field}: {told}", {"field": field})


def _told(error: msgspec.DecodeError) -> str:
    """What the decoder says, but for the middle of a text that it repeats. Where it stands is at the end."""
    text = str(error)
    return text if len(text) <= TOLD_MAX else f"{text[: TOLD_MAX // 2]}...{text[-TOLD_MAX // 2 :]}"


def refuse_node(node: str, bytes_max: int) -> Refusal | None:
    """That of the whole request; the engine knows it only as that of each record."""
    size = len(node) if node.isascii() else len(node.encode())
    if size <= bytes_max:
        return None
    message = f"node: has {size} bytes, at most {bytes_max} are allowed"
    return Refusal(INVALID_REQUEST, message, {"field": "node", "max": bytes_max})


def _refuse_records(request: AppendRequest, limits: Settings) -> Refusal | None:
    for index, record in enumerate(request.records):
        data_bytes, meta_bytes = len(record.data), len(record.meta)
        if data_bytes + meta_bytes > limits.max_record_bytes:
            return refuse_lengths(index, data_bytes, meta_bytes, b"", b"", limits)
    return None


def _refuse_nul(request: AppendRequest) -> Refusal | None:
    refusal = refuse_nul_in("node", [request.node]) or refuse_nul_in(
        "idempotency_key", [request.idempotency_key]
    )
    if request.producer is not None:
        refusal = refusal or refuse_nul_in("producer.id", [request.producer.id])
    for index, record in enumerate(request.records):
        # Most have neither, and there may be many.
        if record.tag or record.node:
            refusal = (
                refusal
                or refuse_nul_in(f"records[{index}].tag", [record.tag])
                or refuse_nul_in(f"records[{index}].node", [record.node])
            )
    return refusal


def refuse_nul_in(field: str, texts: Sequence[str | None] | None) -> Refusal | None:
    if any(text is not None and "\0" in text for text in texts or ()):
        return Refusal(INVALID_REQUEST, f"{field}: holds a NUL", {"field": field})
    return None


def _refuse_meta(records: list[NewRecord], bytes_max: int) -> Refusal | None:
    for index, record in enumerate(records):
        if record.meta is NO_META:
            continue
        if is_too_deep(record.meta, DATA_DEPTH_MAX):
            return _too_deep(DATA_TOO_DEEP)
        if len(record.meta) > bytes_max:
            continue  # That is for the engine to refuse; it is not built to count its keys.
        field = f"records[{index}].meta"
        try:
            keys = _meta.decode(record.meta)
        except msgspec.DecodeError:
            if bytes(record.meta) != b"null":
                return Refusal(INVALID_REQUEST, f"{field}: must be a JSON object", {"field": field})
            record.meta = NO_META
            continue
        if STAMP_KEY in keys:
            message = f"{field}: has the key {STAMP_KEY}, which is the server's own"
            return Refusal(INVALID_REQUEST, message, {"field": field})
        if len(keys) > META_KEYS_MAX:
            message = f"{field}: has {len(keys)} keys, at most {META_KEYS_MAX} are allowed"
            return Refusal(INVALID_REQUEST, message, {"field": field, "max": META_KEYS_MAX})
    return None


def settle_seek(
    prefix: str, from_ts: int | str | None, last: int | None, is_placed: bool, clock: Clock
) -> int | Refusal | None:
    """Return `from_ts` in milliseconds; `is_placed` says that the place is given in another way as well."""
    if from_ts is not None:
        found = instant_ms(f"{prefix}from_ts", from_ts, clock.now_ms())
        if isinstance(found, Refusal):
            return found
        from_ts = found
    refusal = refuse_number(f"{prefix}from_ts", from_ts) or refuse_number(f"{prefix}last", last)
    if refusal is None and (from_ts is not None) + (last is not None) + is_placed > 1:
        field = f"{prefix}from_ts" if last is None else f"{prefix}last"
        message = f"{field}: excludes every other place: after_seq with epoch, from_ts, last, tail"
        return Refusal(INVALID_REQUEST, message, {"field": field})
    return refusal or from_ts


def refuse_number(field: str, value: int | None) -> Refusal | None:
    if value is not None and not 0 <= value <= NUMBER_MAX:
        bound = "at least 0" if value < 0 else f"at most {NUMBER_MAX}"
        return Refusal(INVALID_REQUEST, f"{field}: must be {bound}", {"field": field})
    return None
