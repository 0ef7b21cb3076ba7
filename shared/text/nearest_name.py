"""The nearest valid name for an invalid one, if there is a good guess.

Similar letters find typing errors; common words find half-remembered names: `drain_ms` shares one word with
`drain_seconds`, and its other word is a unit. A distant guess is worse than none, because it sends a person
to the wrong line of the manual.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

# At or above SLIP a name is a typing error; below NEAR two names only share a few letters.
SLIP: Final = 0.8
NEAR: Final = 0.75
# A word that more names share than this identifies none of them.
SHARED_MAX: Final = 4
WORD_LETTERS_MIN: Final = 3
# The comparison is quadratic in the length.
LETTERS_MAX: Final = 128

_UNITS: Final = frozenset(("ms", "seconds", "bytes"))


def nearest_name(wrong: str, names: Iterable[str], prefix: str = "") -> str | None:
    """Return the nearest of `names`, or None; `prefix` is common to all and ignored.

    >>> names = ["TOPICS_PORT", "TOPICS_LOG", "TOPICS_DRAIN_SECONDS"]
    >>> [nearest_name(f"TOPICS_{wrong}", names, "TOPICS_") for wrong in ("PROT", "DRAIN_MS", "LOG_LEVEL")]
    ['TOPICS_PORT', 'TOPICS_DRAIN_SECONDS', 'TOPICS_LOG']
    >>> nearest_name("TOPICS_RETRIES", names, "TOPICS_") is None
    True
    """
    if len(wrong) > LETTERS_MAX:
        return None
    plain = _plain(wrong, prefix)
    likeness = {name: SequenceMatcher(None, _plain(name, prefix), plain).ratio() for name in names}
    nearest = max(likeness, key=likeness.__getitem__, default=None)
    if nearest is None or likeness[nearest] >= SLIP:
        return nearest
    words = _words(plain)
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
    """Split a name into words without its units, which people rarely remember."""
    words = name.split("_")
    return [word for word in words if word not in _UNITS] or words


def _are_among(words: list[str], others: list[str]) -> bool:
    return all(any(_is_same(word, other) for other in others) for word in words)


def _is_same(word: str, other: str) -> bool:
    """Return whether the words are equal or one begins with the other, as "host" and "hostname"."""
    if len(word) < WORD_LETTERS_MIN or len(other) < WORD_LETTERS_MIN:
        return word == other
    return word.startswith(other) or other.startswith(word)
