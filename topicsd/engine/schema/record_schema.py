"""The schema of a topic, compiled once, and the check of records against it.

The validator is `jsonschema_rs`, which the extra `schema` installs. It is imported when a schema is set or
the first record of a topic with a schema arrives, so a server without schemas does not need it. It compiles
JSON Schema 2020-12, in which `format` asserts nothing; it fetches nothing, and its patterns match in linear
time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from shared.contract.errors import (
    INVALID_REQUEST,
    NOT_IMPLEMENTED,
    TOPIC_EXISTS_INCOMPATIBLE,
    Refusal,
    invalid,
)
from topicsd.engine.requests import NewRecord
from topicsd.engine.schema.change import first_narrowing

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
EXTRA: Final = "topicsd[schema]"
BYTES_RULE: Final = "bytes"
"""The rule that a record of bytes breaks: it has no JSON to check."""
JSON_RULE: Final = "json"
"""The rule that JSON breaks which no program can hold: a number beyond all floats, half a surrogate pair."""
PATTERN_BYTES_MAX: Final = 1 << 20
"""The memory of one compiled pattern."""
MESSAGE_CHARACTERS_MAX: Final = 300

_decode = msgspec.json.Decoder().decode


class Mismatch(NamedTuple):
    """Why a record breaks a schema."""

    path: str
    """JSON pointer of the value in the data."""
    rule: str
    """The keyword of the schema."""
    message: str


class RecordSchema:
    """A schema in use, compiled when it is first needed."""

    __slots__ = ("_text", "_validate", "problem")

    def __init__(self, text: str) -> None:
        self._text = text
        self._validate: Callable[[object], None] | None = None
        self.problem: Refusal | None = None
        """Why the schema cannot be compiled; None before `is_compiled` was called."""

    def is_compiled(self) -> bool:
        """Compile the schema unless that was done; return False if `problem` says why it cannot be."""
        if self._validate is None and self.problem is None:
            compiled = _compile(self._text)
            if isinstance(compiled, Refusal):
                self.problem = compiled
            else:
                self._validate = compiled
        return self._validate is not None

    def mismatch(self, record: NewRecord) -> Mismatch | None:
        """Return why a record breaks the schema, which is compiled, or None."""
        assert self._validate is not None
        # A copy of a record of bytes has no JSON either.
        if record.is_bytes or not len(record.data):
            return Mismatch("", BYTES_RULE, "a record of bytes has no JSON to check")
        try:
            value = _decode(record.data)
        except (msgspec.DecodeError, RecursionError) as error:
            return Mismatch("", JSON_RULE, f"the value cannot be checked: {error}")
        try:
            self._validate(value)
        except ValueError as error:
            return _mismatch(error)
        return None


schema_of: Final = lru_cache(256)(RecordSchema)
"""Return the schema of a text; topics with the same one share it."""


def _mismatch(error: ValueError) -> Mismatch:
    from jsonschema_rs import ValidationError

    assert isinstance(error, ValidationError), error
    return Mismatch(_pointer(error.instance_path), error.kind.name, _message_of(error))


def _compile(text: str) -> Callable[[object], None] | Refusal:
    """Return the check of a value, which raises a ValueError, or a refusal of the schema."""
    try:
        import jsonschema_rs
    except ImportError:
        message = f"schema: this server has no validator of schemas; install the extra {EXTRA}"
        return Refusal(NOT_IMPLEMENTED, message, {"field": "schema", "extra": EXTRA})
    document = _decode(text)
    if document.get("$schema", DIALECT) not in (DIALECT, f"{DIALECT}#"):
        return invalid("schema.$schema", f'must be "{DIALECT}"')
    try:
        validator = jsonschema_rs.Draft202012Validator(
            text,
            validate_formats=False,
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(PATTERN_BYTES_MAX, PATTERN_BYTES_MAX),
        )
    except jsonschema_rs.ValidationError as error:
        return _refuse_document(error)
    return validator.validate


def _refuse_document(error: ValidationError) -> Refusal:
    message = _message_of(error)
    if error.kind.name == "$ref":
        return invalid("schema", f"each $ref must name a part of the same document: {message}")
    path = _pointer(error.instance_path)
    message = f"schema: must be JSON Schema 2020-12, and is not at {path or 'its top'}: {message}"
    return Refusal(INVALID_REQUEST, message, {"field": "schema", "path": path})


def _message_of(error: ValidationError) -> str:
    """Return the message, which repeats the invalid value, cut at a bound."""
    text = error.message
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else f"{text[:MESSAGE_CHARACTERS_MAX]}..."


def _pointer(path: list[Any]) -> str:
    """Return the JSON pointer of a path.

    >>> _pointer(["a/b", 0])
    '/a~1b/0'
    """
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def refuse_schema(before: str | None, after: str) -> Refusal | None:
    """Refuse a schema that cannot be compiled, or that may reject a record which `before` accepts."""
    schema = schema_of(after)
    if not schema.is_compiled():
        return schema.problem
    if before is None or before == after:
        return None
    path = first_narrowing(_decode(before), _decode(after))
    if path is None:
        return None
    message = (
        f"schema: must accept all that the present schema accepts, and may not at {path or 'its top'}; "
        'to change it nevertheless, add "force":true'
    )
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"field": "schema", "path": path})
