"""The bodies of appends, whose records have JSON (`data`) or bytes in base64 (`data_base64`).

The fast decoder takes records of JSON only, and builds them as the engine takes them. A body that it refuses
is decoded again with both fields, which decodes bodies with bytes and explains invalid ones.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Final

import msgspec

from shared.contract.errors import Refusal, excluded, invalid
from topicsd.engine.requests import NO_DATA, NO_META, AppendRequest, BytesRecord, NewRecord
from topicsd.service.input.json_body import JsonBody

_BASE64_RULE: Final = "must be base64 with padding, as RFC 4648 section 4 defines it"
_decode_text = msgspec.json.Decoder(str).decode


class SentRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record as a client sends it."""

    data: msgspec.Raw = NO_DATA
    data_base64: msgspec.Raw = NO_DATA
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = NO_META


class AppendBody(JsonBody[AppendRequest]):
    """A kind of append; `kind` has the same fields as `json_kind`, but records that may have bytes."""

    def __init__(
        self,
        kind: type[AppendRequest],
        json_kind: type[AppendRequest],
        example: str,
        hints: Mapping[str, str],
    ) -> None:
        super().__init__(kind, example, hints)
        self._decode_sent = self.decode_fitting
        self.decode_fitting = msgspec.json.Decoder(json_kind).decode

    def decode_sent(self, body: bytes) -> AppendRequest | Refusal:
        """Decode a body whose records may have bytes, and explain an invalid one."""
        try:
            request = self._decode_sent(body)
        except (msgspec.DecodeError, RecursionError) as error:
            return self.explain(body, error)
        records = []
        for index, sent in enumerate(request.records):
            assert isinstance(sent, SentRecord)
            record = record_of(sent, index)
            if isinstance(record, Refusal):
                return record
            records.append(record)
        request.records = records
        return request


def record_of(sent: SentRecord, index: int) -> NewRecord | Refusal:
    """Return the record that a client sent as number `index`."""
    if sent.data_base64 is NO_DATA:
        if sent.data is NO_DATA:
            return invalid(f"records[{index}].data", "is required, or data_base64")
        return NewRecord(sent.data, sent.tag, sent.node, sent.meta)
    field = f"records[{index}].data_base64"
    if sent.data is not NO_DATA:
        return excluded(field, "data")
    data = _decode_base64(sent.data_base64, field)
    if isinstance(data, Refusal):
        return data
    return BytesRecord(msgspec.Raw(data), sent.tag, sent.node, sent.meta)


def _decode_base64(raw: msgspec.Raw, field: str) -> bytes | Refusal:
    text = bytes(raw)
    if not text.startswith(b'"'):
        return invalid(field, "must be a string")
    text = _decode_text(text).encode() if b"\\" in text else text[1:-1]
    try:
        data = a2b_base64(text, strict_mode=True)
    except Error:
        return invalid(field, _BASE64_RULE)
    # Bits after the last byte must be 0, so that bytes have one text.
    return data if b2a_base64(data, newline=False) == text else invalid(field, _BASE64_RULE)
