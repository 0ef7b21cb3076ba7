"""Filters of records by tag, and of topics by name."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec


class TagFilter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A checked filter: a record is selected when any of the parts matches its tag.

    A record without a tag is never selected. Equal filters are equal values: the parts are sorted, and each
    is in the simplest form. The struct crosses the link and is stored with a watch session as it is.

    >>> orders = TagFilter(frozenset(["paid"]), ("new.",), ("*.eu?",))
    >>> [orders.selects(tag) for tag in ("paid", "new.1", "x.eu1", "x.eu", "")]
    [True, True, True, False, False]
    """

    tags: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    """Patterns in which `*` is any text and `?` is one character."""

    def selects(self, tag: str) -> bool:
        return tag != "" and (
            tag in self.tags
            or tag.startswith(self.prefixes)
            or (self.globs != () and _pattern_of(self.globs).fullmatch(tag) is not None)
        )


class TopicSelection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The topics that a follower selects, within the prefixes of its key. It crosses the link as it is.

    >>> selection = TopicSelection(TagFilter(frozenset(["a"]), ("orders.",)), ("orders.eu", "a"))
    >>> [selection.selects(name) for name in ("a", "orders.eu.1", "orders.us.1", "b")]
    [True, True, False, False]
    """

    filter: TagFilter
    within: tuple[str, ...] = ()
    """Prefixes of names, of which each selected topic has one; empty for all names."""

    def selects(self, name: str) -> bool:
        return (not self.within or name.startswith(self.within)) and self.filter.selects(name)

    @property
    def has_patterns(self) -> bool:
        return bool(self.filter.prefixes or self.filter.globs)

    @property
    def required(self) -> list[str]:
        """Return names that a key must cover for all topics that may be selected.

        A pattern without prefixes may select any topic; only a key without prefixes covers the empty name.
        """
        return [*self.filter.tags, *((self.within or ("",)) if self.has_patterns else ())]


@lru_cache(maxsize=1024)
def _pattern_of(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_expression_of, globs)), re.DOTALL)


def _expression_of(glob: str) -> str:
    """Return the regular expression of a glob, whose search takes no more than len(glob) * len(tag) steps.

    The text between two stars is taken where it first occurs, which an atomic group never takes back.
    """
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", glob))
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>.*?{part})" for part in middle) + ".*" + last
