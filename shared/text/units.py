"""Fields of requests that take a unit: durations, sizes and times as numbers or texts.

Each function returns the number that the field means, or the refusal that names the field.
"""

from __future__ import annotations

from typing import Final

from shared.contract.errors import Refusal, invalid
from shared.text.instant import parse_instant_ms
from shared.text.quantity import parse_bytes, parse_duration_ms

_DIGITS_MAX: Final = 19


def duration_ms(field: str, given: int | str) -> int | Refusal:
    """Return the milliseconds of a duration.

    >>> duration_ms("ttl_ms", "10m"), duration_ms("ttl_ms", 5)
    (600000, 5)
    >>> duration_ms("ttl_ms", "soon").message
    'ttl_ms: must be a number of milliseconds or a duration such as "10m"'
    >>> duration_ms("ttl_ms", "60").message
    'ttl_ms: "60" has no unit: send a number of milliseconds or a duration such as "10m"'
    """
    if isinstance(given, int):
        return given
    if given.isdecimal():
        return _without_unit(field, given, 'a number of milliseconds or a duration such as "10m"')
    try:
        return parse_duration_ms(given)
    except ValueError as error:
        return _refusal(field, error)


def size_bytes(field: str, given: int | str) -> int | Refusal:
    """Return the bytes of a size.

    >>> size_bytes("cap_bytes", "64 MiB")
    67108864
    """
    if isinstance(given, int):
        return given
    if given.isdecimal():
        return _without_unit(field, given, 'a number of bytes or a size such as "64 MiB"')
    try:
        return parse_bytes(given)
    except ValueError as error:
        return _refusal(field, error)


def instant_ms(field: str, given: int | str, now_ms: int) -> int | Refusal:
    """Return the milliseconds since 1970 of a time.

    >>> instant_ms("from_ts", "-1s", 1_795_037_271_038)
    1795037270038
    """
    try:
        return parse_instant_ms(given, now_ms)
    except ValueError as error:
        return _refusal(field, error)


def number_in(text: str) -> int | str:
    """Return the number that a query parameter is, or its text.

    >>> number_in("30000"), number_in("30s")
    (30000, '30s')
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else text


def _without_unit(field: str, given: str, expected: str) -> Refusal:
    # A client that sends 60 as a text may mean seconds.
    return invalid(field, f'"{given[:_DIGITS_MAX]}" has no unit: send {expected}')


def _refusal(field: str, error: ValueError) -> Refusal:
    return invalid(field, f"{error}")
