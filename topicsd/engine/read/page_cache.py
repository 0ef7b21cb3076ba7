"""The pages of all topics of a shard that somebody read lately, within a bound of bytes.

What was used longest ago leaves first. A page that somebody still sends lives as long as that takes.
"""

from __future__ import annotations

from collections import OrderedDict

from topicsd.engine.read.page import PAGE_RECORDS, Page, Variant

# What a page costs besides its text: the object, its ends, its place in the cache.
PAGE_COST_BYTES = 600
_VARIANTS = 4
# A copy of a short piece costs less than a view of it.
COPIED_BYTES_MAX = 2 << 10


class PageCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pages: OrderedDict[tuple[int, int], Page] = OrderedDict()
        self._bytes = 0

    def page(self, epoch: int, seq: int, variant: Variant) -> Page:
        """The page in which the seq of the topic of this epoch stands, perhaps still without it."""
        number = seq // PAGE_RECORDS
        key = (epoch, number * _VARIANTS + variant.number)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = Page(number * PAGE_RECORDS)
            self.grew(PAGE_COST_BYTES)
        else:
            self._pages.move_to_end(key)
        return page

    def stretch(
        self, epoch: int, first: int, last: int, variant: Variant, room: int
    ) -> list[bytes | memoryview] | None:
        """The records from `first` to `last` as slices, when all of them are in pages that are here and fit
        into `room`: the plain case of reading, so it does not ask twice. None says to look closely."""
        pages = self._pages
        number, last_number = first // PAGE_RECORDS, last // PAGE_RECORDS
        parts: list[bytes | memoryview] = []
        while True:
            key = (epoch, number * _VARIANTS + variant.number)
            page = pages.get(key)
            if page is None or page.damage is not None:
                return None
            ends = page.ends
            at = first - page.first_seq
            upto = PAGE_RECORDS - 1 if number < last_number else last - page.first_seq
            if upto >= len(ends):
                return None
            start = ends[at - 1] if at else 0
            size = ends[upto] - start
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

    def forget(self, epoch: int, seq: int, variant: Variant) -> None:
        page = self._pages.pop((epoch, seq // PAGE_RECORDS * _VARIANTS + variant.number))
        self._bytes -= PAGE_COST_BYTES + len(page.text)

    def grew(self, size_bytes: int) -> None:
        """The page that was asked for last got so many bytes more."""
        self._bytes += size_bytes
        # The last one is in use.
        while self._bytes > self._bytes_max and len(self._pages) > 1:
            _, page = self._pages.popitem(last=False)
            self._bytes -= PAGE_COST_BYTES + len(page.text)
