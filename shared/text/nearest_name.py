"""What a name that is none was meant to be, if that can be guessed.

Letters find a slip of the fingers, words what somebody remembers by half: `drain_ms` has one word of
`drain_seconds` and the other is a unit. No guess is better than a far one, which sends a person to the wrong
line of the manual.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

# Above the one it is a slip, below the other names share a few letters and were not meant.
SLIP: Final = 0.8
NEAR: Final = 0.75
# A word that more names have than this tells none of them.
SHARED_MAX: Final = 4
WORD_LETTERS_MIN: Final = 3
# The comparison is quadratic in the length.
LETTERS_MAX: Final = 128

_UNITS: Final = frozenset(("ms", "seconds", "bytes"))


def nearest_name(wrong: str, names: Iterable[str], prefix: str = "") -> str | None:
    """What all names have, `prefix`, makes none of them nearer.

    >>> names = ["TOPICS_PORT", "TOPICS_LOG", "TOPICS_DRAIN_SECONDS"]
    >>> [nearest_name(f"TOPICS_{wrong}", names, "TOPICS_") for wrong in ("PROT", "DRAIN_MS", "LOG_LEVEL")]
    ['TOPICS_PORT', 'TOPICS_DRAIN_SECONDS', 'TOPICS_LOG']
    >>> nearest_name("TOPICS_RETRIES", names, "TOPICS_") is None
    True
    """
    if len(wrong) > LETTERS_MAX:
        return None
    asked = _plain(wrong, prefix)
    likeness = {name: SequenceMatcher(None, _plain(name, prefix), asked).ratio() for name in names}
    nearest = max(likeness, key=likeness.__getitem__, default=None)
    if nearest is None or likeness[nearest] >= SLIP:
        return nearest
    words = _words(asked)
    by_words = {name: _words(_plain(name, prefix)) for name in likeness}
    for fitting in (
        [name for name, has in by_words.items() if _are_among(words, has)],
        [name for name, has in by_words.items() if _are_among(has, words)],
    ):
        if 0 < len(fitting) <= SHARED_MAX:
            return max(fitting, key=likeness.__getitem__)
    return nearest if likeness[nearest] >= NEAR else None


def _plain(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).replace("-", "_").lower()


def _words(name: str) -> list[str]:
    """Without what they are measured in, of which a person hardly ever is sure."""
    words = name.split("_")
    return [word for word in words if word not in _UNITS] or words


def _are_among(words: list[str], others: list[str]) -> bool:
    return all(any(_is_same(word, other) for other in others) for word in words)


def _is_same(word: str, other: str) -> bool:
    """Or the one begins with the other, as `host` and `hostname`."""
    if len(word) < WORD_LETTERS_MIN or len(other) < WORD_LETTERS_MIN:
        return word == other
    return word.startswith(other) or other.startswith(word)
