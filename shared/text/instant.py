"""Times as people write them: milliseconds, RFC 3339, or relative to now.

Milliseconds are integers since 1970. A relative time is a sign and a duration of `shared/text/quantity.py`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from shared.text.quantity import parse_duration_ms

# Milliseconds below this are before March 1973 and taken for a mistake.
EARLIEST_MS: Final = 10**11
# Numbers in this range are seconds of the years 2001 to 2286.
SECONDS: Final = range(10**9, 10**10)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# An unescaped plus sign in a query arrives as a blank.
_rfc_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(\.[0-9]{1,9})?"
    r"([Zz]|[+ -][0-9]{2}:[0-9]{2})"
)


def parse_instant_ms(given: int | str, now_ms: int) -> int:
    """Return milliseconds since 1970; raise ValueError with a sentence about the value.

    >>> now = 1_795_037_271_038
    >>> [parse_instant_ms(one, now) for one in (now, "-10m", "+1.5s", 0)]
    [1795037271038, 1795036671038, 1795037272538, 0]
    >>> times = ("2026-11-18T21:27:51.038Z", "2026-11-18t22:27:51.0389+01:00", "2026-11-18 22:27 01:00")
    >>> [parse_instant_ms(one, now) for one in times]
    [1795037271038, 1795037271038, 1795037220000]
    >>> parse_instant_ms(1_795_037_271, now)
    Traceback (most recent call last):
    ValueError: 1795037271 looks like seconds; send milliseconds: 1795037271000
    >>> parse_instant_ms(5, now)
    Traceback (most recent call last):
    ValueError: 5 ms is in 1970
    >>> parse_instant_ms("yesterday", now)
    Traceback (most recent call last):
    ValueError: must be milliseconds, RFC 3339 ("2026-01-31T12:00:00Z") or relative ("-10m", "+10m")
    """
    if isinstance(given, str):
        return _parse_text(given.strip(), now_ms)
    if given in SECONDS:
        raise ValueError(f"{given} looks like seconds; send milliseconds: {given}000")
    if 0 < given < EARLIEST_MS:
        raise ValueError(f"{given} ms is in {1970 + given // 31_556_952_000}")
    return given


def rfc_3339(time_ms: int) -> str:
    """Return milliseconds since 1970 as RFC 3339.

    >>> rfc_3339(1_795_037_271_038)
    '2026-11-18T21:27:51.038Z'
    """
    instant = _EPOCH + timedelta(milliseconds=time_ms)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse_text(text: str, now_ms: int) -> int:
    wrong = ValueError('must be milliseconds, RFC 3339 ("2026-01-31T12:00:00Z") or relative ("-10m", "+10m")')
    if text[:1] in ("-", "+") and text[-1].isalpha():
        try:
            duration_ms = parse_duration_ms(text[1:])
        except ValueError:
            raise wrong from None
        return now_ms + (duration_ms if text[0] == "+" else -duration_ms)
    match = _rfc_3339.fullmatch(text)
    if match is None:
        raise wrong
    day, clock, fraction, zone = match.groups(default="")
    zone = "+00:00" if zone in "Zz" else zone.replace(" ", "+")
    try:
        instant = datetime.fromisoformat(f"{day}T{clock}{zone}")
    except ValueError:
        raise wrong from None
    return (instant - _EPOCH) // timedelta(milliseconds=1) + int(f"{fraction[1:4]:0<3}")
