"""A sealed segment moves to the other tier in steps, and can be read after each of them.

1. `copy_segment`: every file is put into the target, synced, and read again from there: each record with its
   checksum, the index, the tags, the dead set. Damage found then leaves the segment where it is.
2. Whoever keeps the entries records the new tier, durably.
3. `delete_copy` takes the old files away.

A crash before 2 leaves a copy that nobody asks for and that the next try replaces; one between 2 and 3
leaves two, which are equal. The dead set may change between 1 and 3: a reader takes the fuller of two.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from topicsd.engine.upkeep.scrub import scrub
from topicsd.segment.entry import DATA, DEAD, INDEX, SUFFIXES, TAGS, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import SegmentStore

Pace = Callable[[int], None]
"""Told of each piece of bytes that was read; waits as long as it likes. What it raises ends the work."""


def unpaced(size: int) -> None:
    pass


def copy_segment(
    source: SegmentStore, target: SegmentStore, name: SegmentName, entry: SegmentEntry, pace: Pace = unpaced
) -> None:
    """Put a sealed segment's files into the target and verify them there; else SegmentDamage."""
    assert entry.is_sealed
    for suffix in suffixes_of(entry):
        key = name.key(suffix)
        # The dead set is replaced past the store.
        source.forget(key)
        try:
            # Behind the length that counts there may be what nobody ever took over.
            size = entry.data_bytes if suffix == DATA else source.size(key)
            target.put(key, partial(_paced_read, source, key, pace), size)
        except FileNotFoundError:
            # Made again from .data in the target, when the copy is verified.
            if suffix not in (INDEX, TAGS):
                raise
    verify_copy(target, name, entry, pace)


def _paced_read(source: SegmentStore, key: str, pace: Pace, offset: int, size: int) -> bytes:
    data = source.read_range(key, offset, size)
    pace(len(data))
    return data


def verify_copy(store: SegmentStore, name: SegmentName, entry: SegmentEntry, pace: Pace = unpaced) -> None:
    """Read a segment whole in this store alone; what is damaged is taken away again."""
    work = scrub(SegmentReader(store, None), name, entry)
    while True:
        try:
            pace(next(work))
        except StopIteration as end:
            if end.value:
                delete_copy(store, name)
                raise end.value[0] from None
            return


def delete_copy(store: SegmentStore, name: SegmentName) -> None:
    """Take a segment's files out of a store, whichever of them are there."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            store.delete(name.key(suffix))


def suffixes_of(entry: SegmentEntry) -> list[str]:
    """The files that a sealed segment has."""
    return [DATA, INDEX, *([TAGS] if entry.has_tags else []), *([DEAD] if entry.dead_count else [])]
