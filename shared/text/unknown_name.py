"""The message about a name that is not allowed: a field, a query parameter, an option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shared.text.nearest_name import nearest_name

ALLOWED_MAX: Final = 30
# Accepted, but not suggested: the key is an alias of the documented name.
OTHER_NAMES: Final = {"from_seq": "after_seq"}


def unknown_name(noun: str, wrong: str, names: Iterable[str]) -> str:
    """Return a message with the nearest allowed name, or with all of them.

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
