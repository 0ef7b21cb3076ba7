"""Text for a terminal: aligned tables, sizes, times, and escaping of control characters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

WIDTH = 110
NOTHING = "-"

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 2) -> list[str]:
    """Return the lines of a table; a header that begins with `>` aligns its column to the right.

    >>> table(("NAME", ">SIZE"), [("a", "10"), ("long name", "5")])
    ['  NAME       SIZE', '  a            10', '  long name     5']
    """
    right = [header.startswith(">") for header in headers]
    cells = [[header.removeprefix(">") for header in headers], *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headers))]
    return [
        " " * indent
        + "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


def facts(pairs: Iterable[tuple[str, str]], indent: int = 2, name_width: int = 0) -> list[str]:
    """Return one line for each name and value; a long value wraps below its first line.

    >>> facts([("head", "12"), ("class", "disk")])
    ['  head   12', '  class  disk']
    """
    rows = list(pairs)
    width = max([name_width, *(len(name) for name, _ in rows)])
    lines = []
    for name, value in rows:
        lead = " " * indent + name.ljust(width) + "  "
        lines += textwrap.wrap(
            value,
            WIDTH,
            initial_indent=lead,
            subsequent_indent=" " * len(lead),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [lead.rstrip()]
    return lines


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun in the singular or the plural.

    >>> plural(1, "file"), plural(1200, "file"), plural(0, "batch", "batches")
    ('1 file', '1,200 files', '0 batches')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def size(count: int) -> str:
    """Return a number of bytes with the largest fitting unit.

    >>> size(118), size(1536), size(64 << 20), size(1023 * 1024 + 1023)
    ('118 B', '1.5 KiB', '64 MiB', '1 MiB')
    """
    if count < 1024:
        return f"{count} B"
    number = float(count)
    for unit in _UNITS:
        number /= 1024
        if round(number, 1) < 1024 or unit == _UNITS[-1]:
            break
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


@lru_cache(maxsize=16)
def utc(ts_ms: int) -> str:
    """Return milliseconds since 1970 as an ISO 8601 time; the number itself when out of range.

    >>> utc(1_700_000_000_123), utc(0), utc(1 << 63)
    ('2023-11-14T22:13:20.123Z', '1970-01-01T00:00:00.000Z', '9223372036854775808')
    """
    try:
        time = datetime.fromtimestamp(ts_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ts_ms)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ts_ms % 1000:03d}Z"


def utc_or_nothing(ts_ms: int) -> str:
    return utc(ts_ms) if ts_ms else NOTHING


def path_text(path: str) -> str:
    """Return a path as text that can be encoded as UTF-8; undecodable bytes are escaped.

    >>> print(path_text(bytes([99, 97, 102, 233]).decode("utf-8", "surrogateescape")))
    caf\\xe9
    """
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def escape_unprintable(text: str | bytes) -> str:
    """Return untrusted text with all unprintable characters escaped, safe for a terminal.

    >>> escape_unprintable(b"caf\\xc3\\xa9 \\xff\\x1b[2J")
    'café \\\\xff\\\\x1b[2J'
    """
    shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)
