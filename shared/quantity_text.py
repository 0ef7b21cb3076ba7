"""Sizes as messages name them: a unit for the reader, and the exact number where both help."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size_text(size: int) -> str:
    """
    >>> size_text(301), size_text(64 << 20), size_text(1500)
    ('301 bytes', '64 MiB (67108864 bytes)', '1.5 KiB (1500 bytes)')
    """
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{round(size / factor, 1):g} {unit} ({size} bytes)"
    return f"{size} bytes"
