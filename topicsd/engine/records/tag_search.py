"""The search for the records that a filter selects, in each kind of tag index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from shared.contract.tag_filter import TagFilter, pattern_of
from topicsd.segment.tags_file import TagsReader


class TagSearch:
    """A filter by tag over tags as bytes. Equal filters have the same search."""

    __slots__ = ("_filter", "globs", "prefixes", "tags")

    def __init__(self, tag_filter: TagFilter) -> None:
        self._filter = tag_filter
        starts: dict[str, list[str]] = {}
        for glob in tag_filter.globs:
            starts.setdefault(_literal_start(glob), []).append(glob)
        self.globs = tuple((start.encode(), _matcher(tuple(globs))) for start, globs in starts.items())
        """For each text with which globs begin, the match of these globs together."""
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


def _matcher(globs: tuple[str, ...]) -> Callable[[bytes], bool]:
    fullmatch = pattern_of(globs).fullmatch
    return lambda tag: fullmatch(tag.decode()) is not None


def _literal_start(glob: str) -> str:
    return re.split(r"[*?]", glob, maxsplit=1)[0]


@lru_cache(maxsize=1024)
def search_for(tag_filter: TagFilter) -> TagSearch:
    return TagSearch(tag_filter)
