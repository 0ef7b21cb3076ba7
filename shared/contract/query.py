"""Parsers of query parameters, for every endpoint; each refusal names its parameter.

A parameter that an endpoint does not have, a repeated one, or a query that is not UTF-8, is refused before
(`endpoints.refuse_parameters`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from shared.contract.errors import Refusal, invalid
from shared.contract.topic_config import NUMBER_MAX
from shared.text.message import quoted

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_DIGITS_MAX: Final = 20


def query_text(query: str, name: str) -> str | None:
    """Return the value of a parameter, or None."""
    return dict(parse_qsl(query, keep_blank_values=True)).get(name) if query else None


def query_boolean(query: str, name: str, default: bool) -> bool | Refusal:
    """Return the value of a boolean parameter."""
    text = query_text(query, name)
    if text is None:
        return default
    value = _BOOLEANS.get(text)
    return invalid(name, f"must be true, false, 1 or 0, got {quoted(text)}") if value is None else value


def query_number(query: str, name: str, *, is_clamped: bool = False) -> int | Refusal | None:
    """Return the value of a number in plain digits, or None; it may be negative if it is clamped.

    >>> query_number("seq=17", "seq"), query_number("page_size=-3", "page_size", is_clamped=True)
    (17, -3)
    >>> query_number("seq=-3", "seq").message
    'seq: must be an integer of at least 0, got "-3"'
    """
    text = query_text(query, name)
    if text is None:
        return None
    digits = text.removeprefix("-") if is_clamped else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
        return invalid(
            name, f"must be an integer{'' if is_clamped else ' of at least 0'}, got {quoted(text)}"
        )
    number = int(text)
    return number if is_clamped or number <= NUMBER_MAX else invalid(name, f"must be at most {NUMBER_MAX}")
