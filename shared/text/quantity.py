"""Durations and sizes as people write them: `"10m"`, `"1.5s"`, `"64 MiB"`.

A plain number is in the unit of the field that takes it. Units are case-insensitive, a blank before the unit
is optional, and a fraction is allowed where the result is a whole number of milliseconds or bytes. KB, MB and
GB are powers of 1000; KiB, MiB and GiB are powers of 1024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_DURATIONS: Final = {
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
}
_SIZES: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
}
# Twenty digits exceed every bound; the limit avoids computing with a text of a megabyte.
_quantity = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})")


def parse_duration_ms(given: int | str, unit: str = "ms") -> int:
    """Return milliseconds; raise ValueError with a sentence about the text.

    `unit` is the unit of a plain number: `ms` or `s`. The caller checks the bounds.

    >>> [parse_duration_ms(text) for text in ("10m", "1.5s", "2 H", "1w", "250", "250ms")]
    [600000, 1500, 7200000, 604800000, 250, 250]
    >>> parse_duration_ms(30), parse_duration_ms(30, "s"), parse_duration_ms("30", "s")
    (30, 30000, 30000)
    >>> parse_duration_ms("ten minutes")
    Traceback (most recent call last):
    ValueError: must be a number of milliseconds or a duration such as "10m"
    >>> parse_duration_ms("0.5ms")
    Traceback (most recent call last):
    ValueError: must be a whole number of milliseconds
    """
    if isinstance(given, int):
        return given * _DURATIONS[unit]
    name = "seconds" if unit == "s" else "milliseconds"
    value = _parse(given, _DURATIONS, unit)
    if value is None:
        raise ValueError(f'must be a number of {name} or a duration such as "10m"')
    if value.denominator != 1:
        raise ValueError("must be a whole number of milliseconds")
    return value.numerator


def parse_bytes(given: int | str) -> int:
    """Return bytes; raise ValueError with a sentence about the text.

    The caller checks the bounds.

    >>> [parse_bytes(text) for text in ("64 MiB", "64mib", "64MB", "1.5 KiB", "100", "7 B")]
    [67108864, 67108864, 64000000, 1536, 100, 7]
    >>> parse_bytes(100)
    100
    >>> parse_bytes("64 m")
    Traceback (most recent call last):
    ValueError: must be a number of bytes or a size such as "64 MiB"
    >>> parse_bytes("0.3 B")
    Traceback (most recent call last):
    ValueError: must be a whole number of bytes
    """
    if isinstance(given, int):
        return given
    value = _parse(given, _SIZES, "b")
    if value is None:
        raise ValueError('must be a number of bytes or a size such as "64 MiB"')
    if value.denominator != 1:
        raise ValueError("must be a whole number of bytes")
    return value.numerator


def render_duration_ms(duration_ms: int) -> str:
    """Render a duration in the largest unit that divides it. `parse_duration_ms` reads it back.

    >>> [render_duration_ms(one) for one in (0, 50, 1500, 60_000, 90_000, 3_600_000, 30 * DAY_MS)]
    ['0', '50 ms', '1500 ms', '1 m', '90 s', '1 h', '30 d']
    """
    return _render(duration_ms, _DURATIONS, ("d", "h", "m", "s", "ms"))


def render_bytes(size: int) -> str:
    """Render a size in the largest binary unit that divides it. `parse_bytes` reads it back.

    >>> render_bytes(64 * MIB), render_bytes(1000), render_bytes(1), render_bytes(0)
    ('64 MiB', '1000', '1', '0')
    """
    return _render(size, _SIZES, ("GiB", "MiB", "KiB"))


def _parse(text: str, units: Mapping[str, int], plain: str) -> Fraction | None:
    parts = _quantity.fullmatch(text.strip())
    if parts is None:
        return None
    factor = units.get(parts[2].lower() or plain)
    return None if factor is None else Fraction(parts[1]) * factor


def _render(quantity: int, units: Mapping[str, int], names: tuple[str, ...]) -> str:
    for name in names:
        factor = units[name.lower()]
        if quantity and quantity % factor == 0:
            return f"{quantity // factor} {name}"
    return str(quantity)
