"""Pages of a shared topic: its frames are rendered to JSON once, as those of a local topic.

The pages are in the page cache of the process, by name and incarnation. A page grows at its end from the
chunks of the tail cache, or from those that a read has fetched. If the chunks before the first wanted record
are not at hand, the page is made for one reader, as is a page of large records or with damage. A damaged
chunk is decoded as a whole, which takes long: on a thread, and once for an answer (`DamagedChunks`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter, sub
from struct import Struct
from typing import Final

from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TagFilter
from topicsd.broker.frames_v1 import TOPIC_ID_MASK, DamagedSeqs, Decoded, Rebase, decode_frames
from topicsd.broker.read.tail_cache import FRAME_BYTES_MIN, TailChunk
from topicsd.engine.read.fill_page import KEPT_BYTES_MAX
from topicsd.engine.read.page import PAGE_RECORDS, Frames, Page, Variant, render_record
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.read.page_slices import PAGES_MAX, PageSlices
from topicsd.log.frame import CHECKSUM_BYTES, HEADER, HEADER_BYTES, LEN_BYTES, U64, xxh3

FindChunk = Callable[[int], TailChunk | None]
"""Returns the chunk that holds a seq."""

DECODED_CHUNKS_MAX: Final = 2
"""Damaged chunks that stay decoded for the next reads; each has at most the bytes of a blob."""
FILTERED_PAGES_MAX: Final = 64
"""Pages of one step of a read with a filter, which looks at each frame: 4096 records, about 3 ms."""
SPARSE_MAX: Final = 8
"""A page with at most this many selected records is not rendered for them."""
# The lengths of node and tag, which the header has before that of the payload.
_LENGTHS_AT: Final = HEADER_BYTES - 8
_unpack_lengths: Final = Struct("<HH").unpack_from
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
        "_match",
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
        self._match = options.match
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
        pages_max = PAGES_MAX if self._match is None else FILTERED_PAGES_MAX
        while self.cursor < stop and self.count < self.limit and page_count < pages_max:
            first = self.cursor + 1
            last = min(stop, first | (PAGE_RECORDS - 1))
            if self._match is not None:
                page_count += 1
                if not self._take_selected(self._match, first, last):
                    return
                continue
            page = self._page(first, last)
            if page is None:
                self.missing_seq = 0 if self.undecoded is not None else first
                return
            page_count += 1
            if not self.take(page, first, min(last, page.next_seq - 1)):
                return

    def _take_selected(self, match: TagFilter, first: int, last: int) -> bool:
        """Take the records that a filter selects, of one page; return False at a bound, or without them."""
        chunk = self._find(first)
        if chunk is None:
            self.missing_seq = first
            return False
        last = min(last, chunk.rebase.last_seq)
        selected = _selected_in(chunk, first, last, match)
        if selected is None:
            page = self._damaged_page(chunk, first, last)
            if page is None:
                return False
            seqs = [seq for seq in range(first, last + 1) if self._is_selected(chunk, seq, match)]
            is_taken = self.take_seqs(page, seqs)
        elif len(selected) <= SPARSE_MAX:
            is_taken = not selected or self._take_few(chunk, selected)
        else:
            page = self._page(first, last)
            if page is None:
                self.missing_seq = 0 if self.undecoded is not None else first
                return False
            last = min(last, page.next_seq - 1)
            is_taken = self.take_seqs(page, [seq for seq in selected if seq <= last])
        if is_taken:
            self.cursor = last
        return is_taken

    def _take_few(self, chunk: TailChunk, seqs: Sequence[int]) -> bool:
        page = Page(seqs[0])
        rebase, body = chunk.rebase, chunk.body
        starts = chunk.frame_starts(seqs[-1] + 1 - rebase.first_seq)
        places = [seq - rebase.first_seq for seq in seqs]
        lengths = [starts[at + 1] - starts[at] for at in places]
        frames = Frames(seqs[0], body, [starts[at] for at in places], lengths)
        number_of_0 = HEADER.unpack_from(body)[_SEQ_FIELD] - rebase.first_seq
        topic_id = rebase.incarnation & TOPIC_ID_MASK
        return self.take_texts(page, seqs, page.render(topic_id, seqs, frames, self.variant, number_of_0))

    def _is_selected(self, chunk: TailChunk, seq: int, match: TagFilter) -> bool:
        """Return whether a filter selects a record of a damaged chunk; a damaged one may be selected."""
        decoded = self._damaged.find(chunk)
        assert decoded is not None
        at = bisect_left(decoded.records, seq, key=_seq_of)
        if at == len(decoded.records) or decoded.records[at].seq != seq:
            return True
        return match.selects(decoded.records[at].tag.decode())

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


def _selected_in(chunk: TailChunk, first: int, last: int, match: TagFilter) -> list[int] | None:
    """Return the seqs that a filter selects, or None when a frame is damaged, whose tag is unknown."""
    base, body = chunk.rebase.first_seq, chunk.body
    low, high = first - base, last + 1 - base
    if chunk.texts is not None or high <= chunk.plain_count:
        return []  # Nothing but JSON: no tags.
    starts = chunk.frame_starts(high)
    if len(starts) <= high or len(body) < HEADER_BYTES:
        return None
    seqs: list[int] = []
    for at in range(low, high):
        start, end = starts[at], starts[at + 1]
        if end - start < FRAME_BYTES_MIN:
            return None
        node_len, tag_len = _unpack_lengths(body, start + _LENGTHS_AT)
        if U64.unpack_from(body, end - CHECKSUM_BYTES)[0] != xxh3(
            body[start + LEN_BYTES : end - CHECKSUM_BYTES]
        ):
            return None
        if tag_len:
            tag_at = start + HEADER_BYTES + node_len
            if match.selects(body[tag_at : tag_at + tag_len].decode()):
                seqs.append(base + at)
    return seqs


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
