"""The choice of what to compact: a pure function of the extents of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedExtent

OBJECT_BYTES_MAX: Final = 64 << 20
EXTENTS_MIN: Final = 2


def extents_to_merge(
    extents: Sequence[SharedExtent], now_ms: int, bytes_max: int, extents_min: int
) -> list[SharedExtent]:
    """Return the first extents, as many as make one object; none if that is not worth an object.

    `extents` begin with the first one that is not compacted. Those younger than REPEATED_MS may not be
    compacted (C7), and `now_ms` is the present time of the catalog, or earlier.

    >>> def wal(first, last, size, created):
    ...     return SharedExtent(first, last, "WAL", f"blob-{first}", "frames-v1", 0, size, created)
    >>> one, two, three = wal(1, 4, 100, 0), wal(5, 5, 100, 10), wal(6, 9, 100, 20)
    >>> [e.first_seq for e in extents_to_merge([one, two, three], REPEATED_MS + 10, 1000, 2)]
    [1, 5]
    >>> [e.first_seq for e in extents_to_merge([one, two, three], REPEATED_MS + 20, 250, 2)]
    [1, 5]
    >>> extents_to_merge([one], REPEATED_MS + 20, 1000, 2)
    []
    """
    chosen: list[SharedExtent] = []
    size = 0
    for extent in extents:
        is_next = not chosen or extent.first_seq == chosen[-1].last_seq + 1
        if extent.type != "WAL" or extent.created_ms > now_ms - REPEATED_MS or not is_next:
            break
        if chosen and size + extent.byte_length > bytes_max:
            break
        chosen.append(extent)
        size += extent.byte_length
    return chosen if len(chosen) >= extents_min else []
