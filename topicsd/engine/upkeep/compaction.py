"""Compaction: a mostly dead sealed segment is written again without its dead records.

The new files have the same first seq and one index entry for each seq, like the old ones; a dead record's
entry has length 0. So code that finds records by seq is not affected. They have the next generation and names
of their own. Until a snapshot names them, the old files are the segment, after a crash too. The next attempt
replaces the files of an unfinished one.

They are written into the data directory, wherever the old ones are: a rewritten segment of the object store
is exported again under a new stem.

The dead set is copied too, so that a segment is read by the same rule whether it was compacted or not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from operator import mul

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


def rewrite_segment(
    reader: SegmentReader,
    store: SegmentStore,
    name: SegmentName,
    entry: SegmentEntry,
    dead: bytes | bytearray,
    complete_to: int,
    throttle: Throttle = no_throttle,
) -> SegmentEntry:
    """Write the next generation into the data directory and verify it; return its entry, not exported.

    SegmentDamage leaves the segment unchanged. `dead` has one byte per record, not zero when it is dead for
    any reason; `complete_to` is the ordinal to which the dead set is complete.
    """
    assert entry.is_sealed
    assert len(dead) == entry.count
    live = dead.translate(_FLIP)
    index = reader.load_index(name, entry)
    if index.has_damage:
        raise SegmentDamage(name, entry.first_seq, entry.last_seq, "a damaged segment is not compacted")
    new_name = name._replace(generation=name.generation + 1)
    new_index = _index_without_dead(index, live)
    entries = encode_entries(new_index.offsets, new_index.lengths, new_index.times_ms, new_index.flags)
    tags = _live_tags(reader, name, entry, live)
    new_entry = msgspec.structs.replace(
        entry,
        generation=new_name.generation,
        tier=HOT,
        object_stem="",
        data_bytes=new_index.data_end,
        has_tags=bool(tags),
        live_count=sum(live),
        live_bytes=sum(new_index.lengths),
        dead_count=entry.count - sum(live),
    )
    assert new_entry.live_count
    parts = _live_data(reader, name, entry, index, live, throttle)
    store.put(new_name.key(DATA), _PartStream(parts).read, new_entry.data_bytes)
    _put(store, new_name.key(INDEX), entries + encode_footer(entries))
    if tags:
        _put(store, new_name.key(TAGS), encode_tags(tags, entry.first_seq))
    if new_entry.dead_count:
        bitmap = pack_marks(dead)
        _put(store, new_name.key(DEAD), encode_dead(entry.first_seq, entry.count, bitmap, complete_to))
    try:
        verify_copy(store, new_name, new_entry, throttle)
    except SegmentDamage as damage:
        raise SegmentDamage(name, damage.first_seq, damage.last_seq, damage.what) from None
    return new_entry


def _index_without_dead(index: SegmentIndex, live: bytes | bytearray) -> SegmentIndex:
    """Return the same columns as a rebuild from the new .data."""
    lengths = array("I", map(mul, index.lengths, live))
    offsets = array("I", [*accumulate(lengths, initial=SEGMENT_HEADER_BYTES)][:-1])
    # A dead record gets the time of the live one before it, or of the first live one: times never decrease.
    first_ts = index.times_ms[live.index(1)]
    times_ms = array("Q", [*accumulate(map(mul, index.times_ms, live), max, initial=first_ts)][1:])
    flags = bytes(map(mul, index.flags, live))
    return SegmentIndex(index.first_seq, offsets, lengths, times_ms, flags)


def _live_tags(
    reader: SegmentReader, name: SegmentName, entry: SegmentEntry, live: bytes | bytearray
) -> dict[bytes, list[int]]:
    first_seq = entry.first_seq
    tags = {
        tag: [seq for seq in seqs if live[seq - first_seq]]
        for tag, seqs in reader.all_tags(name, entry).items()
    }
    return {tag: seqs for tag, seqs in tags.items() if seqs}


def _live_data(
    reader: SegmentReader,
    name: SegmentName,
    entry: SegmentEntry,
    index: SegmentIndex,
    live: bytes | bytearray,
    throttle: Throttle,
) -> Iterator[bytes]:
    """Yield the new .data in parts, unchecked: damage is found when the copy is verified."""
    try:
        header = parse_segment_header(reader.header_bytes(name, entry))
    except FrameDamage as damage:
        what = f"its header is damaged: {damage.what}"
        raise SegmentDamage(name, entry.first_seq, entry.last_seq, what) from None
    yield encode_segment_header(header._replace(generation=name.generation + 1))
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
