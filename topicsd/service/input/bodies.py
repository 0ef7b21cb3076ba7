"""Decoders of request bodies, which refuse invalid ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import UNSUPPORTED_MEDIA_TYPE, Refusal, excluded, invalid
from shared.contract.json_bounds import BACKSLASH, DATA_DEPTH_MAX, is_too_deep, is_utf8, may_hold_nul
from shared.contract.reader_options import NO_NODES
from shared.contract.tag_filter import TagFilter
from shared.contract.topic_config import NUMBER_MAX, TopicConfigPatch
from shared.http.head import Fields
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from shared.text.message import quoted
from shared.text.units import duration_ms, instant_ms
from topicsd.engine.requests import NO_META, AppendRequest, DeleteRequest, NewRecord
from topicsd.engine.routes.stamp import STAMP_KEY
from topicsd.engine.write.encode_records import refuse_lengths
from topicsd.service.input.append_body import AppendBody, SentRecord
from topicsd.service.input.body_limits import check_large_append, is_large_append
from topicsd.service.input.json_body import JsonBody, not_utf8
from topicsd.service.input.position import one_position
from topicsd.service.input.tag_match import SentMatch, parse_match, parse_one_match

Consistency = Literal["eventual", "strong"]
Guarantee = Literal["at_least_once", "exactly_once"]
Beginning = Literal["head", "earliest"]

META_KEYS_MAX = 64
UTF8: Final = ("utf-8", "utf8", "us-ascii")
# A shorter body cannot be too deep or hold too much.
SHORT_BYTES_MAX = 128


class ReadFields(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The options of a read as clients send them; the other requests that read add theirs."""

    limit: int = 0
    """Maximum number of records; 0 selects the default."""
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    match: SentMatch | None = None

    @property
    def tag_filter(self) -> TagFilter | Refusal | None:
        return None if self.match is None else parse_match("match", self.match)

    @property
    def nodes(self) -> frozenset[str]:
        node = self.node
        return NO_NODES if node is None else frozenset([node] if isinstance(node, str) else node)


class DiffBody(ReadFields, gc=False, kw_only=True):
    from_seq: int | UnsetType = UNSET
    after_seq: int | UnsetType = UNSET
    wait_ms: int | str = 0
    epoch: int | None = None
    from_ts: int | str | None = None
    last: int | None = None


class PublishBody(AppendRequest, kw_only=True, gc=False):
    """An append as a WebSocket message."""

    topic: str
    return_seqs: bool = True
    op: msgspec.Raw = NO_META
    request_id: msgspec.Raw = NO_META


class SentAppend(AppendRequest, kw_only=True, gc=False):
    records: list[SentRecord]  # type: ignore[assignment]


class SentPublish(PublishBody, kw_only=True, gc=False):
    records: list[SentRecord]  # type: ignore[assignment]


class DeleteBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    before_seq: int | None = None
    match: SentMatch | None = None
    seqs: list[int] | None = None
    after_seq: int | None = None


class CursorBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    from_seq: int | UnsetType = UNSET
    after_seq: int | UnsetType = UNSET
    epoch: int | None = None


_RECORD_HINT: Final = 'it belongs in a record, as in {"records":[{"data":1}]}'
_APPEND_HINTS: Final = {
    **dict.fromkeys(TopicConfigPatch.__struct_fields__, "it belongs in config"),
    **dict.fromkeys(("data", "data_base64", "tag", "meta"), _RECORD_HINT),
}
APPEND_BODY: Final = AppendBody(SentAppend, AppendRequest, '{"records":[{"data":1}]}', _APPEND_HINTS)
PUBLISH_BODY: Final = AppendBody(
    SentPublish, PublishBody, '{"op":"publish","topic":"orders","records":[{"data":1}]}', _APPEND_HINTS
)
_decode_diff: Final = JsonBody(DiffBody, '{"after_seq":0}').decode
_DELETE: Final = JsonBody(DeleteBody, '{"before_seq":100}')
_PATCH: Final = JsonBody(
    TopicConfigPatch,
    '{"ttl_ms":60000}',
    {"records": "append records with POST /v0/topics/:topic"},
)
_CURSOR: Final = JsonBody(CursorBody, '{"after_seq":100}')
_meta = msgspec.json.Decoder(dict[str, msgspec.Raw])


def refuse_media_type(fields: Fields, body: bytes) -> Refusal | None:
    """Refuse a body whose content type is not JSON."""
    if fields.content_type == "application/json":
        return None
    kind, *parameters = (part.strip().lower() for part in fields.content_type.split(";"))
    if not body:
        return None
    if kind != "application/json":
        got = f"got {quoted(kind)}" if kind else "got none"
        curl = "with curl, send --json or -H 'content-type: application/json'"
        return Refusal(UNSUPPORTED_MEDIA_TYPE, f"content-type: must be application/json, {got}; {curl}")
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        charset = value.strip().strip('"')
        if name.strip() == "charset" and charset not in UTF8:
            message = f"content-type: charset must be utf-8, got {quoted(charset)}"
            return Refusal(UNSUPPORTED_MEDIA_TYPE, message)
    return None


def decode_append(body: bytes, limits: Settings, kind: AppendBody = APPEND_BODY) -> AppendRequest | Refusal:
    if not (body.isascii() or is_utf8(body)):
        return not_utf8()
    if len(body) > SHORT_BYTES_MAX and is_large_append(body, limits.max_batch_records):
        refusal = check_large_append(body, kind, limits)
        if refusal is not None:
            return refusal
    try:
        request = kind.decode_fitting(body)
    except (msgspec.DecodeError, RecursionError):
        sent = kind.decode_sent(body)
        if isinstance(sent, Refusal):
            return sent
        request = sent
    return check_append(request, body, limits)


def check_append(request: AppendRequest, body: bytes, limits: Settings) -> AppendRequest | Refusal:
    """Return a request that was decoded from a body, or refuse what no type says."""
    if len(body) > 2 * DATA_DEPTH_MAX:
        refusal = _refuse_deep(request.records)
        if refusal is not None:
            return refusal
    if request.node is not None:
        refusal = refuse_node(request.node, limits.max_node_bytes)
        if refusal is not None:
            return refusal
    if request.expected_head is not None:
        refusal = refuse_number("expected_head", request.expected_head)
        if refusal is not None:
            return refusal
    if len(body) > limits.max_record_bytes:
        # Before the engine copies it.
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
    """Refuse deep data; no other long value of a record can be deep, and meta has its own check.

    The decoder drops the first value of a repeated key unread, however deep it is.
    """
    for index, record in enumerate(records):
        data = record.data
        if len(data) > 2 * DATA_DEPTH_MAX and not record.is_bytes and is_too_deep(data, DATA_DEPTH_MAX):
            return _too_deep(f"records[{index}].data")
    return None


def refuse_json_of(record: NewRecord, meta_bytes_max: int) -> Refusal | None:
    """Refuse `data` or `meta` of a record that is the body itself, by the rules of an append."""
    if is_too_deep(record.data, DATA_DEPTH_MAX):
        return _too_deep("data")
    return _refuse_meta([record], meta_bytes_max, "meta")


def _too_deep(field: str) -> Refusal:
    return invalid(field, f"must be nested at most {DATA_DEPTH_MAX} levels deep", DATA_DEPTH_MAX)


def decode_diff(body: bytes, clock: Clock) -> DiffBody | Refusal:
    request = _decode_diff(body)
    if isinstance(request, Refusal):
        return request
    # Inlined for one name with a valid seq: hot path.
    seq, after = request.from_seq, request.after_seq
    if seq is UNSET and after is not UNSET:
        request.from_seq = seq = after
        after = UNSET
    if seq is UNSET or after is not UNSET or not 0 <= seq <= NUMBER_MAX:
        is_after = request.after_seq is not UNSET
        position = one_position("", UNSET if is_after and after is UNSET else seq, request.after_seq)
        if isinstance(position, Refusal):
            return position
        request.from_seq = seq = position or 0
    refusal = None
    if request.wait_ms != 0 and isinstance(request.wait_ms, str):
        wait_ms = duration_ms("wait_ms", request.wait_ms)
        if isinstance(wait_ms, Refusal):
            return wait_ms
        request.wait_ms = wait_ms
    if request.limit < 0 or request.wait_ms < 0:
        # The upper bounds of these clamp.
        for field, value in (("limit", min(request.limit, 0)), ("wait_ms", min(request.wait_ms, 0))):
            refusal = refusal or refuse_number(field, value)
    if request.from_ts is not None or request.last is not None:
        has_other_position = seq != 0 or request.epoch is not None
        from_ts = resolve_seek("", request.from_ts, request.last, has_other_position, clock)
        if isinstance(from_ts, Refusal):
            return refusal or from_ts
        request.from_ts = from_ts
    if BACKSLASH in body and may_hold_nul(body):
        refusal = refusal or refuse_nul_in("node", request.nodes)
    return refusal or request


def decode_delete(body: bytes) -> DeleteBody | Refusal:
    request = _DELETE.decode(body)
    if isinstance(request, Refusal):
        return request
    refusal = refuse_number("before_seq", request.before_seq) or refuse_seqs(request.seqs)
    return refusal or refuse_number("after_seq", request.after_seq) or request


def delete_request(
    before_seq: int | None,
    match: SentMatch | None,
    seqs: list[int] | None = None,
    after_seq: int | None = None,
) -> DeleteRequest | Refusal:
    if seqs is not None:
        if before_seq is not None or match is not None or after_seq is not None:
            return excluded("seqs", "before_seq, after_seq or match")
        return DeleteRequest(seqs=seqs)
    if after_seq is not None:
        if match is not None:
            return excluded("after_seq", "match")
        return DeleteRequest(before_seq, after_seq=after_seq)
    if match is None:
        return DeleteRequest(before_seq)
    tag_match = parse_one_match("match", match)
    if isinstance(tag_match, Refusal):
        return tag_match
    return DeleteRequest(before_seq, tag_match.tag, tag_match.is_prefix)


def decode_cursor(body: bytes) -> CursorBody | Refusal:
    request = _CURSOR.decode(body)
    if isinstance(request, Refusal):
        return request
    seq = one_position("", request.from_seq, request.after_seq)
    if seq is None:
        seq = invalid("after_seq", "is required")
    if isinstance(seq, Refusal):
        return seq
    request.from_seq = seq
    return refuse_number("epoch", request.epoch) or request


def decode_patch(body: bytes) -> TopicConfigPatch | Refusal:
    return _PATCH.decode(body)


def refuse_node(node: str, bytes_max: int) -> Refusal | None:
    """Refuse a long node of a whole request; the engine checks only the nodes of single records."""
    size = len(node) if node.isascii() else len(node.encode())
    if size <= bytes_max:
        return None
    return invalid("node", f"must be at most {bytes_max} bytes, got {size}", bytes_max)


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
        # Most records have neither, and there may be many.
        if record.tag or record.node:
            refusal = (
                refusal
                or refuse_nul_in(f"records[{index}].tag", [record.tag])
                or refuse_nul_in(f"records[{index}].node", [record.node])
            )
    return refusal


def refuse_nul_in(field: str, texts: Iterable[str | None] | None) -> Refusal | None:
    if any(text is not None and "\0" in text for text in texts or ()):
        return invalid(field, "must not contain a NUL character")
    return None


def _refuse_meta(
    records: list[NewRecord], bytes_max: int, field_form: str = "records[{}].meta"
) -> Refusal | None:
    for index, record in enumerate(records):
        if record.meta is NO_META:
            continue
        if is_too_deep(record.meta, DATA_DEPTH_MAX):
            return _too_deep(field_form.format(index))
        if len(record.meta) > bytes_max:
            continue  # The engine refuses it; do not decode it to count its keys.
        field = field_form.format(index)
        try:
            keys = _meta.decode(record.meta)
        except msgspec.DecodeError:
            if bytes(record.meta) != b"null":
                return invalid(field, "must be a JSON object")
            record.meta = NO_META
            continue
        if STAMP_KEY in keys:
            return invalid(field, f"must not have the key {STAMP_KEY}, which routes set")
        if len(keys) > META_KEYS_MAX:
            return invalid(field, f"must have at most {META_KEYS_MAX} keys, got {len(keys)}", META_KEYS_MAX)
    return None


def resolve_seek(
    prefix: str, from_ts: int | str | None, last: int | None, has_other_position: bool, clock: Clock
) -> int | Refusal | None:
    """Return `from_ts` in ms; `has_other_position` means that another field sets the position."""
    if from_ts is not None:
        time_ms = instant_ms(f"{prefix}from_ts", from_ts, clock.now_ms())
        if isinstance(time_ms, Refusal):
            return time_ms
        from_ts = time_ms
    refusal = refuse_number(f"{prefix}from_ts", from_ts) or refuse_number(f"{prefix}last", last)
    if refusal is None and (from_ts is not None) + (last is not None) + has_other_position > 1:
        field = f"{prefix}from_ts" if last is None else f"{prefix}last"
        others = "after_seq, epoch, tail or " + ("from_ts" if last is not None else "last")
        return excluded(field, others)
    return refusal or from_ts


def refuse_seqs(seqs: list[int] | None) -> Refusal | None:
    """Refuse the first negative seq."""
    if not seqs or min(seqs) >= 0:
        return None
    index = next(index for index, seq in enumerate(seqs) if seq < 0)
    return refuse_number(f"seqs[{index}]", seqs[index])


def refuse_number(field: str, value: int | None) -> Refusal | None:
    if value is not None and not 0 <= value <= NUMBER_MAX:
        bound = f"at least 0, got {value}" if value < 0 else f"at most {NUMBER_MAX}"
        return invalid(field, f"must be {bound}")
    return None
