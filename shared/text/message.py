"""Parts of messages for people: sizes with a unit, and quoted, bounded input."""

from __future__ import annotations

from typing import Final

QUOTED_CHARACTERS_MAX: Final = 64

_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size_text(size: int) -> str:
    """Render a size with a unit and the exact number of bytes.

    >>> size_text(301), size_text(64 << 20), size_text(1500)
    ('301 bytes', '64 MiB (67108864 bytes)', '1.5 KiB (1500 bytes)')
    """
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{round(size / factor, 1):g} {unit} ({size} bytes)"
    return f"{size} bytes"


def quoted(text: str) -> str:
    """Quote a client's text; escape what cannot be shown, and cut it at a bound.

    >>> print(quoted("Müller"), quoted('a"b\\n'), quoted("a" * 300))
    "Müller" "a\\"b\\n" "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..." (300 characters)
    """
    shown = "".join(map(_shown, text[:QUOTED_CHARACTERS_MAX]))
    if len(text) <= QUOTED_CHARACTERS_MAX:
        return f'"{shown}"'
    return f'"{shown}..." ({len(text)} characters)'


def _shown(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else character.encode("unicode_escape").decode()
