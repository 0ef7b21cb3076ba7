"""Explanations why a JSON body does not fit its struct, in the terms of JSON.

The decoder reports a path (`$.records[3].tag`) and the names of Python types. Only refused bodies are
explained, so an explanation may decode the body a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from shared.contract.errors import INVALID_REQUEST, Refusal, invalid
from shared.contract.json_bounds import DATA_DEPTH_MAX
from shared.text.nearest_name import nearest_name
from shared.text.unknown_name import unknown_name

SHOWN_CHARACTERS_MAX: Final = 64
# A larger body is not decoded again to find the invalid map key.
KEY_SEARCH_BYTES_MAX: Final = 1 << 20

_EXPECTED: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_CHOICE: Final = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_MALFORMED: Final = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")

_NOUNS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_GOT: Final = {**_NOUNS, "int": "a number", "float": "a number with a fraction", "bool": "a boolean"}
# The order in which alternatives are listed.
_ORDER: Final = ("str", "int", "float", "bool", "array", "object", "null")
_INTEGERS: Final = {
    "priority": "an integer from -1000 to 1000",
    "job_priority": "an integer from 0 to 9",
    "max": "an integer of at least 1",
}
_UNITS: Final = {
    "_ms": 'a string such as "10m"',
    "_bytes": 'a string such as "64 MiB"',
    "_ts": 'a string such as "-10m"',
    "not_before": 'a string such as "10m"',
}
_MATCH: Final = 'a tag, ["tag","Eq","new.1"] or ["tag","Glob","new.*"]'
_SHAPES: Final = {
    "match": _MATCH,
    "filter": _MATCH.replace(" or ", ", ") + " or null",
    "topics": 'an object such as {"orders":{"after_seq":0}}',
}
_REASONS: Final = {
    "object keys must be strings": "object keys must be strings in double quotes",
    "trailing characters": "unexpected text after the end of the object",
}


def explain(error: Exception, kind: Any, body: bytes, example: str, hints: Mapping[str, str]) -> Refusal:
    """Return the refusal of a body that the decoder of `kind` refused with `error`."""
    if isinstance(error, RecursionError):
        return Refusal(INVALID_REQUEST, f"the body must be nested at most {DATA_DEPTH_MAX} levels deep")
    if not isinstance(error, msgspec.ValidationError):
        return Refusal(INVALID_REQUEST, f"the body is not JSON: {_malformed(str(error), body)}")
    text, _, path = str(error).rpartition(" - at `$")
    if not text:
        text, path = str(error), ""
    steps = [name or index for name, index in _STEP.findall(path.removesuffix("`"))]
    expected = _type_at(kind, steps)
    location = _join_path(_resolve_keys(steps, kind, body))
    if (match := _UNKNOWN.fullmatch(text)) is not None:
        return _unknown(_join_path([location, match[1]]), match[1], expected, kind, hints)
    if (match := _MISSING.fullmatch(text)) is not None:
        field = _join_path([location, match[1]])
        return invalid(field, "is required" if location else f"is required, as in {example}")
    got = ""
    if (match := _CHOICE.fullmatch(text)) is not None:
        got = f'"{shorten(match[1])}"'
    elif (match := _EXPECTED.fullmatch(text)) is not None:
        got = _GOT.get(match[2], match[2])
    if steps == ["priority"] and "records" in _field_names(inspect.type_info(kind)):
        steps = ["job_priority"]
    rule = f"must be {_allowed_values(match, expected, steps)}, got {got or 'a number out of range'}"
    if not location:
        return Refusal(INVALID_REQUEST, f"the body must be a JSON object such as {example}, got {got}")
    return invalid(location, rule)


def shorten(text: str) -> str:
    """Return the text as a message may repeat it, cut at a bound.

    >>> shorten("a" * 70) == "a" * 64 + "..."
    True
    """
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."


def _malformed(text: str, body: bytes) -> str:
    match = _MALFORMED.fullmatch(text)
    if match is None:
        is_escape = b"\\ud" in body or b"\\uD" in body
        return "it ends too early" + (", or one half of a \\ud pair is missing" if is_escape else "")
    reason, at = match[1], int(match[2])
    if body[at : at + 1] == b"'":
        reason = "strings and keys must be in double quotes"
    return f"{_REASONS.get(reason, reason)} (byte {at})"


def _unknown(field: str, name: str, expected: Any, kind: Any, hints: Mapping[str, str]) -> Refusal:
    names = _field_names(expected)
    field = shorten(field)
    if not names:
        # The key contains path characters, so the path leads to no struct.
        return invalid(field, "unknown field")
    root_names = _field_names(inspect.type_info(kind))
    if name in hints and names == root_names:
        return invalid(field, f"unknown field; {hints[name]}")
    if name in root_names and nearest_name(name, names) is None:
        return invalid(field, "unknown field here; it belongs at the top level of the body")
    return invalid(field, unknown_name("field", name, names))


def _allowed_values(match: re.Match[str] | None, expected: Any, steps: list[str]) -> str:
    """Describe the values that are allowed at a path."""
    choices, other = _choices(expected)
    if choices:
        # A field with choices allows nothing else but null.
        quoted = [f'"{choice}"' for choice in choices]
        values = f"one of {', '.join(quoted)}" if len(quoted) > 1 else quoted[0]
        return f"{values} or null" if "null" in other else values
    kinds = match[1].split(" | ") if match is not None and match.re is _EXPECTED else ["int"]
    name = next((step for step in reversed(steps) if not step.isdigit()), "")
    if name in _SHAPES and steps[-1] == name:
        return ("a topic, an array of topics or " if name == "topics" and "array" in kinds else "") + _SHAPES[
            name
        ]
    words = dict(_NOUNS, int=_INTEGERS.get(name, "an integer of at least 0"))
    if "int" in kinds:
        units = (unit for suffix, unit in _UNITS.items() if name.endswith(suffix))
        words["str"] = next(units, words["str"])
    order = sorted(_ORDER, key=lambda kind: kind != "int")
    described = [
        words[kind].split(" or ") if kind == "bool" else [words[kind]] for kind in order if kind in kinds
    ]
    alternatives = [one for some in described for one in some] or ["another value"]
    return " or ".join(filter(None, [", ".join(alternatives[:-1]), alternatives[-1]]))


# -- the type at a path --------------------------------------------------------------------------------------


def _members(expected: Any) -> Iterator[Any]:
    if isinstance(expected, inspect.UnionType):
        for member in expected.types:
            yield from _members(member)
    elif expected is not None:
        yield expected


def _type_at(kind: Any, steps: list[str]) -> Any:
    """Return the type expected at a path, or None when the path leads nowhere."""
    expected: Any = inspect.type_info(kind)
    for step in steps:
        expected = next(filter(None, (_child_type(member, step) for member in _members(expected))), None)
    return expected


def _child_type(expected: Any, step: str) -> Any:
    if isinstance(expected, inspect.StructType):
        return next((field.type for field in expected.fields if field.encode_name == step), None)
    if isinstance(expected, inspect.DictType) and step == "...":
        return expected.value_type
    if isinstance(expected, inspect.ListType) and step.isdigit():
        return expected.item_type
    return None


def _field_names(expected: Any) -> list[str]:
    structs = [member for member in _members(expected) if isinstance(member, inspect.StructType)]
    return [field.encode_name for member in structs for field in member.fields]


def _choices(expected: Any) -> tuple[list[str], set[str]]:
    choices: list[str] = []
    other: set[str] = set()
    for member in _members(expected):
        if isinstance(member, inspect.LiteralType):
            choices += map(str, member.values)
        elif isinstance(member, inspect.NoneType):
            other.add("null")
    return choices, other


# -- the name of a key ---------------------------------------------------------------------------------------


def _join_path(steps: list[str]) -> str:
    """Join the steps of a path.

    >>> _join_path(["records", "3", "tag"]), _join_path(["", "ttl"])
    ('records[3].tag', 'ttl')
    """
    path = ""
    for step in steps:
        if step.isdigit():
            path += f"[{step}]"
        elif step:
            path += f".{step}" if path else step
    return path


def _resolve_keys(steps: list[str], kind: Any, body: bytes) -> list[str]:
    """Replace `...`, the decoder's placeholder for a map key, by the invalid key."""
    if "..." not in steps or len(body) > KEY_SEARCH_BYTES_MAX:
        return steps
    at = steps.index("...")
    # A value of any type has no class of its own.
    value_class = getattr(_type_at(kind, steps[: at + 1]), "cls", Any)
    try:
        raw = msgspec.Raw(body)
        for step in steps[:at]:
            raw = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[step]
        values = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return steps
    for key, value in values.items():
        try:
            msgspec.json.decode(value, type=value_class)
        except (msgspec.DecodeError, RecursionError):
            return [*steps[:at], shorten(key), *steps[at + 1 :]]
    return steps
