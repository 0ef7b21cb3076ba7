"""The bodies that are not an envelope with records: one record of bytes or of text, or lines of JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from shared.contract.errors import UNSUPPORTED_MEDIA_TYPE, Refusal, invalid
from shared.contract.query import query_boolean, query_text
from shared.http.body import too_large
from shared.http.head import Fields
from shared.settings.settings import Settings
from shared.text.message import quoted
from topicsd.engine.requests import AppendRequest, BytesRecord, NewRecord
from topicsd.service.input.bodies import UTF8, refuse_nul_in
from topicsd.service.input.json_body import not_utf8
from topicsd.service.input.line_records import LINES, decode_lines, is_lines

OCTETS: Final = "application/octet-stream"
TEXT: Final = "text/plain"
QUERIES_MAX: Final = 256
_encode: Final = msgspec.json.Encoder().encode


class UploadQuery(NamedTuple):
    """The query of a request whose body is not an envelope."""

    tag: str | None
    node: str | None
    create: bool
    form: str | None
    """What lines are: `data` or `record`."""
    batch_query: str
    """The query of each batch of an upload of lines."""


@lru_cache(maxsize=QUERIES_MAX)
def upload_query(query: str) -> UploadQuery | Refusal:
    """Parse a query, or refuse a parameter that breaks a rule which no setting changes."""
    create, with_seqs = query_boolean(query, "create", True), return_seqs_of(query)
    if isinstance(create, Refusal):
        return create
    if isinstance(with_seqs, Refusal):
        return with_seqs
    tag, node, form = (query_text(query, name) for name in ("tag", "node", "as"))
    refusal = refuse_nul_in("tag", [tag]) or refuse_nul_in("node", [node])
    if form not in (None, "data", "record"):
        refusal = refusal or invalid("as", f"must be data or record, got {quoted(form)}")
    given = {"tag": tag, "node": node, "as": form, "create": "true" if create else "false"}
    batch_query = urlencode(
        {name: value for name, value in given.items() if value} | {"return_seqs": "false"}
    )
    return refusal or UploadQuery(tag or None, node or None, create, form, batch_query)


@lru_cache(maxsize=QUERIES_MAX)
def return_seqs_of(query: str) -> bool | Refusal:
    """Return whether the query of an append asks for the seqs of its records."""
    return query_boolean(query, "return_seqs", True)


def record_append(body: bytes, fields: Fields, query: str, settings: Settings) -> AppendRequest | Refusal:
    """Return the append of a body; `body` may be a mapped file, whose bytes are not copied as a record."""
    about = record_query(fields, query, settings)
    if isinstance(about, Refusal):
        return about
    if is_lines(fields):
        request = decode_lines(body, about.form == "record", about.tag, settings)
    else:
        request = _one_record(body, fields, about.tag, settings)
    if isinstance(request, AppendRequest):
        request.node = about.node
        request.create = about.create
    return request


def _one_record(body: bytes, fields: Fields, tag: str | None, settings: Settings) -> AppendRequest | Refusal:
    bytes_max = min(settings.max_record_bytes, settings.max_body_bytes)
    if len(body) > bytes_max:
        return too_large(bytes_max)
    if _type_of(fields) == OCTETS:
        return AppendRequest([BytesRecord(msgspec.Raw(body), tag)])
    try:
        text = body[:].decode()
    except UnicodeDecodeError:
        return not_utf8()
    return AppendRequest([NewRecord(msgspec.Raw(_encode(text)), tag)])


def record_query(fields: Fields, query: str, settings: Settings) -> UploadQuery | Refusal:
    """Return the query of a request, or refuse it or the content type, which needs no body."""
    about = upload_query(query)
    refusal = refuse_record_type(fields)
    if refusal is not None or isinstance(about, Refusal):
        return refusal or about
    for field, text, bytes_max in (
        ("tag", about.tag, settings.max_tag_bytes),
        ("node", about.node, settings.max_node_bytes),
    ):
        size = 0 if text is None else len(text.encode())
        if size > bytes_max:
            return invalid(field, f"must be at most {bytes_max} bytes, got {size}", bytes_max)
    if about.form is not None and not is_lines(fields):
        return invalid("as", f"must be sent with the content type {LINES}")
    return about


def refuse_record_type(fields: Fields) -> Refusal | None:
    if fields.content_type in (OCTETS, LINES):
        return None
    kind = _type_of(fields)
    if kind == OCTETS:
        return None
    if kind in (TEXT, LINES):
        return _refuse_charset(fields)
    got = f"got {quoted(kind)}" if kind else "got none"
    json = "records of JSON are appended with POST /v0/topics/:topic"
    message = f"content-type: must be {OCTETS}, {TEXT} or {LINES}, {got}; {json}"
    return Refusal(UNSUPPORTED_MEDIA_TYPE, message)


def _refuse_charset(fields: Fields) -> Refusal | None:
    for parameter in fields.content_type.lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"')
        if name.strip() == "charset" and charset not in UTF8:
            message = f"content-type: charset must be utf-8, got {quoted(charset)}"
            return Refusal(UNSUPPORTED_MEDIA_TYPE, message)
    return None


def _type_of(fields: Fields) -> str:
    return fields.content_type.partition(";")[0].strip().lower()
