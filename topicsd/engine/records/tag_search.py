"""The search for the records that a filter selects, in each kind of tag index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from shared.contract.tag_filter import TagFilter
from topicsd.segment.tags_file import TagsReader


class TagSearch:
    """A filter by tag over tags as bytes. Equal filters have the same search."""

    __slots__ = ("_filter", "globs", "prefixes", "tags")

    def __init__(self, tag_filter: TagFilter) -> None:
        self._filter = tag_filter
        self.globs = _globs_of(tag_filter.globs)
        """The text that all globs begin with, and their match; empty without globs."""
        self.tags = tuple(sorted(tag.encode() for tag in tag_filter.tags))
        self.prefixes = tuple(prefix.encode() for prefix in tag_filter.prefixes)

    @property
    def is_exact(self) -> bool:
        """Return whether the filter has tags only, which an index finds without comparing others."""
        return not self.prefixes and not self.globs

    def selects(self, tag: bytes) -> bool:
        return self._filter.selects(tag.decode())

    def find_in(self, tags: TagsReader) -> list[int]:
        """Return the selected seqs of a sealed segment, ascending; runs on a thread."""
        columns = [tags.find(tag, False, _ALL) for tag in self.tags]
        columns += [tags.find(prefix, True, _ALL) for prefix in self.prefixes]
        columns += [tags.find_each(start, fullmatch) for start, fullmatch in self.globs]
        return (
            columns[0]
            if len(columns) == 1 and self.is_exact
            else sorted({seq for seqs in columns for seq in seqs})
        )

    def select(self, pairs: Iterable[tuple[bytes, list[int]]]) -> list[int]:
        """Return the selected seqs of these tags, ascending."""
        return sorted(seq for tag, seqs in pairs if self.selects(tag) for seq in seqs)


_ALL = 1 << 63


def _globs_of(globs: tuple[str, ...]) -> tuple[tuple[bytes, Callable[[bytes], bool]], ...]:
    if not globs:
        return ()
    selects = TagFilter(globs=globs).selects
    starts = [_literal_start(glob) for glob in globs]
    # Between the first and the last in order, the others have what both begin with.
    low, high = min(starts), max(starts)
    same = next(
        (at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low)
    )
    start = low[:same]
    return ((start.encode(), lambda tag: selects(tag.decode())),)


def _literal_start(glob: str) -> str:
    return re.split(r"[*?]", glob, maxsplit=1)[0]


@lru_cache(maxsize=1024)
def search_for(tag_filter: TagFilter) -> TagSearch:
    return TagSearch(tag_filter)
