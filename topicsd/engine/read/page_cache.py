"""The page cache of a shard: recently read pages of all topics, within a bound of bytes.

The least recently used page is evicted first. A response that is still being sent keeps its pages alive.
"""

from __future__ import annotations

from collections import OrderedDict

from topicsd.engine.read.page import PAGE_RECORDS, Page, Variant
from topicsd.engine.read.selections import SELECTED_PAGES_SHARE, SelectedPages, Selections

# The memory of a page besides its text: the object, its ends, its entry in the cache.
PAGE_COST_BYTES = 600
_VARIANTS = 4
# Up to this size, copying a slice costs less than a memoryview of it.
COPIED_BYTES_MAX = 2 << 10


class PageCache:
    """An LRU cache of pages, by the key of the topic, seq and variant."""

    def __init__(self, bytes_max: int) -> None:
        self.selections = Selections()
        self.selected_pages = SelectedPages(bytes_max // SELECTED_PAGES_SHARE)
        self._bytes_max = bytes_max
        self._pages: OrderedDict[tuple[int, int], Page] = OrderedDict()
        self._bytes = 0

    def page(self, topic: int, seq: int, variant: Variant) -> Page:
        """Return the page for a seq, which may not have grown to the seq yet; make it if needed."""
        number = seq // PAGE_RECORDS
        key = (topic, number * _VARIANTS + variant.number)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = Page(number * PAGE_RECORDS)
            self.add_bytes(PAGE_COST_BYTES)
        else:
            self._pages.move_to_end(key)
        return page

    def find(self, topic: int, seq: int, variant: Variant) -> Page | None:
        """Return the page for a seq, if there is one."""
        key = (topic, seq // PAGE_RECORDS * _VARIANTS + variant.number)
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def slices(
        self, topic: int, first: int, last: int, variant: Variant, room: int
    ) -> list[bytes | memoryview] | None:
        """Return the records from `first` to `last` as slices, or None when the slow path is needed.

        This is the fast path of reading: all records must be in cached pages without damage, and fit into
        `room`.
        """
        pages = self._pages
        number, last_number = first // PAGE_RECORDS, last // PAGE_RECORDS
        parts: list[bytes | memoryview] = []
        while True:
            key = (topic, number * _VARIANTS + variant.number)
            page = pages.get(key)
            if page is None or page.damage is not None:
                return None
            ends = page.ends
            at = first - page.first_seq
            end = PAGE_RECORDS - 1 if number < last_number else last - page.first_seq
            if end >= len(ends):
                return None
            start = ends[at - 1] if at else 0
            size = ends[end] - start
            room -= size
            if room < 0:
                return None
            pages.move_to_end(key)
            text = page.text
            if size == len(text):
                parts.append(text)
            else:
                source = text if size <= COPIED_BYTES_MAX else memoryview(text)
                parts.append(source[start : start + size])
            if number == last_number:
                return parts
            number += 1
            first = number * PAGE_RECORDS

    def forget(self, topic: int, seq: int, variant: Variant) -> None:
        page = self._pages.pop((topic, seq // PAGE_RECORDS * _VARIANTS + variant.number))
        self._bytes -= PAGE_COST_BYTES + len(page.text)

    def add_bytes(self, size_bytes: int) -> None:
        """Count growth of the page that `page` returned last, and evict pages over the bound."""
        self._bytes += size_bytes
        # The most recently used page is not evicted: the caller is filling it.
        while self._bytes > self._bytes_max and len(self._pages) > 1:
            _, page = self._pages.popitem(last=False)
            self._bytes -= PAGE_COST_BYTES + len(page.text)
