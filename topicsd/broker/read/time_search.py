"""The search for a time in a shared topic: extents by the times of their first records, then records.

The times of extents are not used: a compaction gives its extent the time at which it was made. A time is
that of a frame whose checksum is right. A record or an extent without one counts as not older, so damage
leads to too many records, and never to too few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shared.runtime.retries import Retries
from topicsd.broker.frames_v1 import (
    SEGMENT_V1,
    TOPIC_ID_MASK,
    OtherTopic,
    Rebase,
    UnknownEncoding,
    decode_frames,
)
from topicsd.broker.segment_v1 import SegmentParts
from topicsd.broker.steps import Pool, Wait
from topicsd.catalog.shared.shared_catalog import SharedCatalog, SharedExtent, SharedTopic
from topicsd.log.frame import HEADER_BYTES, LEN_BYTES, U32, FrameDamage, FrameType, parse_frame
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES
from topicsd.store.block_cache import BlockCache
from topicsd.store.create_object import repeat_request

TRIES_MAX: Final = 4
"""Searches, when objects vanish between lookup and GET."""


class TimeSearch:
    def __init__(
        self, catalog: SharedCatalog, pool: Pool, blocks: BlockCache, retries: Callable[[], Retries]
    ) -> None:
        self._catalog = catalog
        self._pool = pool
        self._blocks = blocks
        self._retries = retries
        self._parts = SegmentParts()

    def position_at(self, topic: SharedTopic, head: int, ts: int) -> Wait:
        """Wait for the seq before the first record that is not older than `ts`; `head` if all are older.

        It asks the catalog and the store for one extent in each step of a binary search.
        """
        return self._pool.call(partial(self._search, topic, head, ts))

    def _search(self, topic: SharedTopic, head: int, ts: int) -> int:
        for _ in range(TRIES_MAX - 1):
            try:
                return self._search_once(topic, head, ts)
            except FileNotFoundError:
                # Compacted, or trimmed, since the lookup.
                continue
        return self._search_once(topic, head, ts)

    def _search_once(self, topic: SharedTopic, head: int, ts: int) -> int:
        older: SharedExtent | None = None
        low, high = topic.first_seq, head + 1
        # The extents before `low` begin with older records, those from `high` on do not.
        while low < high:
            middle = (low + high) // 2
            extents = self._catalog.extents_from(topic.name, middle, 1)
            if extents and self._is_older(topic, extents[0], ts):
                older = extents[0]
                low = older.last_seq + 1
            else:
                high = max(low, min(middle, extents[0].first_seq)) if extents else middle
        first = low if older is None else self._first_not_older(topic, older, ts)
        return max(first, topic.first_seq) - 1

    def _is_older(self, topic: SharedTopic, extent: SharedExtent, ts: int) -> bool:
        """Return whether the first record of an extent is intact, and older than `ts`."""
        start = SEGMENT_HEADER_BYTES if extent.encoding == SEGMENT_V1 else 0
        header = self._read(extent, start + HEADER_BYTES)
        if len(header) < start + HEADER_BYTES:
            return False
        stop = start + LEN_BYTES + U32.unpack_from(header, start)[0]
        return stop <= extent.byte_length and _is_older(
            self._read(extent, stop)[start:], topic.incarnation, ts
        )

    def _first_not_older(self, topic: SharedTopic, extent: SharedExtent, ts: int) -> int:
        """Return the first seq of an extent whose record is not older, or the seq after the extent."""
        rebase = Rebase(topic.incarnation, extent.first_seq, extent.last_seq)
        if extent.encoding == SEGMENT_V1:
            return self._first_in_segment(extent, rebase, ts)
        body = self._read(extent, extent.byte_length)
        try:
            decoded = decode_frames(body, rebase, encoding=extent.encoding)
        except (OtherTopic, UnknownEncoding):
            return extent.first_seq
        return next((one.seq for one in decoded.records if one.ts >= ts), extent.last_seq + 1)

    def _first_in_segment(self, extent: SharedExtent, rebase: Rebase, ts: int) -> int:
        """Search a compacted object, by a part with one record in each step."""

        def read(offset: int, size: int) -> bytes:
            return repeat_request(partial(self._blocks.read, extent.key, offset, size), self._retries())

        low, high = extent.first_seq, extent.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            part = self._parts.read(read, extent.key, rebase, extent.byte_length, middle, 1)
            body = b"" if part is None else part.body
            if _is_older(body, rebase.incarnation, ts):
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, extent: SharedExtent, byte_length: int) -> bytes:
        read = partial(self._blocks.read, extent.key, extent.byte_offset, byte_length)
        return repeat_request(read, self._retries())


def _is_older(frame: bytes, incarnation: int, ts: int) -> bool:
    """Return whether these bytes are an intact record of the topic, which is older than `ts`."""
    try:
        parsed = parse_frame(frame, 0, len(frame))
    except FrameDamage:
        return False
    is_record = parsed.type == FrameType.APPEND and parsed.topic_id == incarnation & TOPIC_ID_MASK
    return is_record and parsed.ts < ts
