"""Pages of a shared topic: its frames are rendered to JSON once, as those of a local topic.

The pages are in the page cache of the process, by name and incarnation. A page grows at its end from the
chunks of the tail cache, or from those that a read has fetched. If the chunks before the first wanted record
are not at hand, the page is made for one reader, as is a page of large records or with damage. A damaged
chunk is decoded as a whole, which takes long: on a thread, and once for an answer (`DamagedChunks`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter, sub
from typing import Final

from shared.contract.reader_options import ReaderOptions
from topicsd.broker.frames_v1 import TOPIC_ID_MASK, DamagedSeqs, Decoded, Rebase, decode_frames
from topicsd.broker.read.tail_cache import TailChunk
from topicsd.engine.read.fill_page import KEPT_BYTES_MAX
from topicsd.engine.read.page import PAGE_RECORDS, Frames, Page, Variant, render_record
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.read.page_slices import PAGES_MAX, PageSlices
from topicsd.log.frame import HEADER, HEADER_BYTES, xxh3

FindChunk = Callable[[int], TailChunk | None]
"""Returns the chunk that holds a seq."""

DECODED_CHUNKS_MAX: Final = 2
"""Damaged chunks that stay decoded for the next reads; each has at most the bytes of a blob."""
_LOCAL_KEYS_END: Final = 1 << 64
_SEQ_FIELD: Final = 4
_seq_of: Final = attrgetter("seq")


def cache_key(name: str, incarnation: int) -> int:
    """Return the key of the pages of a shared topic, which no local topic has.

    Two topics have the same key with the chance of 1 to 2^64.
    """
    return _LOCAL_KEYS_END + (xxh3(name.encode()) ^ incarnation)


class DamagedChunks:
    """Damaged chunks, decoded: those of one answer, and a few that other answers may need."""

    def __init__(self, kept: OrderedDict[_ChunkId, Decoded]) -> None:
        self._kept = kept
        self._own: dict[TailChunk, Decoded] = {}

    def find(self, chunk: TailChunk) -> Decoded | None:
        decoded = self._own.get(chunk)
        if decoded is None and self._kept:
            decoded = self._kept.get(_id_of(chunk))
            if decoded is not None:
                self._own[chunk] = decoded
        return decoded

    def add(self, chunk: TailChunk, decoded: Decoded) -> None:
        self._own[chunk] = self._kept[_id_of(chunk)] = decoded
        if len(self._kept) > DECODED_CHUNKS_MAX:
            self._kept.popitem(last=False)


_ChunkId = tuple[str, Rebase, int]


def _id_of(chunk: TailChunk) -> _ChunkId:
    """Return a key that other bytes of the same seqs do not have: they may be intact when read again."""
    return chunk.name, chunk.rebase, xxh3(chunk.body)


def decode_damaged(chunk: TailChunk) -> Decoded:
    """Decode what is intact in a chunk; raises OSError. A chunk of 8 MiB takes a good part of a second."""
    try:
        return decode_frames(chunk.body, chunk.rebase, encoding=chunk.encoding)
    except Exception as error:
        raise OSError(f"{chunk.key or 'memory'}: a damaged slice cannot be decoded: {error!r}") from error


class ChunkSlices(PageSlices):
    """The slices of one answer, from the chunks of a shared topic."""

    __slots__ = (
        "_cache",
        "_damaged",
        "_find",
        "_key",
        "damaged_chunk",
        "damaged_seqs",
        "missing_seq",
        "undecoded",
    )

    def __init__(
        self,
        cache: PageCache,
        key: int,
        find: FindChunk,
        damaged: DamagedChunks,
        options: ReaderOptions,
        cursor: int,
    ) -> None:
        super().__init__(options, options.nodes, cursor)
        self._cache = cache
        self._key = key
        self._find = find
        self._damaged = damaged
        self.missing_seq = 0
        """The first seq whose chunk is not at hand."""
        self.undecoded: TailChunk | None = None
        """The damaged chunk that has to be decoded first."""
        self.damaged_chunk: TailChunk | None = None
        self.damaged_seqs: list[DamagedSeqs] = []
        """The damage of `damaged_chunk`."""

    def collect(self, stop: int) -> None:
        page_count = 0
        while self.cursor < stop and self.count < self.limit and page_count < PAGES_MAX:
            first = self.cursor + 1
            last = min(stop, first | (PAGE_RECORDS - 1))
            page = self._page(first, last)
            if page is None:
                self.missing_seq = 0 if self.undecoded is not None else first
                return
            page_count += 1
            if not self.take(page, first, min(last, page.next_seq - 1)):
                return

    def damage_at(self, seq: int) -> DamagedSeqs:
        """Return the damaged range with this seq, from the seq on."""
        one = next(one for one in self.damaged_seqs if one.first_seq <= seq <= one.last_seq)
        return one._replace(first_seq=seq)

    def _page(self, first: int, last: int) -> Page | None:
        """Return a page with the record `first`, and others up to `last` that are at hand."""
        page = self._cache.page(self._key, first, self.variant)
        if page.next_seq > last or (self._grow(page, first, last) and page.next_seq > first):
            return page
        chunk = self._find(first)
        if chunk is None:
            return None
        page = Page(first)
        _add_chunk(page, chunk, last, self.variant, self.room)
        return page if page.damage is None else self._damaged_page(chunk, first, last)

    def _grow(self, page: Page, first: int, last: int) -> bool:
        """Add records to a page of the cache; return False when it cannot be used."""
        before = len(page.text)
        while page.next_seq <= last:
            chunk = self._find(page.next_seq)
            if chunk is None or chunk.byte_count * PAGE_RECORDS > KEPT_BYTES_MAX * chunk.count:
                break
            _add_chunk(page, chunk, last, self.variant, None)
            if page.damage is not None:
                break
        self._cache.add_bytes(len(page.text) - before)
        if page.damage is None:
            return True
        # Damage is not cached: a later read may succeed.
        self._cache.forget(self._key, first, self.variant)
        return False

    def _damaged_page(self, chunk: TailChunk, first: int, last: int) -> Page | None:
        """Return a page with the good records of a damaged chunk; None before it was decoded."""
        decoded = self._damaged.find(chunk)
        if decoded is None:
            self.undecoded = chunk
            return None
        self.damaged_chunk, self.damaged_seqs = chunk, decoded.damaged
        page = Page(first)
        low = bisect_left(decoded.records, first, key=_seq_of)
        records = {record.seq: record for record in decoded.records[low : low + PAGE_RECORDS]}
        parts: list[bytes] = []
        size = 0
        for seq in range(first, min(last, chunk.rebase.last_seq) + 1):
            record = records.get(seq)
            if record is None:
                page.add_damage(seq, self.damage_at(seq).what)
            else:
                parts.append(render_record(record, self.variant) + b",")
                size += len(parts[-1])
                if record.node:
                    page.add_node(seq, record.node.decode())
            page.ends.append(size)
        page.text = b"".join(parts)
        return page


def _add_chunk(page: Page, chunk: TailChunk, last: int, variant: Variant, bytes_wanted: int | None) -> None:
    """Add records of a chunk to the end of a page, up to `last` or at least one of `bytes_wanted`."""
    first = page.next_seq
    if chunk.texts is not None:
        first_seq = chunk.rebase.first_seq
        chunk = chunk.frames_of(first - first_seq, min(last, chunk.rebase.last_seq) + 1 - first_seq)
    rebase, body = chunk.rebase, chunk.body
    low, high = first - rebase.first_seq, min(last, rebase.last_seq) + 1 - rebase.first_seq
    starts = chunk.frame_starts(high)
    if len(starts) <= high or len(body) < HEADER_BYTES:
        page.add_damage(first, "the lengths of the frames do not fit")
        return
    if bytes_wanted is not None:
        high = max(low + 1, bisect_right(starts, starts[low] + bytes_wanted, low, high + 1) - 1)
    number_of_0 = HEADER.unpack_from(body)[_SEQ_FIELD] - rebase.first_seq
    lengths = list(map(sub, starts[low + 1 : high + 1], starts[low:high]))
    frames = Frames(first, body, starts[low:high], lengths)
    page.add_frames(rebase.incarnation & TOPIC_ID_MASK, frames, variant, number_of_0)
