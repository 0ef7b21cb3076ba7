"""The sentence about a name that is not one of those allowed: a field, a parameter of a query, an option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shared.text.nearest_name import nearest_name

ALLOWED_MAX: Final = 30
# Accepted, but never suggested: the name that the documentation uses is.
OTHER_NAMES: Final = {"from_seq": "after_seq"}


def unknown_name(noun: str, wrong: str, names: Iterable[str]) -> str:
    """Name the nearest allowed name, or all of them.

    >>> unknown_name("field", "ttl", ["ttl_ms", "type"])
    'unknown field, did you mean ttl_ms?'
    >>> unknown_name("parameter", "xyz", ["ttl_ms", "type"]), unknown_name("field", "x", [])
    ('unknown parameter; allowed: ttl_ms, type', 'unknown field; none is allowed')
    >>> unknown_name("field", "seq", ["epoch", "from_seq", "after_seq"])
    'unknown field, did you mean after_seq?'
    """
    allowed = sorted(names)
    nearest = nearest_name(wrong, allowed)
    if nearest is not None:
        return f"unknown {noun}, did you mean {OTHER_NAMES.get(nearest, nearest)}?"
    if not allowed:
        return f"unknown {noun}; none is allowed"
    allowed = [name for name in allowed if name not in OTHER_NAMES]
    more = ["..."] if len(allowed) > ALLOWED_MAX else []
    return f"unknown {noun}; allowed: {', '.join(allowed[:ALLOWED_MAX] + more)}"
