"""What filters select, kept for the next reads: the seqs in a segment, and rendered records."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from shared.contract.tag_filter import TagFilter
from topicsd.engine.read.page import Page
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.segment.entry import SegmentName

SELECTED_PAGES_SHARE: Final = 8
"""Beside the page cache, selected pages may have this part of its bound."""
KEPT_BYTES_MAX: Final = 4 << 20
_ENTRY_BYTES: Final = 300
_PAGE_BYTES: Final = 900


class Selections:
    """An LRU cache of the seqs that a filter selects in a segment, within a bound of bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[SegmentName, int, TagFilter], array[int]] = OrderedDict()
        self._bytes = 0

    def find(self, run: Run, tag_filter: TagFilter) -> array[int] | None:
        key = _key(run, tag_filter)
        seqs = self._kept.get(key)
        if seqs is not None:
            self._kept.move_to_end(key)
        return seqs

    def add(self, run: Run, tag_filter: TagFilter, seqs: array[int]) -> None:
        key = _key(run, tag_filter)
        if key not in self._kept:
            self._kept[key] = seqs
            self._bytes += _ENTRY_BYTES + 8 * len(seqs)
        while self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + 8 * len(dropped)


def _key(run: Run, tag_filter: TagFilter) -> tuple[SegmentName, int, TagFilter]:
    """Return a key that an active segment has again only with the same records."""
    if isinstance(run, SealedRun):
        return run.name, run.next_seq, tag_filter
    assert isinstance(run, TailRun)
    assert run.source is not None
    return run.source.name, run.next_seq, tag_filter


class SelectedPage(NamedTuple):
    """The few records that a filter selects in a range of seqs, rendered."""

    seqs: Sequence[int]
    ends: Sequence[int]
    """The end offset of each record in `text`."""
    text: bytes
    page: Page
    """Empty; it has the nodes of the records."""

    def texts(self, low: int, high: int) -> list[bytes]:
        starts = [self.ends[low - 1] if low else 0, *self.ends[low : high - 1]]
        return [self.text[start:end] for start, end in zip(starts, self.ends[low:high], strict=True)]


SelectedPageKey = tuple[int, int, TagFilter, int, int]
"""The topic, the variant, the filter, and the first and last seq of the range."""


class SelectedPages:
    """An LRU cache of pages of records that filters select, within a bound of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pages: OrderedDict[SelectedPageKey, SelectedPage] = OrderedDict()
        self._bytes = 0

    def find(self, key: SelectedPageKey) -> SelectedPage | None:
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def add(self, key: SelectedPageKey, page: SelectedPage) -> None:
        """Keep a page that `find` did not return."""
        self._pages[key] = page
        self._bytes += _cost_bytes(page)
        while self._bytes > self._bytes_max and self._pages:
            _, dropped = self._pages.popitem(last=False)
            self._bytes -= _cost_bytes(dropped)


def _cost_bytes(page: SelectedPage) -> int:
    return _PAGE_BYTES + len(page.text) + 16 * len(page.seqs)
