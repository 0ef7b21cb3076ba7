"""CloudEvents 1.0 as records: in JSON, or in the binary mode, with the attributes in header fields.

The data of an event is the data of its record, and its type is the tag. All attributes are in the meta under
`cloudevents`, so that an event is read back as it was sent. An attribute that is null is absent. An event
without data has the data null, and `_data` beside its attributes, which no attribute is called.

In the binary mode the content type is the attribute `datacontenttype`, and says what the data is: JSON, text,
or else bytes. A content type of CloudEvents takes precedence over such header fields.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from shared.contract.errors import INVALID_REQUEST, Refusal, excluded, invalid
from shared.http.head import Fields
from shared.settings.settings import Settings
from shared.text.message import quoted
from topicsd.engine.requests import AppendRequest, BytesRecord, NewRecord
from topicsd.service.input.append_body import SentRecord, record_of
from topicsd.service.input.bodies import UTF8, check_append
from topicsd.service.input.json_body import not_utf8

EVENT: Final = "application/cloudevents+json"
EVENTS: Final = "application/cloudevents-batch+json"
META_KEY: Final = "cloudevents"
NO_DATA_KEY: Final = "_data"
SPEC_VERSION: Final = "1.0"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_TEXTS: Final = (*_REQUIRED, "datacontenttype", "dataschema", "subject", "time")
_CONTENT_TYPE: Final = "datacontenttype"
# An attribute may have neither name: they are the members of the JSON format that hold the data.
_DATA_NAMES: Final = ("data", "data_base64")
_NULL: Final = b"null"
_NAME: Final = re.compile(r"[a-z0-9]+")
_ESCAPE: Final = re.compile(r"\\(.)")

_Event = dict[str, msgspec.Raw]
_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_events: Final = msgspec.json.Decoder(list[_Event]).decode
_decode_data: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_scalar: Final = msgspec.json.Decoder(str | int | float | bool).decode
_encode: Final = msgspec.json.Encoder().encode


def type_of(fields: Fields) -> str:
    return fields.content_type.partition(";")[0].strip().lower()


def has_events(fields: Fields) -> bool:
    """Return whether the body of a request is one event or several in JSON."""
    return type_of(fields) in (EVENT, EVENTS)


def events_append_of(body: bytes, fields: Fields, query: str, limits: Settings) -> AppendRequest | Refusal:
    """Return the append of the events of a body, in their order, or of the event of header fields."""
    text = bytes(body)
    if not has_events(fields):
        record = _record_of_fields(text, fields)
        return record if isinstance(record, Refusal) else check_append(AppendRequest([record]), text, limits)
    try:
        text.decode()
        events = [_decode_event(text)] if type_of(fields) == EVENT else _decode_events(text)
    except UnicodeDecodeError:
        return not_utf8()
    except (msgspec.DecodeError, RecursionError) as error:
        kind = "one CloudEvent" if type_of(fields) == EVENT else "a list of CloudEvents"
        return Refusal(INVALID_REQUEST, f"the body must be {kind} in JSON: {error}")
    records = []
    for index, event in enumerate(events):
        record = _record(event, index)
        if isinstance(record, Refusal):
            return record.inside(f"events[{index}]")
        records.append(record)
    return check_append(AppendRequest(records), text, limits)


def _record(event: _Event, index: int) -> NewRecord | Refusal:
    attributes = {name: value for name, value in event.items() if bytes(value) != _NULL}
    data, encoded = event.get("data"), attributes.pop("data_base64", None)
    attributes.pop("data", None)
    if encoded is not None and data is not None:
        return excluded("data_base64", "data")
    refusal = _refuse_attributes(attributes)
    if refusal is not None:
        return refusal
    tag, meta = _tag_and_meta(attributes, has_data=data is not None or encoded is not None)
    if encoded is None:
        return NewRecord(msgspec.Raw(_NULL) if data is None else data, tag, None, meta)
    return record_of(SentRecord(data_base64=encoded, tag=tag, meta=meta), index)


def _tag_and_meta(attributes: _Event, *, has_data: bool) -> tuple[str, msgspec.Raw]:
    if not has_data:
        attributes[NO_DATA_KEY] = msgspec.Raw(b'"absent"')
    return str(_decode_scalar(attributes["type"])), msgspec.Raw(_encode({META_KEY: attributes}))


def _record_of_fields(body: bytes, fields: Fields) -> NewRecord | Refusal:
    """Return the record of an event in the binary mode; without a body it has no data."""
    attributes: _Event = {}
    for name, value in fields.event_attributes:
        if name == _CONTENT_TYPE:
            return invalid(f"ce-{name}", "must be sent as content-type")
        if name in _DATA_NAMES:
            return invalid(f"ce-{name}", "must not be sent: the body is the data")
        text = _attribute_of(value)
        if text is None:
            return invalid(f"ce-{name}", "must be UTF-8 after percent-decoding, without a NUL character")
        attributes[name] = msgspec.Raw(_encode(text))
    if fields.content_type:
        attributes[_CONTENT_TYPE] = msgspec.Raw(_encode(fields.content_type))
    refusal = _refuse_attributes(attributes, "ce-")
    if refusal is not None:
        return refusal
    tag, meta = _tag_and_meta(attributes, has_data=bool(body))
    if not body:
        return NewRecord(msgspec.Raw(_NULL), tag, None, meta)
    kind = type_of(fields)
    if not _has_charset_utf_8(fields):
        return BytesRecord(msgspec.Raw(body), tag, None, meta)
    if kind in ("", "application/json", "text/json") or kind.endswith("+json"):
        try:
            body.decode()
            return NewRecord(_decode_data(body), tag, None, meta)
        except UnicodeDecodeError:
            return not_utf8()
        except (msgspec.DecodeError, RecursionError) as error:
            return Refusal(INVALID_REQUEST, f"the body must be JSON, as its content type is: {error}")
    if kind.startswith("text/"):
        try:
            return NewRecord(msgspec.Raw(_encode(body.decode())), tag, None, meta)
        except UnicodeDecodeError:
            return not_utf8()
    return BytesRecord(msgspec.Raw(body), tag, None, meta)


def _has_charset_utf_8(fields: Fields) -> bool:
    """Return whether the content type names UTF-8, or no charset."""
    for parameter in fields.content_type.lower().split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset":
            return value.strip().strip('"') in UTF8
    return True


def _attribute_of(value: str) -> str | None:
    """Return an attribute as section 3.1.3.2 of the HTTP binding decodes it, or None if it is not text.

    >>> _attribute_of("Euro%20%E2%82%AC"), _attribute_of('"a \\\\"b\\\\""'), _attribute_of("%FF")
    ('Euro €', 'a "b"', None)
    """
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _ESCAPE.sub(r"\1", value[1:-1])
    try:
        text = unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _refuse_attributes(attributes: _Event, prefix: str = "") -> Refusal | None:
    """Refuse attributes; `prefix` is that of their header fields."""
    for name in _REQUIRED:
        if name not in attributes:
            return invalid(prefix + name, "is required")
    for name, raw in attributes.items():
        if _NAME.fullmatch(name) is None:
            return invalid(prefix + name, "must have a name of lower-case letters and digits")
        try:
            value = _decode_scalar(raw)
        except msgspec.DecodeError:
            return invalid(prefix + name, "must be a string, a number or a boolean")
        if name in _TEXTS and (not isinstance(value, str) or not value):
            return invalid(prefix + name, "must be a string, and not empty")
        if name == "specversion" and value != SPEC_VERSION:
            return invalid(prefix + name, f"must be {quoted(SPEC_VERSION)}, got {quoted(str(value))}")
    return None
