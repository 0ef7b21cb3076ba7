"""Compatible changes of a schema: every value that the old document accepts, the new one accepts too.

The check is conservative. It compares two documents keyword by keyword, and takes a change for compatible
only if each assertion of the new document follows from one of the old document at the same place:

C1  The assertions of a schema are a conjunction, so each one of the new schema may be shown alone.
C2  An assertion that the new schema lacks is a wider schema; so is a keyword that asserts nothing.
C3  What depends on its neighbours (`not`, `oneOf`, `if`, `contains`) or on whole subschemas (`unevaluated…`)
    must stay as it is. It stays only if the definitions that it refers to stay.
C4  References that this module does not resolve, and keywords that it does not know, must not change.

    >>> first_narrowing({"type": "integer"}, {"type": ["number", "null"]})
    >>> first_narrowing({"properties": {"a": {"maximum": 9}}}, {"properties": {"a": {"maximum": 8}}})
    '/properties/a/maximum'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

Schema = dict[str, Any] | bool

ANNOTATIONS: Final = frozenset(
    (
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "examples",
        "format",
        "readOnly",
        "title",
        "writeOnly",
    )
)
"""Keywords that accept every value. `$defs` are compared where they are referred to."""

MAXIMA: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
MINIMA: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
VALUES: Final = ("enum", "const")
FIXED: Final[dict[str, tuple[str, ...]]] = {
    "not": ("not",),
    "oneOf": ("oneOf",),
    "pattern": ("pattern",),
    "if": ("if", "then", "else"),
    "contains": ("contains", "minContains", "maxContains"),
}
"""Keywords that must stay as they are, each with those that belong to it."""
DEPENDENT: Final = frozenset(("then", "else", "minContains", "maxContains"))
"""Keywords that assert nothing without another one."""
PAIRS_MAX: Final = 2000
"""How many pairs of references one comparison follows."""
_LOCAL: Final = "#/"

_encode = msgspec.json.Encoder(order="sorted").encode


def first_narrowing(old: Schema, new: Schema) -> str | None:
    """Return the JSON pointer of a keyword of `new` that may reject what `old` accepts, or None."""
    try:
        return _Comparison(old, new).schemas(old, new, "")
    except RecursionError:
        return "/$ref"


class _Comparison:
    """One comparison of two documents."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old = old
        self._new = new
        self._compared: set[tuple[str, str]] = set()
        """The pairs of references whose targets are compared, or are about to be."""
        texts = _encode(old), _encode(new)
        self._is_equal = texts[0] == texts[1]
        # A nested `$id` is another base of references.
        self._has_bases = _has_nested_id(texts[0], old) or _has_nested_id(texts[1], new)
        self._has_same_definitions = (
            not self._has_bases
            and _definitions(old) == _definitions(new)
            and all(_refers_to_definitions_only(text) for text in texts)
        )

    def schemas(self, old: Schema, new: Schema, path: str) -> str | None:
        """Return where `new` may reject what `old` accepts, or None."""
        if old is False or new is True or self._is_equal:
            return None
        if new is False:
            return path
        old = {} if old is True else old
        for keyword in new:
            if keyword in ANNOTATIONS or keyword in DEPENDENT:
                continue
            place = f"{path}/{_escape(keyword)}"
            compare = _RULES.get(keyword)
            narrowing = (
                compare(self, old, new, keyword, place)
                if compare is not None
                else self._unknown(old, new, keyword, place)
            )
            if narrowing is not None:
                return narrowing
        return None

    def is_same(self, old: object, new: object) -> bool:
        """Return whether two parts of the documents mean the same."""
        text = self._meaning(new)
        return text is not None and _encode(old) == text

    def _meaning(self, part: object) -> bytes | None:
        """Return a text that means the same in both documents; None if the definitions may differ."""
        text = _encode(part)
        has_references = b'"$ref"' in text or b'"$dynamicRef"' in text
        return None if has_references and not self._has_same_definitions else text

    # -- keywords, each of which the new schema has --------------------------------------------------------

    def _unknown(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if keyword in old and self.is_same(old[keyword], new[keyword]) else place

    def fixed(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        names = FIXED[keyword]
        is_same = keyword in old and self.is_same(
            [old.get(name) for name in names], [new.get(name) for name in names]
        )
        return None if is_same else place

    def unevaluated(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if self.is_same(old, new) else place

    def types(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        if "type" not in old:
            return place
        wider = _types(new["type"])
        if "number" in wider:
            wider.add("integer")
        return None if _types(old["type"]) <= wider else place

    def values(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        wider = _values(new, keyword)
        return None if any(_values(old, one) <= wider for one in VALUES if one in old) else place

    def maxima(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if keyword in old and new[keyword] >= old[keyword] else place

    def minima(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if keyword in old and new[keyword] <= old[keyword] else place

    def multiples(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        if keyword not in old:
            return place
        before, after = old[keyword], new[keyword]
        is_multiple = isinstance(before, int) and isinstance(after, int) and before % after == 0
        return None if before == after or is_multiple else place

    def unique(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if new[keyword] is False or old.get(keyword) is True else place

    def required(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        return None if set(new[keyword]) <= set(old.get(keyword, ())) else place

    def dependent_required(
        self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str
    ) -> str | None:
        before = old.get(keyword, {})
        for name, names in new[keyword].items():
            if not set(names) <= set(before.get(name, ())):
                return f"{place}/{_escape(name)}"
        return None

    def named_schemas(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        """Compare `dependentSchemas` and `patternProperties`: a new name was not asserted before."""
        before = old.get(keyword, {})
        for name, schema in new[keyword].items():
            narrowing = self.schemas(before.get(name, True), schema, f"{place}/{_escape(name)}")
            if narrowing is not None:
                return narrowing
        return None

    def properties(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        """Compare `properties`: a new one was an additional one before."""
        before = old.get(keyword, {})
        additional = True if "patternProperties" in old else old.get("additionalProperties", True)
        for name, schema in new[keyword].items():
            narrowing = self.schemas(before.get(name, additional), schema, f"{place}/{_escape(name)}")
            if narrowing is not None:
                return narrowing
        return None

    def additional(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        """Compare `additionalProperties`, which also asserts of the properties that are named no more."""
        before: list[Schema] = [old.get(keyword, True)]
        for names in ("properties", "patternProperties"):
            now = new.get(names, {})
            before += [schema for name, schema in old.get(names, {}).items() if name not in now]
        return self._all(before, new[keyword], place)

    def items(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        """Compare `items`, which also asserts of the items that have a schema of their own no more."""
        further = old.get("prefixItems", [])[len(new.get("prefixItems", [])) :]
        return self._all([old.get("items", True), *further], new["items"], place)

    def prefix_items(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        before = old.get(keyword, [])
        for at, schema in enumerate(new[keyword]):
            former = before[at] if at < len(before) else old.get("items", True)
            narrowing = self.schemas(former, schema, f"{place}/{at}")
            if narrowing is not None:
                return narrowing
        return None

    def property_names(
        self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str
    ) -> str | None:
        return self.schemas(old.get(keyword, True), new[keyword], place)

    def all_of(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        before = old.get(keyword, [])
        kept = {_encode(former) for former in before}
        for at, schema in enumerate(new[keyword]):
            if self._meaning(schema) in kept:
                continue
            narrowing = self.schemas(before[at] if at < len(before) else True, schema, f"{place}/{at}")
            if narrowing is not None:
                return narrowing
        return None

    def any_of(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        if keyword not in old:
            return place
        now = new[keyword]
        kept = {_encode(schema) for schema in now}
        for at, former in enumerate(old[keyword]):
            if self._meaning(former) in kept:
                continue
            narrowing = self.schemas(former, now[at] if at < len(now) else False, f"{place}/{at}")
            if narrowing is not None:
                return narrowing
        return None

    def reference(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> str | None:
        before, after = old.get(keyword), new[keyword]
        if not isinstance(before, str) or self._has_bases or len(self._compared) == PAIRS_MAX:
            return place
        if (before, after) in self._compared:
            return None
        self._compared.add((before, after))
        target, new_target = _target(self._old, before), _target(self._new, after)
        if target is None or new_target is None:
            return place
        return self.schemas(target, new_target, after.removeprefix("#"))

    def _all(self, olds: list[Schema], new: Schema, place: str) -> str | None:
        for old in olds:
            narrowing = self.schemas(old, new, place)
            if narrowing is not None:
                return narrowing
        return None


_Rule = Callable[[_Comparison, dict[str, Any], dict[str, Any], str, str], str | None]
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(MAXIMA, _Comparison.maxima),
    **dict.fromkeys(MINIMA, _Comparison.minima),
    **dict.fromkeys(VALUES, _Comparison.values),
    **dict.fromkeys(FIXED, _Comparison.fixed),
    "$ref": _Comparison.reference,
    "additionalProperties": _Comparison.additional,
    "allOf": _Comparison.all_of,
    "anyOf": _Comparison.any_of,
    "dependentRequired": _Comparison.dependent_required,
    "dependentSchemas": _Comparison.named_schemas,
    "items": _Comparison.items,
    "multipleOf": _Comparison.multiples,
    "patternProperties": _Comparison.named_schemas,
    "prefixItems": _Comparison.prefix_items,
    "properties": _Comparison.properties,
    "propertyNames": _Comparison.property_names,
    "required": _Comparison.required,
    "type": _Comparison.types,
    "unevaluatedItems": _Comparison.unevaluated,
    "unevaluatedProperties": _Comparison.unevaluated,
    "uniqueItems": _Comparison.unique,
}


def _types(value: str | list[str]) -> set[str]:
    return {value} if isinstance(value, str) else set(value)


def _values(schema: dict[str, Any], keyword: str) -> set[bytes]:
    """Return the values that `enum` or `const` accepts, as JSON."""
    values = schema[keyword] if keyword == "enum" else [schema[keyword]]
    return {_encode(value) for value in values}


def _definitions(document: Schema) -> bytes:
    return _encode(document.get("$defs")) if isinstance(document, dict) else b"null"


def _has_nested_id(text: bytes, root: Schema) -> bool:
    return text.count(b'"$id"') > (isinstance(root, dict) and "$id" in root)


def _refers_to_definitions_only(text: bytes) -> bool:
    return b'"$dynamicRef"' not in text and text.count(b'"$ref":"') == text.count(b'"$ref":"#/$defs/')


def _target(document: Schema, reference: str) -> Schema | None:
    """Return the subschema that a local reference names, or None."""
    if reference == "#":
        return document
    if not reference.startswith(_LOCAL) or "%" in reference:
        return None
    target: Any = document
    for step in reference.removeprefix(_LOCAL).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target if isinstance(target, dict | bool) else None


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
