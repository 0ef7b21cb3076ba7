"""Scrub: reading a sealed segment whole, in small parts, to find damage before a reader does.

Derived files (`.idx`, `.tags`) are rebuilt on the way. Damage of `.data` and of `.del` is returned; the good
records around it are checked all the same. The caller waits between the parts, so that the rate is bounded
and other threads get their turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from contextlib import suppress

from topicsd.segment.dead_file import DeadDamage
from topicsd.segment.entry import DEAD, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex
from topicsd.segment.reader import SegmentReader

# A few hundred records, whose checksums take less than a millisecond.
PART_BYTES = 64 << 10

Scrub = Generator[int, None, list[SegmentDamage]]
"""Yields the number of bytes just read; returns the damage."""


def scrub(reader: SegmentReader, name: SegmentName, entry: SegmentEntry) -> Scrub:
    """Read one segment. Errors unrelated to its bytes are raised: retry later."""
    assert entry.is_sealed
    try:
        index = reader.load_index(name, entry)
    except SegmentDamage as damage:
        return [damage]
    yield index.size_bytes
    damages = yield from _scrub_data(reader, name, entry, index)
    # Tags cannot be rebuilt only if .data is damaged, which was just found.
    with suppress(SegmentDamage):
        reader.check_tags(name, entry)
    yield 0
    if entry.dead_count:
        try:
            reader.dead_set(name, entry)
        except (DeadDamage, FileNotFoundError) as error:
            damages.append(SegmentDamage(name, entry.first_seq, entry.last_seq, f"its {DEAD}: {error}"))
    return damages


def _scrub_data(reader: SegmentReader, name: SegmentName, entry: SegmentEntry, index: SegmentIndex) -> Scrub:
    damages: list[SegmentDamage] = []
    seq, last_max = entry.first_seq, entry.last_seq
    while seq <= entry.last_seq:
        last = min(last_max, part_end(index, seq, PART_BYTES))
        last_max = entry.last_seq
        try:
            data, start = reader.frames(name, entry, index, seq, last)
        except SegmentDamage as damage:
            if damage.first_seq > seq:
                # The records before the damage are readable and are checked first.
                last_max = damage.first_seq - 1
            else:
                damages.append(damage)
                seq = damage.last_seq + 1
            continue
        try:
            reader.check_frames(name, index, data, start, seq, last)
            seq = last + 1
        except SegmentDamage as damage:
            damages.append(damage)
            seq = damage.last_seq + 1
        yield len(data)
    return damages


def part_end(index: SegmentIndex, seq: int, size: int) -> int:
    """Return the last seq of a part of at most `size` bytes from `seq` on; at least `seq`."""
    at = seq - index.first_seq
    start = index.offsets[at]
    # The last record that begins within the part may end after it.
    last = bisect_right(index.offsets, start + size, at) - 1
    if last > at and index.offsets[last] + index.lengths[last] > start + size:
        last -= 1
    return index.first_seq + max(at, last)
