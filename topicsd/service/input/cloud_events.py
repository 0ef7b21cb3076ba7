"""CloudEvents 1.0 in JSON, as records.

The data of an event is the data of its record, and its type is the tag. All attributes are in the meta under
`cloudevents`, so that an event is read back as it was sent. An attribute that is null is absent. An event
without data has the data null, and `_data` beside its attributes, which no attribute is called.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shared.contract.errors import INVALID_REQUEST, Refusal, excluded, invalid
from shared.http.head import Fields
from shared.settings.settings import Settings
from shared.text.message import quoted
from topicsd.engine.requests import AppendRequest, NewRecord
from topicsd.service.input.append_body import SentRecord, record_of
from topicsd.service.input.bodies import check_append
from topicsd.service.input.json_body import not_utf8

EVENT: Final = "application/cloudevents+json"
EVENTS: Final = "application/cloudevents-batch+json"
META_KEY: Final = "cloudevents"
NO_DATA_KEY: Final = "_data"
SPEC_VERSION: Final = "1.0"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_TEXTS: Final = (*_REQUIRED, "datacontenttype", "dataschema", "subject", "time")
_NULL: Final = b"null"
_NAME: Final = re.compile(r"[a-z0-9]+")

_Event = dict[str, msgspec.Raw]
_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_events: Final = msgspec.json.Decoder(list[_Event]).decode
_decode_scalar: Final = msgspec.json.Decoder(str | int | float | bool).decode
_encode: Final = msgspec.json.Encoder().encode


def type_of(fields: Fields) -> str:
    return fields.content_type.partition(";")[0].strip().lower()


def has_events(fields: Fields) -> bool:
    """Return whether the body of a request is one event or several."""
    return type_of(fields) in (EVENT, EVENTS)


def events_append_of(body: bytes, fields: Fields, query: str, limits: Settings) -> AppendRequest | Refusal:
    """Return the append of the events of a body, in their order."""
    text = bytes(body)
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
    if data is None and encoded is None:
        attributes[NO_DATA_KEY] = msgspec.Raw(b'"absent"')
    meta = msgspec.Raw(_encode({META_KEY: attributes}))
    tag = str(_decode_scalar(attributes["type"]))
    if encoded is None:
        return NewRecord(msgspec.Raw(_NULL) if data is None else data, tag, None, meta)
    return record_of(SentRecord(data_base64=encoded, tag=tag, meta=meta), index)


def _refuse_attributes(attributes: _Event) -> Refusal | None:
    for name in _REQUIRED:
        if name not in attributes:
            return invalid(name, "is required")
    for name, raw in attributes.items():
        if _NAME.fullmatch(name) is None:
            return invalid(name, "must have a name of lower-case letters and digits")
        try:
            value = _decode_scalar(raw)
        except msgspec.DecodeError:
            return invalid(name, "must be a string, a number or a boolean")
        if name in _TEXTS and (not isinstance(value, str) or not value):
            return invalid(name, "must be a string, and not empty")
        if name == "specversion" and value != SPEC_VERSION:
            return invalid(name, f"must be {quoted(SPEC_VERSION)}, got {quoted(str(value))}")
    return None
