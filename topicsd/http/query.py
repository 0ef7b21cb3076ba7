"""What stands behind the `?`: booleans and numbers with their names in every refusal.

Must not know: routes.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from shared.errors import INVALID_REQUEST, Refusal

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def query_text(query: str, name: str) -> str | None:
    """The value of a parameter; the last one when it is sent twice."""
    return dict(parse_qsl(query, keep_blank_values=True)).get(name) if query else None


def query_boolean(query: str, name: str, default: bool) -> bool | Refusal:
    """The value of a boolean parameter; the last one when it is sent twice."""
    value = query_text(query, name)
    if value is None:
        return default
    known = _BOOLEANS.get(value)
    if known is None:
        message = f"{name}: must be true, false, 1 or 0"
        return Refusal(INVALID_REQUEST, message, {"field": name})
    return known
