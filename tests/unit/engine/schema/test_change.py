"""Which changes of a schema keep every valid value valid."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator

from topicsd.engine.schema.change import PAIRS_MAX, first_narrowing

OPEN = {"properties": {"a": {"type": "string"}}}
CLOSED = {**OPEN, "additionalProperties": False}
TEXT = {"type": "string"}
TREE = {
    "$defs": {"n": {"properties": {"v": {"maximum": 5}, "next": {"$ref": "#/$defs/n"}}}},
    "$ref": "#/$defs/n",
}


def tree(maximum: int) -> dict[str, Any]:
    changed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(TREE))
    changed["$defs"]["n"]["properties"]["v"]["maximum"] = maximum
    return changed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OPEN, OPEN),
        (OPEN, {"additionalProperties": True, **OPEN}),
        (OPEN, {**OPEN, "title": "An event", "description": "?", "format": "email"}),
        (CLOSED, OPEN),
        (CLOSED, {**CLOSED, "properties": {**CLOSED["properties"], "b": {"type": "integer"}}}),
        (OPEN, {"properties": {**OPEN["properties"], "b": {}}}),
        ({"additionalProperties": TEXT}, {"properties": {"b": TEXT}, "additionalProperties": TEXT}),
        ({**OPEN, "required": ["a", "b"]}, {**OPEN, "required": ["b"]}),
        ({"enum": [1, 2]}, {"enum": [2, 3, 1]}),
        ({"const": 1}, {"enum": [1, True]}),
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "integer"}, {"type": ["string", "integer"]}),
        ({"minimum": 1, "maximum": 5}, {"minimum": 0, "maximum": 9}),
        ({"minLength": 2}, {}),
        ({"multipleOf": 6}, {"multipleOf": 3}),
        ({"anyOf": [TEXT]}, {"anyOf": [{"type": "null"}, TEXT]}),
        ({"allOf": [TEXT, {"minLength": 1}]}, {"allOf": [{"minLength": 1}]}),
        ({"prefixItems": [TEXT], "items": False}, {"items": TEXT}),
        ({"items": TEXT}, {"prefixItems": [TEXT, True], "items": {"type": ["string", "null"]}}),
        ({"not": TEXT, "maxItems": 1}, {"not": TEXT, "maxItems": 2}),
        (TREE, tree(6)),
        ({"dependentRequired": {"a": ["b", "c"]}}, {"dependentRequired": {"a": ["c"]}}),
    ],
)
def test_a_wider_schema_is_compatible(old: Any, new: Any) -> None:
    assert first_narrowing(old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (OPEN, {"properties": {"a": TEXT, "b": TEXT}}, "/properties/b/type"),
        (OPEN, CLOSED, "/additionalProperties"),
        (CLOSED, {"additionalProperties": False}, "/additionalProperties"),
        ({}, {"required": ["a"]}, "/required"),
        ({"required": ["a"]}, {"required": ["a", "b"]}, "/required"),
        ({"enum": [1, 2]}, {"enum": [1]}, "/enum"),
        ({"enum": [1]}, {"const": True}, "/const"),
        ({"type": "number"}, {"type": "integer"}, "/type"),
        ({"maximum": 5}, {"maximum": 4}, "/maximum"),
        ({"maximum": 5}, {"exclusiveMaximum": 5}, "/exclusiveMaximum"),
        ({"multipleOf": 3}, {"multipleOf": 6}, "/multipleOf"),
        ({"pattern": "a"}, {"pattern": "."}, "/pattern"),
        ({"properties": {"a/b": {"items": {"maximum": 2}}}},
         {"properties": {"a/b": {"items": {"maximum": 1}}}}, "/properties/a~1b/items/maximum"),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT]}, "/anyOf/1"),
        ({"oneOf": [TEXT]}, {"oneOf": [TEXT, {"minLength": 1}]}, "/oneOf"),
        ({"not": TEXT}, {"not": {}}, "/not"),
        (TREE, tree(4), "/$defs/n/properties/v/maximum"),
        ({"x-own": 1}, {"x-own": 2}, "/x-own"),
        ({"unevaluatedItems": False, **OPEN}, {"unevaluatedItems": False}, "/unevaluatedItems"),
        ({"patternProperties": {"^x": {}}, "additionalProperties": TEXT},
         {"properties": {"x": TEXT}}, "/properties/x/type"),
    ],
)  # fmt: skip
def test_a_schema_that_may_reject_more_is_refused_with_the_path(old: Any, new: Any, path: str) -> None:
    assert first_narrowing(old, new) == path


def test_what_is_written_the_same_differs_when_its_definition_does() -> None:
    def document(maximum: int) -> dict[str, Any]:
        return {"$defs": {"a": {"maximum": maximum}}, "not": {"$ref": "#/$defs/a"}}

    assert first_narrowing(document(5), document(5)) is None
    assert first_narrowing(document(5), document(6)) == "/not"
    # No definition changed.
    assert first_narrowing({**document(5), "maxItems": 1}, {**document(5), "maxItems": 2}) is None


def test_a_reference_from_below_another_id_is_not_followed() -> None:
    def document(maximum: int) -> dict[str, Any]:
        own = {"$id": "https://a.example/own", "$defs": {"a": {"maximum": maximum}}, "$ref": "#/$defs/a"}
        return {"$defs": {"a": {}}, "properties": {"p": own}}

    assert first_narrowing(document(5), document(4)) == "/properties/p/$ref"


def test_a_long_chain_of_references_is_refused_and_no_error() -> None:
    def document(maximum: int) -> dict[str, Any]:
        names = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(PAIRS_MAX + 10)}
        return {"$defs": {**names, f"d{len(names)}": {"maximum": maximum}}, "$ref": "#/$defs/d0"}

    path = first_narrowing(document(5), document(6))
    assert path is not None
    assert path.endswith("/$ref")


# -- random documents --------------------------------------------------------------------------------------

KEYS = ("a", "b", "c")


def random_value(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(8 if depth else 6)
    if kind == 7:
        return {key: random_value(rng, depth - 1) for key in KEYS if rng.random() < 0.5}
    if kind == 6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return rng.choice((None, True, False, 0, 1, 2, 3, 6, 1.5, "", "a", "ab", "abc"))


def random_schema(rng: random.Random, depth: int = 2) -> Any:
    if not depth or rng.random() < 0.1:
        return rng.choice(
            (True, True, False, {"type": "integer"}, {"type": ["string", "null"]}, {"maximum": 2})
        )

    def below() -> Any:
        return random_schema(rng, depth - 1)

    makers = {
        "type": lambda: rng.sample(("object", "array", "integer", "number", "string", "null", "boolean"), 3),
        "enum": lambda: [random_value(rng, 1) for _ in range(3)],
        "const": lambda: random_value(rng, 1),
        "minimum": lambda: rng.randrange(3),
        "exclusiveMaximum": lambda: rng.randrange(1, 5),
        "multipleOf": lambda: rng.choice((1, 2, 3, 6)),
        "maxLength": lambda: rng.randrange(4),
        "minItems": lambda: rng.randrange(2),
        "uniqueItems": lambda: rng.random() < 0.5,
        "required": lambda: rng.sample(KEYS, rng.randrange(3)),
        "maxProperties": lambda: rng.randrange(3),
        "properties": lambda: {key: below() for key in rng.sample(KEYS, 2)},
        "patternProperties": lambda: {rng.choice(("^a", "b|c")): below()},
        "additionalProperties": below,
        "unevaluatedProperties": below,
        "propertyNames": below,
        "dependentSchemas": lambda: {rng.choice(KEYS): below()},
        "dependentRequired": lambda: {rng.choice(KEYS): [rng.choice(KEYS)]},
        "items": below,
        "prefixItems": lambda: [below() for _ in range(rng.randrange(1, 3))],
        "contains": below,
        "minContains": lambda: rng.randrange(2),
        "allOf": lambda: [below(), below()],
        "anyOf": lambda: [below(), below()],
        "oneOf": lambda: [below(), below()],
        "not": below,
        "if": below,
        "then": below,
        "else": below,
        "$ref": lambda: "#/$defs/" + rng.choice(("x", "y")),
    }
    return {name: makers[name]() for name in rng.sample(sorted(makers), rng.randrange(1, 4))}


def changed(rng: random.Random, schema: Any) -> Any:
    """A copy of the schema with a change somewhere, or none."""
    if not isinstance(schema, dict) or rng.random() < 0.3:
        return random_schema(rng, 1)
    copy = dict(schema)
    name = rng.choice(sorted(copy)) if copy else "type"
    value = copy.get(name)
    roll = rng.random()
    if roll < 0.25:
        copy.pop(name, None)
    elif roll < 0.4:
        fresh = random_schema(rng)
        copy.update(fresh if isinstance(fresh, dict) else {})
    elif name in ("properties", "patternProperties", "dependentSchemas", "$defs") and value:
        key = rng.choice(sorted(value))
        copy[name] = {**value, key: changed(rng, value[key])}
    elif name in ("allOf", "anyOf", "oneOf", "prefixItems") and value:
        at = rng.randrange(len(value))
        copy[name] = [*value[:at], changed(rng, value[at]), *value[at + 1 :]]
        if rng.random() < 0.3:
            copy[name] = [*value, random_schema(rng, 1)]
    elif isinstance(value, int) and not isinstance(value, bool):
        copy[name] = max(1, value + rng.choice((-1, 1)))
    elif isinstance(value, dict) and name not in ("const", "dependentRequired"):
        copy[name] = changed(rng, value)
    elif isinstance(value, list) and name in ("type", "enum", "required") and value:
        copy[name] = value[1:] if len(value) > 1 and rng.random() < 0.5 else value
    return copy


def document(rng: random.Random) -> dict[str, Any]:
    schema = random_schema(rng)
    root = schema if isinstance(schema, dict) else {}
    return {**root, "$defs": {"x": random_schema(rng, 1), "y": {"maxLength": 2}}}


def test_no_change_that_is_compatible_rejects_a_value_that_was_accepted() -> None:
    rng = random.Random(17)
    compatible = checked = 0
    for _ in range(6000):
        old = document(rng)
        new = changed(rng, old)
        if (
            not isinstance(new, dict)
            or "$defs" not in new
            or new == old
            or first_narrowing(old, new) is not None
        ):
            continue
        compatible += 1
        before = Draft202012Validator(msgspec.json.encode(old).decode(), offline=True)
        after = Draft202012Validator(msgspec.json.encode(new).decode(), offline=True)
        for _ in range(40):
            value = random_value(rng)
            if before.is_valid(value):
                checked += 1
                assert after.is_valid(value), (old, new, value)
    assert compatible > 500
    assert checked > 5000
