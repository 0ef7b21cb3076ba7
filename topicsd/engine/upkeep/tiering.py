"""Tiering: a sealed segment moves to the other tier in steps, and is readable after each of them.

1. `copy_segment`: every file is put into the target, synced, and read again from there: each record with its
   checksum, the index, the tags, the dead set. If damage is found, the segment is not moved.
2. The caller records the new tier durably in the segment's entry.
3. `delete_copy` deletes the old files.

A crash before 2 leaves an unused copy that the next attempt replaces; a crash between 2 and 3 leaves two
equal copies. The dead set may change between 1 and 3: a reader uses the one with more dead records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from topicsd.engine.upkeep.scrub import scrub
from topicsd.segment.entry import DATA, DEAD, INDEX, SUFFIXES, TAGS, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import SegmentStore

Throttle = Callable[[int], None]
"""Called with the size of each read; may wait to limit the rate. An exception ends the work."""


def no_throttle(size: int) -> None:
    pass


def copy_segment(
    source: SegmentStore,
    target: SegmentStore,
    name: SegmentName,
    entry: SegmentEntry,
    throttle: Throttle = no_throttle,
) -> None:
    """Copy a sealed segment's files to the target and verify them there, or raise SegmentDamage."""
    assert entry.is_sealed
    for suffix in suffixes_of(entry):
        key = name.key(suffix)
        # The dead set is replaced without the store, so its open file may be outdated.
        source.forget(key)
        try:
            # There may be unused bytes after the valid length.
            size = entry.data_bytes if suffix == DATA else source.size(key)
            target.put(key, partial(_throttled_read, source, key, throttle), size)
        except FileNotFoundError:
            # Rebuilt from .data in the target, when the copy is verified.
            if suffix not in (INDEX, TAGS):
                raise
    verify_copy(target, name, entry, throttle)


def _throttled_read(source: SegmentStore, key: str, throttle: Throttle, offset: int, size: int) -> bytes:
    data = source.read_range(key, offset, size)
    throttle(len(data))
    return data


def verify_copy(
    store: SegmentStore, name: SegmentName, entry: SegmentEntry, throttle: Throttle = no_throttle
) -> None:
    """Read a segment whole from this store alone; if it is damaged, delete it and raise."""
    work = scrub(SegmentReader(store, None), name, entry)
    while True:
        try:
            throttle(next(work))
        except StopIteration as end:
            if end.value:
                delete_copy(store, name)
                raise end.value[0] from None
            return


def delete_copy(store: SegmentStore, name: SegmentName) -> None:
    """Delete those of a segment's files that exist in the store."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            store.delete(name.key(suffix))


def suffixes_of(entry: SegmentEntry) -> list[str]:
    """Return the suffixes of the files that a sealed segment has."""
    return [DATA, INDEX, *([TAGS] if entry.has_tags else []), *([DEAD] if entry.dead_count else [])]
