"""The sentence about a name that is not one of those allowed: a field, a parameter of a query, an option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shared.nearest_name import nearest_name

ALLOWED_MAX: Final = 30


def unknown_name(noun: str, wrong: str, names: Iterable[str]) -> str:
    """Name the nearest allowed name, or all of them.

    >>> unknown_name("field", "ttl", ["ttl_ms", "type"])
    'unknown field, did you mean ttl_ms?'
    >>> unknown_name("parameter", "xyz", ["ttl_ms", "type"]), unknown_name("field", "x", [])
    ('unknown parameter; allowed: ttl_ms, type', 'unknown field; none is allowed')
    """
    allowed = sorted(names)
    nearest = nearest_name(wrong, allowed)
    if nearest is not None:
        return f"unknown {noun}, did you mean {nearest}?"
    if not allowed:
        return f"unknown {noun}; none is allowed"
    more = ["..."] if len(allowed) > ALLOWED_MAX else []
    return f"unknown {noun}; allowed: {', '.join(allowed[:ALLOWED_MAX] + more)}"
