"""Rewriting: adjacent sealed segments are written again as one, without their dead records.

A compaction rewrites one segment that is mostly dead. A merge (`merging.py`) rewrites several small ones.

The new files have the first seq of the first segment and one index entry for each seq, like the old ones; a
dead record's entry has length 0. So code that finds records by seq is not affected. They have the next
generation and names of their own. Until a snapshot names them, the old files are the segments, after a crash
too. The next attempt replaces the files of an unfinished one.

They are written into the data directory, wherever the old ones are: a rewritten segment of the object store
is exported again under a new stem.

The dead sets are copied too, so that a segment is read by the same rule whether it was rewritten or not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

import msgspec

from topicsd.engine.upkeep.scrub import PART_BYTES, part_end
from topicsd.engine.upkeep.tiering import Throttle, no_throttle, verify_copy
from topicsd.log.frame import FrameDamage
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, encode_segment_header, parse_segment_header
from topicsd.segment.dead_file import encode_dead, pack_marks
from topicsd.segment.entry import DATA, DEAD, HOT, INDEX, TAGS, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex, encode_entries, encode_footer
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import SegmentStore
from topicsd.segment.tags_file import encode_tags

_FLIP = b"\1" + bytes(255)


def is_worth_rewriting(entry: SegmentEntry) -> bool:
    """Return whether less than half of the bytes are of live records.

    The count of records is not considered: it stays the same when a segment is rewritten.
    """
    frame_bytes = entry.data_bytes - SEGMENT_HEADER_BYTES
    return entry.is_sealed and entry.live_count > 0 and entry.live_bytes * 2 < frame_bytes


class RewriteSource(NamedTuple):
    """A segment to rewrite."""

    name: SegmentName
    entry: SegmentEntry
    dead: bytes | bytearray
    """One byte per record, not zero when it is dead for any reason."""


def rewritten_name(names: Sequence[SegmentName]) -> SegmentName:
    """Return the name of the segment that takes the place of adjacent ones.

    >>> rewritten_name([SegmentName(7, 1, 1, 0), SegmentName(7, 1, 11, 2)])
    SegmentName(topic_id=7, epoch=1, first_seq=1, generation=3)
    """
    return names[0]._replace(generation=1 + max(name.generation for name in names))


def rewrite_segments(
    reader: SegmentReader,
    store: SegmentStore,
    sources: Sequence[RewriteSource],
    complete_to: int,
    throttle: Throttle = no_throttle,
) -> SegmentEntry:
    """Write adjacent segments as one into the data directory and verify it; return its entry, not exported.

    SegmentDamage of a source leaves them unchanged. `complete_to` is the ordinal to which the dead sets are
    complete.
    """
    assert all(one.entry.is_sealed and len(one.dead) == one.entry.count for one in sources)
    assert all(one.entry.last_seq + 1 == other.entry.first_seq for one, other in pairwise(sources))
    name = rewritten_name([one.name for one in sources])
    first, last = sources[0].entry, sources[-1].entry
    indexes = [_load_whole_index(reader, one) for one in sources]
    dead = b"".join(one.dead for one in sources)
    live = dead.translate(_FLIP)
    index = _index_without_dead(indexes, live)
    entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
    tags = _live_tags(reader, sources, live)
    new_entry = msgspec.structs.replace(
        first,
        count=len(dead),
        generation=name.generation,
        tier=HOT,
        object_stem="",
        data_bytes=index.data_end,
        last_ts=last.last_ts,
        has_tags=bool(tags),
        live_count=sum(live),
        live_bytes=sum(index.lengths),
        dead_count=len(dead) - sum(live),
    )
    assert new_entry.live_count
    parts = _live_data(reader, sources, indexes, name.generation, throttle)
    store.put(name.key(DATA), _PartStream(parts).read, new_entry.data_bytes)
    _put(store, name.key(INDEX), entries + encode_footer(entries))
    if tags:
        _put(store, name.key(TAGS), encode_tags(tags, first.first_seq))
    if new_entry.dead_count:
        _put(store, name.key(DEAD), encode_dead(first.first_seq, len(dead), pack_marks(dead), complete_to))
    try:
        verify_copy(store, name, new_entry, throttle)
    except SegmentDamage as damage:
        # The bytes were copied unchecked: the source is damaged, and has the place of the damage.
        source = next(one for one in reversed(sources) if one.entry.first_seq <= damage.first_seq)
        raise SegmentDamage(source.name, damage.first_seq, damage.last_seq, damage.what) from None
    return new_entry


def _load_whole_index(reader: SegmentReader, source: RewriteSource) -> SegmentIndex:
    name, entry = source.name, source.entry
    index = reader.load_index(name, entry)
    if index.has_damage:
        raise SegmentDamage(name, entry.first_seq, entry.last_seq, "a damaged segment is not rewritten")
    return index


def _index_without_dead(indexes: Sequence[SegmentIndex], live: bytes) -> SegmentIndex:
    """Return the same columns as a rebuild from the new .data."""
    lengths, times_ms = array("I"), array("Q")
    for index in indexes:
        lengths += index.lengths
        times_ms += index.times_ms
    lengths = array("I", map(mul, lengths, live))
    offsets = array("I", [*accumulate(lengths, initial=SEGMENT_HEADER_BYTES)][:-1])
    # A dead record gets the time of the live one before it, or of the first live one: times never decrease.
    first_ts = times_ms[live.index(1)]
    times_ms = array("Q", [*accumulate(map(mul, times_ms, live), max, initial=first_ts)][1:])
    flags = bytes(map(mul, b"".join(index.flags for index in indexes), live))
    return SegmentIndex(indexes[0].first_seq, offsets, lengths, times_ms, flags)


def _live_tags(
    reader: SegmentReader, sources: Sequence[RewriteSource], live: bytes
) -> dict[bytes, list[int]]:
    first_seq = sources[0].entry.first_seq
    tags: dict[bytes, list[int]] = {}
    for source in sources:
        for tag, seqs in reader.all_tags(source.name, source.entry).items():
            tags.setdefault(tag, []).extend(seq for seq in seqs if live[seq - first_seq])
    return {tag: seqs for tag, seqs in tags.items() if seqs}


def _live_data(
    reader: SegmentReader,
    sources: Sequence[RewriteSource],
    indexes: Sequence[SegmentIndex],
    generation: int,
    throttle: Throttle,
) -> Iterator[bytes]:
    """Yield the new .data in parts, unchecked: damage is found when the copy is verified."""
    name, entry, _ = sources[0]
    try:
        header = parse_segment_header(reader.header_bytes(name, entry))
    except FrameDamage as damage:
        what = f"its header is damaged: {damage.what}"
        raise SegmentDamage(name, entry.first_seq, entry.last_seq, what) from None
    yield encode_segment_header(header._replace(generation=generation))
    for source, index in zip(sources, indexes, strict=True):
        yield from _live_frames(reader, source, index, throttle)


def _live_frames(
    reader: SegmentReader, source: RewriteSource, index: SegmentIndex, throttle: Throttle
) -> Iterator[bytes]:
    name, entry, dead = source
    live = dead.translate(_FLIP)
    at = live.find(1)
    while at >= 0:
        seq = entry.first_seq + at
        run_end = live.find(0, at)
        last = entry.last_seq if run_end < 0 else entry.first_seq + run_end - 1
        last = min(last, part_end(index, seq, PART_BYTES))
        data, _ = reader.frames(name, entry, index, seq, last)
        throttle(len(data))
        yield data
        at = live.find(1, last + 1 - entry.first_seq)


class _PartStream:
    """A stream of parts with the read interface of a store: by offset, from start to end."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""
        self._offset = 0

    def read(self, offset: int, size: int) -> bytes:
        assert offset == self._offset, "a store reads its input in order"
        if not self._rest:
            self._rest = next(self._parts, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        self._offset += len(data)
        return data


def _put(store: SegmentStore, key: str, data: bytes) -> None:
    store.put(key, lambda offset, size: data[offset : offset + size], len(data))
