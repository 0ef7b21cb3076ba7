"""Lines of JSON as an append: one data a line, or one record a line.

Each line is decoded on its own, since a value that spans lines, or a line with two values, would be read as
other records than its sender counts. Blank lines are skipped. A refusal names `records[i]`, where `i` counts
the lines that are not blank.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal, invalid
from shared.http.head import Fields
from shared.settings.settings import Settings
from topicsd.engine.requests import AppendRequest, NewRecord
from topicsd.service.input.append_body import SentRecord, record_of
from topicsd.service.input.bodies import check_append
from topicsd.service.input.json_body import JsonBody, not_utf8

LINES: Final = "application/x-ndjson"

_decode_data: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_record: Final = msgspec.json.Decoder(NewRecord).decode
_decode_sent: Final = msgspec.json.Decoder(SentRecord).decode
_RECORD: Final = JsonBody(SentRecord, '{"data":1}')


def is_lines(fields: Fields) -> bool:
    kind = fields.content_type
    return kind == LINES or kind.partition(";")[0].strip().lower() == LINES


def decode_lines(
    body: bytes, are_records: bool, tag: str | None, limits: Settings
) -> AppendRequest | Refusal:
    """Decode lines, which are records or data; `tag` is that of records that have none."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return not_utf8()
    lines = body.split(b"\n")
    try:
        if are_records:
            records = [_decode_record(line) for line in lines if line]
        else:
            records = [NewRecord(_decode_data(line), tag) for line in lines if line]
    except (msgspec.DecodeError, RecursionError):
        decoded = _decode_each([line for line in lines if line and not line.isspace()], are_records, tag)
        if isinstance(decoded, Refusal):
            return decoded
        records = decoded
    if are_records and tag is not None:
        for record in records:
            record.tag = record.tag or tag
    return check_append(AppendRequest(records), body, limits)


def _decode_each(lines: list[bytes], are_records: bool, tag: str | None) -> list[NewRecord] | Refusal:
    """Decode lines of which some have bytes, white space, or a mistake, which is explained."""
    records = []
    for index, line in enumerate(lines):
        try:
            if are_records:
                sent = record_of(_decode_sent(line), index)
                if isinstance(sent, Refusal):
                    return sent
                records.append(sent)
            else:
                records.append(NewRecord(_decode_data(line), tag))
        except (msgspec.DecodeError, RecursionError) as error:
            return _explain(line, error, index, are_records)
    return records


def _explain(line: bytes, error: Exception, index: int, are_records: bool) -> Refusal:
    place = f"records[{index}]"
    if not are_records:
        cause = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        return invalid(f"{place}.data", f"must be one JSON value: {cause}")
    refusal = _RECORD.explain(line, error)
    inside = refusal.inside(place)
    if inside is not refusal:
        return inside
    message = refusal.message.replace("the body", "the line", 1)
    return Refusal(refusal.code, f"{place}: {message}", {"field": place})
