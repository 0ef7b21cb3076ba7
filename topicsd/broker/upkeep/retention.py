"""Retention of shared topics: what their limits remove from the front, by `trim`.

T1  A record is never removed too early. It is removed with its extent, when the last record of that was
    committed for the TTL, by the clock of the catalog. So it may live longer, by the time that its extent
    spans, which compaction keeps below SPAN_PARTS-th of the TTL, and by the time until the next visit.
T2  `cap_records` is exact at each visit. `cap_bytes` counts frames, and keeps at least that many bytes: more
    by at most one extent, or a SIZE_PARTS-th of the cap.
T3  The size of each extent is read once in the life of a process, and kept as sums of bounded number.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topicsd.broker.frames_v1 import SEGMENT_V1
from topicsd.broker.segment_v1 import frame_bytes_of
from topicsd.broker.shared_config import SharedTopicConfig, decode_shared_config
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.stages import Staged
from topicsd.catalog.shared.shared_catalog import EXTENTS_AT_ONCE, SharedCatalog, SharedExtent, SharedTopic

SPAN_PARTS: Final = 10
SIZE_PARTS: Final = 256
SIZED_TOPICS_MAX: Final = 10_000
"""Topics with `cap_bytes` whose sizes are kept; others are read again."""
_NO_LIMITS: Final = SharedTopicConfig()

logger = logging.getLogger("topicsd.broker")


class Retained(NamedTuple):
    topic: SharedTopic | None
    """The topic after a trim; None when it was deleted."""
    records: int
    """The records that were removed."""
    due_ms: int | None
    """When the TTL removes records next, by the clock of the catalog, if no more are written."""


def limits_of(topic: SharedTopic) -> SharedTopicConfig:
    """Return the configuration, without limits if it cannot be read: then nothing is removed."""
    try:
        return decode_shared_config(topic.config)
    except msgspec.MsgspecError as error:
        logger.warning("retention: configuration cannot be read: %s  topic=%s", error, topic.name)
        return _NO_LIMITS


class Retention:
    def __init__(self, catalog: SharedCatalog) -> None:
        self._catalog = catalog
        self._sizes: OrderedDict[tuple[str, int], _Sizes] = OrderedDict()

    def apply(self, topic: SharedTopic, now_ms: int) -> BlockingSteps[Retained]:
        """Remove what the limits of a topic do not keep; `now_ms` is by the clock of the catalog."""
        limits = limits_of(topic)
        to_seq = topic.first_seq - 1
        due_ms: int | None = None
        if limits.cap_records:
            to_seq = max(to_seq, topic.head - limits.cap_records)
        if limits.ttl_ms:
            expired_to, due_ms = yield from self._expired(topic, now_ms - limits.ttl_ms)
            to_seq = max(to_seq, expired_to)
            due_ms = None if due_ms is None else due_ms + limits.ttl_ms
        if limits.cap_bytes:
            to_seq = max(to_seq, (yield from self._over_cap(topic, limits.cap_bytes)))
        if to_seq < topic.first_seq:
            return Retained(topic, 0, due_ms)
        trim = partial(self._catalog.trim, topic.name, topic.incarnation, to_seq, "evicted")
        trimmed: SharedTopic | None = yield Staged("trim", trim)
        records = 0 if trimmed is None else trimmed.first_seq - topic.first_seq
        return Retained(trimmed, records, due_ms)

    def _expired(self, topic: SharedTopic, before_ms: int) -> BlockingSteps[tuple[int, int | None]]:
        """Return the last seq of the extents up to `before_ms`, and the time of the first one after it."""
        seq = topic.first_seq
        while seq <= topic.head:
            page = yield from self._extents(topic, seq)
            for extent in page:
                if extent.created_ms > before_ms:
                    return seq - 1, extent.created_ms
                seq = extent.last_seq + 1
            if not page:
                break
        return seq - 1, None

    def _over_cap(self, topic: SharedTopic, cap_bytes: int) -> BlockingSteps[int]:
        """Return the last seq before those whose frames fill the cap."""
        key = topic.name, topic.incarnation
        sizes = self._sizes.pop(key, None) or _Sizes(topic.first_seq)
        self._sizes[key] = sizes
        if len(self._sizes) > SIZED_TOPICS_MAX:
            self._sizes.popitem(last=False)
        while sizes.next_seq <= topic.head:
            page = yield from self._extents(topic, sizes.next_seq)
            for extent in page:
                sizes.add(extent, max(1, cap_bytes // SIZE_PARTS))
            if not page:
                break
        return sizes.drop_before(topic.first_seq, cap_bytes)

    def _extents(self, topic: SharedTopic, seq: int) -> BlockingSteps[list[SharedExtent]]:
        lookup = partial(self._catalog.extents_from, topic.name, seq, EXTENTS_AT_ONCE)
        extents: list[SharedExtent] = yield Staged("lookup", lookup)
        return extents


class _Sizes:
    """The bytes of the frames of one topic, as sums of extents that follow each other."""

    def __init__(self, first_seq: int) -> None:
        self.next_seq = first_seq
        self._sums: deque[tuple[int, int]] = deque()
        """Last seq and bytes."""
        self._total = 0

    def add(self, extent: SharedExtent, sum_bytes: int) -> None:
        """Add an extent to the last sum, if that stays below `sum_bytes`."""
        size = _frame_bytes(extent)
        if self._sums and self._sums[-1][1] + size <= sum_bytes:
            self._sums[-1] = extent.last_seq, self._sums[-1][1] + size
        else:
            self._sums.append((extent.last_seq, size))
        self._total += size
        self.next_seq = extent.last_seq + 1

    def drop_before(self, first_seq: int, cap_bytes: int) -> int:
        """Drop what was removed and what exceeds the cap; return the last seq of that."""
        to_seq = first_seq - 1
        while self._sums:
            last_seq, size = self._sums[0]
            if last_seq >= first_seq and self._total - size < cap_bytes:
                break
            self._sums.popleft()
            self._total -= size
            to_seq = max(to_seq, last_seq)
        return to_seq


def _frame_bytes(extent: SharedExtent) -> int:
    if extent.encoding == SEGMENT_V1:
        return frame_bytes_of(extent.last_seq - extent.first_seq + 1, extent.byte_length)
    return extent.byte_length
