"""Kinds of JSON bodies: a strict decoder for each, and the refusals of invalid bodies.

The struct itself refuses unknown fields (`forbid_unknown_fields`), so strictness costs nothing. Explanations
are computed only after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from shared.contract.errors import INVALID_REQUEST, Refusal, invalid
from shared.contract.json_bounds import is_utf8
from shared.text.message import size_text
from topicsd.service.input.json_errors import explain

T = TypeVar("T")

CONTROL_BODY_BYTES: Final = 256 << 10
# Maximum of one field of a control body; the longest legitimate one is a list of nodes.
FIELD_BYTES_MAX: Final = CONTROL_BODY_BYTES
_NOTHING: Final = msgspec.Raw(b"")
_NO_HINTS: Final[Mapping[str, str]] = {}


class JsonBody(Generic[T]):
    """A kind of body. `hints` name the right place of fields that do not belong to this kind."""

    def __init__(self, kind: type[T], example: str, hints: Mapping[str, str] = _NO_HINTS) -> None:
        self.kind = kind
        self.decode_fitting = msgspec.json.Decoder(kind).decode
        """Decode a body; raises the exceptions that `explain` accepts."""
        self._example = example
        self._hints = hints
        names = [field.encode_name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
        fields: list[Any] = [(name, msgspec.Raw, _NOTHING) for name in names]
        self._decode_raw = msgspec.json.Decoder(msgspec.defstruct(f"Raw{kind.__name__}", fields)).decode
        self._names = names

    def decode(self, body: bytes) -> T | Refusal:
        """Decode a body without data; an empty one is an empty object."""
        if len(body) > CONTROL_BODY_BYTES:
            refusal = self._refuse_large(body)
            if refusal is not None:
                return refusal
        body = body or b"{}"
        # As `decode_any`, inlined: hot path.
        if not (body.isascii() or is_utf8(body)):
            return not_utf8()
        try:
            return self.decode_fitting(body)
        except (msgspec.DecodeError, RecursionError) as error:
            return self.explain(body, error)

    def decode_any(self, body: bytes) -> T | Refusal:
        if not (body.isascii() or is_utf8(body)):
            return not_utf8()
        try:
            return self.decode_fitting(body)
        except (msgspec.DecodeError, RecursionError) as error:
            return self.explain(body, error)

    def explain(self, body: bytes, error: Exception) -> Refusal:
        """Return the refusal of a body that failed to decode."""
        if not body:
            message = f"the body must be a JSON object such as {self._example}, got an empty body"
            return Refusal(INVALID_REQUEST, message)
        return explain(error, self.kind, body, self._example, self._hints)

    def refuse_rest(self, body: bytes, known_bytes: int, rest_max: int) -> Refusal | None:
        """Refuse a large body with more than `rest_max` bytes besides the values of its fields.

        Those bytes are unknown fields. The first name is found at the front of the body, so that the values
        need not be built.
        """
        rest = len(body) - known_bytes
        if rest <= rest_max:
            return None
        try:
            self.decode_fitting(body[:rest_max])
        except msgspec.ValidationError as error:
            return self.explain(body, error)
        except (msgspec.DecodeError, RecursionError):
            pass
        names = ", ".join(self._names)
        message = f"the body has {size_text(rest)} of unknown fields or white space; allowed: {names}"
        return Refusal(INVALID_REQUEST, message)

    def _refuse_large(self, body: bytes) -> Refusal | None:
        """Check the fields as raw bytes; decoded they may take twenty times the memory."""
        if not (body.isascii() or is_utf8(body)):
            return not_utf8()
        try:
            raw = self._decode_raw(body)
        except (msgspec.DecodeError, RecursionError) as error:
            return self.explain(body, error)
        sizes = {name: len(getattr(raw, name)) for name in self._names}
        for field, size in sizes.items():
            if size > FIELD_BYTES_MAX:
                rule = f"must be at most {size_text(FIELD_BYTES_MAX)}, got {size_text(size)}"
                return invalid(field, rule, FIELD_BYTES_MAX)
        return self.refuse_rest(body, sum(sizes.values()), CONTROL_BODY_BYTES)


def not_utf8() -> Refusal:
    return Refusal(INVALID_REQUEST, "the body must be UTF-8")
