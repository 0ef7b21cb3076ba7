"""A filter of records by tag."""

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
