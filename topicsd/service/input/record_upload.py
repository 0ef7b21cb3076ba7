"""A request whose body is the data of one record, as an append."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import UNSUPPORTED_MEDIA_TYPE, Refusal, invalid
from shared.contract.query import query_boolean, query_text
from shared.http.body import too_large
from shared.http.head import Fields
from shared.settings.settings import Settings
from shared.text.message import quoted
from topicsd.engine.requests import AppendRequest, BytesRecord
from topicsd.service.input.bodies import refuse_nul_in

OCTETS: Final = "application/octet-stream"


def record_append(body: bytes, fields: Fields, query: str, settings: Settings) -> AppendRequest | Refusal:
    """Return the append of a record of bytes; `body` may be a mapped file, which is not copied."""
    tag, node = query_text(query, "tag"), query_text(query, "node")
    create = query_boolean(query, "create", True)
    refusal = refuse_record_type(fields)
    bytes_max = min(settings.max_record_bytes, settings.max_body_bytes)
    if refusal is None and len(body) > bytes_max:
        refusal = too_large(bytes_max)
    for field, text, text_max in (
        ("tag", tag, settings.max_tag_bytes),
        ("node", node, settings.max_node_bytes),
    ):
        size = len((text or "").encode())
        if size > text_max:
            refusal = refusal or invalid(field, f"must be at most {text_max} bytes, got {size}", text_max)
        refusal = refusal or refuse_nul_in(field, [text])
    record = BytesRecord(msgspec.Raw(body), tag or None, node or None)
    if isinstance(create, Refusal):
        return refusal or create
    return refusal or AppendRequest([record], create=create)


def refuse_record_type(fields: Fields) -> Refusal | None:
    kind = fields.content_type.partition(";")[0].strip().lower()
    if kind == OCTETS:
        return None
    got = f"got {quoted(kind)}" if kind else "got none"
    json = "records of JSON are appended with POST /v0/topics/:topic"
    return Refusal(UNSUPPORTED_MEDIA_TYPE, f"content-type: must be {OCTETS}, {got}; {json}")
