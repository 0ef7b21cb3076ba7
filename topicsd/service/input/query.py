"""Parsers of query parameters; every refusal names its parameter."""

from __future__ import annotations

from urllib.parse import parse_qsl

from shared.contract.errors import Refusal, excluded, invalid
from shared.contract.seek import Seek, seek_of
from shared.contract.topic_config import NUMBER_MAX
from shared.runtime.clock import Clock
from shared.text.message import quoted
from shared.text.units import instant_ms, number_in

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def query_text(query: str, name: str) -> str | None:
    """Return the value of a parameter, or None; the last value wins."""
    return dict(parse_qsl(query, keep_blank_values=True)).get(name) if query else None


def query_boolean(query: str, name: str, default: bool) -> bool | Refusal:
    """Return the value of a boolean parameter; the last value wins."""
    value = query_text(query, name)
    if value is None:
        return default
    known = _BOOLEANS.get(value)
    if known is None:
        return invalid(name, f"must be true, false, 1 or 0, got {quoted(value)}")
    return known


def query_seek(query: str, clock: Clock) -> Seek | Refusal | None:
    """Return the position by time or from the end, or None without one."""
    text, last = query_text(query, "from_ts"), query_number(query, "last")
    from_ts = None if text is None else instant_ms("from_ts", number_in(text), clock.now_ms())
    if isinstance(from_ts, Refusal):
        return from_ts
    if from_ts is not None and not 0 <= from_ts <= NUMBER_MAX:
        return invalid("from_ts", "must be 1970 or later")
    if isinstance(last, Refusal):
        return last
    if from_ts is not None and last is not None:
        return excluded("last", "from_ts")
    return seek_of(from_ts, last)


def query_number(query: str, name: str) -> int | Refusal | None:
    """Return the value of a number from 0, written in plain digits, or None."""
    text = query_text(query, name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= NUMBER_MAX:
        return int(text)
    return invalid(name, f"must be an integer from 0 to {NUMBER_MAX}, got {quoted(text)}")
