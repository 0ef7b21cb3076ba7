"""A selection of topics: the names that a client gave, and patterns."""

from __future__ import annotations

import msgspec

from shared.contract.tag_filter import TagFilter


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
