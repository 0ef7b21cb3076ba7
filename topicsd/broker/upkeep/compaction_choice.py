"""The choice of what to compact: a pure function of the extents of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topicsd.broker.frames_v1 import SEGMENT_V1
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedExtent

OBJECT_BYTES_MAX: Final = 64 << 20
EXTENTS_MIN: Final = 2
EXTENTS_MAX: Final = 4096
AGAIN_MIN: Final = 8
"""Compacted objects that are merged again."""
LEASE_MS: Final = 120_000


class CompactorLimits(NamedTuple):
    object_bytes: int = OBJECT_BYTES_MAX
    extents_min: int = EXTENTS_MIN
    extents_max: int = EXTENTS_MAX
    """Slices of one object: each is a request to the store."""
    wait_ms: int = 0
    """How long old slices wait for others, so that a slow topic gets few objects."""
    lease_ms: int = LEASE_MS


def extents_to_merge(
    extents: Sequence[SharedExtent], now_ms: int, limits: CompactorLimits, span_ms: int = 0
) -> list[SharedExtent]:
    """Return the first extents, as many as make one object; none if that is not worth an object.

    `extents` begin with the first one that is not compacted. Those younger than REPEATED_MS may not be
    compacted (C7), and `now_ms` is the present time of the catalog, or earlier. `span_ms` is the longest time
    between the first and the last one; 0 is no limit.

    >>> def wal(first, last, size, created):
    ...     return SharedExtent(first, last, "WAL", f"blob-{first}", "frames-v1", 0, size, created)
    >>> one, two, three = extents = wal(1, 4, 100, 0), wal(5, 5, 100, 10), wal(6, 9, 100, 20)
    >>> def chosen(extents, now_ms, span_ms=0, **limits):
    ...     merged = extents_to_merge(extents, REPEATED_MS + now_ms, CompactorLimits(**limits), span_ms)
    ...     return [extent.first_seq for extent in merged]
    >>> chosen(extents, 10), chosen(extents, 20, object_bytes=250), chosen([one], 20)
    ([1, 5], [1, 5], [])
    >>> chosen(extents, 20, wait_ms=1000), chosen(extents, 20, wait_ms=1000, object_bytes=250)
    ([], [1, 5])
    >>> chosen(extents, 1000, wait_ms=1000), chosen(extents, 20, 10), chosen(extents, 20, object_bytes=150)
    ([1, 5, 6], [1, 5], [1])
    """
    chosen: list[SharedExtent] = []
    size = 0
    is_full = False
    for extent in extents:
        is_next = not chosen or extent.first_seq == chosen[-1].last_seq + 1
        if extent.type != "WAL" or extent.created_ms > now_ms - REPEATED_MS or not is_next:
            break
        is_full = bool(chosen) and (
            size + extent.byte_length > limits.object_bytes
            or len(chosen) == limits.extents_max
            or 0 < span_ms < extent.created_ms - chosen[0].created_ms
        )
        if is_full:
            break
        chosen.append(extent)
        size += extent.byte_length
    if is_full:
        # Also a single one, which would stop those after it.
        return chosen
    has_waited = bool(chosen) and chosen[0].created_ms <= now_ms - REPEATED_MS - limits.wait_ms
    return chosen if has_waited and len(chosen) >= limits.extents_min else []


def extents_to_merge_again(
    extents: Sequence[SharedExtent], limits: CompactorLimits, span_ms: int = 0
) -> list[SharedExtent]:
    """Return the first compacted extents that are worth one object: at least AGAIN_MIN, none more than half.

    So each merge at least doubles the object of a record, and a record is copied a logarithmic number of
    times. `span_ms` is the longest time between the first and the last record of an object; 0 is no limit.
    The first record of an extent is not older than the extent before it, so the first extent of all is not
    merged when there is a limit.

    >>> def compacted(first, size, created=0, encoding=SEGMENT_V1):
    ...     return SharedExtent(first, first, "COMPACTED", f"object-{first}", encoding, 0, size, created)
    >>> def chosen(sizes, span_ms=0, **limits):
    ...     extents = [compacted(first, size, 10 * first) for first, size in enumerate(sizes, 1)]
    ...     merged = extents_to_merge_again(extents, CompactorLimits(**limits), span_ms)
    ...     return [extent.first_seq for extent in merged]
    >>> chosen([1] * 7), chosen([1] * 8), chosen([8] + [1] * 8), chosen([8] + [1] * 7)
    ([], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9], [])
    >>> chosen([9] * 3 + [1] * 8 + [9] * 3, object_bytes=20), chosen([1] * 12, span_ms=80)
    ([4, 5, 6, 7, 8, 9, 10, 11], [2, 3, 4, 5, 6, 7, 8, 9])
    >>> chosen([1] * 12, span_ms=70)
    []
    """
    for start in range(len(extents)):
        chosen: list[SharedExtent] = []
        size = largest = count = 0
        began_ms = extents[start - 1].created_ms if start else None
        for extent in extents[start:]:
            is_next = not chosen or extent.first_seq == chosen[-1].last_seq + 1
            is_segment = extent.type == "COMPACTED" and extent.encoding == SEGMENT_V1
            is_full = size + extent.byte_length > limits.object_bytes or len(chosen) == limits.extents_max
            is_long = span_ms > 0 and (began_ms is None or extent.created_ms - began_ms > span_ms)
            if not (is_next and is_segment) or is_full or is_long:
                break
            chosen.append(extent)
            size += extent.byte_length
            largest = max(largest, extent.byte_length)
            if len(chosen) >= AGAIN_MIN and 2 * largest <= size:
                count = len(chosen)
        if count:
            return chosen[:count]
    return []
