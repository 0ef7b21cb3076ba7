"""The compactor: merges the first extents of a topic that are still parts of blobs into one object.

A blob holds records of many topics, so a reader of one topic needs a request for each blob. After a
compaction it needs one for many of them, and the blobs that no extent refers to are left for vacuum.

M1  The steps are claim, read, put, begin, finish, release. Each is safe to repeat, and any compactor may
    finish what another one has begun. Overlapping compactions are refused by the catalog, also when a claim
    was lost in between.
M2  The object has exactly the records of its range, byte for byte but for their numbers, as a segment
    (`topicsd/broker/segment_v1.py`). A slice that is damaged is not merged: the range ends before it. As the
    first slice it gets an object alone, as it is, so that it stops nothing; readers report the damage (F2).
M3  The object is put before the catalog names it (R3). One that the catalog refuses is an orphan.
M4  Memory is bounded by the bytes of one object.

The steps are a generator: it yields the blocking calls, and a test runs it call by call.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.retries import Retries
from topicsd.broker.frames_v1 import FRAMES_V1, SEGMENT_V1, OtherTopic, Rebase
from topicsd.broker.segment_v1 import SegmentBuilder
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.compaction_choice import EXTENTS_MIN, OBJECT_BYTES_MAX, extents_to_merge
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    SharedCatalog,
    SharedExtent,
    SharedTopic,
)
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectStore

COMPACTED: Final = "llog/compacted"
"""The folder of compacted objects; the key begins with random characters, like those of blobs."""
LEASE_MS: Final = 120_000


class CompactorLimits(NamedTuple):
    object_bytes: int = OBJECT_BYTES_MAX
    extents_min: int = EXTENTS_MIN
    lease_ms: int = LEASE_MS


class CompactionReport(NamedTuple):
    """What one run for one topic did."""

    outcome: str
    """`merged`, `nothing`, `busy`, `no topic`, `refused` or `claim lost`."""
    extents: int = 0
    byte_count: int = 0


class Compactor:
    def __init__(
        self,
        name: str,
        store: ObjectStore,
        catalog: SharedCatalog,
        retries: Callable[[], Retries],
        limits: CompactorLimits,
    ) -> None:
        self._name = name
        self._store = store
        self._catalog = catalog
        self._retries = retries
        self._limits = limits

    def compact(self, name: str) -> BlockingSteps[CompactionReport]:
        """Finish what was begun, then merge extents of a topic once."""
        claim: Claim | None = yield partial(self._catalog.claim, name, self._name, self._limits.lease_ms)
        if claim is None:
            return CompactionReport("busy")
        report = yield from self._merge(claim)
        # After an OSError the claim ends with its lease.
        yield partial(self._catalog.release, claim)
        return report

    def _merge(self, claim: Claim) -> BlockingSteps[CompactionReport]:
        name, catalog = claim.topic, self._catalog
        yield partial(catalog.finish_compaction, name)
        (topic,) = yield partial(catalog.topics, [name])
        if topic is None:
            return CompactionReport("no topic")
        present: list[SharedExtent] = yield partial(
            catalog.extents_from, name, topic.compacted_to + 1, EXTENTS_AT_ONCE
        )
        limits = self._limits
        chosen = extents_to_merge(present, claim.claimed_ms, limits.object_bytes, limits.extents_min)
        if not chosen:
            return CompactionReport("nothing")
        merged = yield from self._read_whole(chosen, topic)
        if merged is None:
            return CompactionReport("nothing")
        extent = merged.extent
        yield lambda: create_object(self._store, extent.key, merged.parts, self._retries())
        compaction = Compaction(secrets.token_hex(16), name, topic.incarnation, extent)
        refusal: str | None = yield partial(self._begin, claim, compaction)
        if refusal is not None:
            return CompactionReport(refusal)
        yield partial(catalog.finish_compaction, name)
        return CompactionReport("merged", merged.extents, extent.byte_length)

    def _read_whole(self, chosen: Sequence[SharedExtent], topic: SharedTopic) -> BlockingSteps[_Merged | None]:
        """Read slices up to the first one that is damaged or missing, and make the object of them (M2)."""
        builder = SegmentBuilder(topic.incarnation, chosen[0].first_seq)
        count = 0
        damaged: bytes | None = None
        for extent in chosen:
            body: bytes | None = yield partial(self._read, extent)
            if body is None or extent.encoding != FRAMES_V1:
                break
            # On the thread, too: it takes long for the event loop.
            if not (yield partial(_add, builder, body, extent, topic)):
                damaged = body
                break
            count += 1
        if count >= self._limits.extents_min:
            parts: list[bytes] = yield builder.parts
            return _Merged(_compacted(chosen[:count], SEGMENT_V1, parts), parts, count)
        # Again, since bytes may also be damaged on their way.
        if damaged is not None and count == 0 and (yield partial(self._read, chosen[0])) == damaged:
            return _Merged(_compacted(chosen[:1], FRAMES_V1, [damaged]), [damaged], 1)
        return None

    def _begin(self, claim: Claim, compaction: Compaction) -> str | None:
        """Let the catalog name the object; return why it refuses."""
        try:
            self._catalog.begin_compaction(claim, compaction)
        except CompactionRefused:
            return "refused"
        except ClaimLost:
            return "claim lost"
        return None

    def _read(self, extent: SharedExtent) -> bytes | None:
        """Return the body of an extent; None when another compactor, or a trim, has removed it."""
        read = partial(self._store.read, extent.key, extent.byte_offset, extent.byte_length)
        try:
            return repeat_request(read, self._retries())
        except FileNotFoundError:
            return None


class _Merged(NamedTuple):
    """An object that is to be put, and the number of extents that it replaces."""

    extent: SharedExtent
    parts: list[bytes]
    extents: int


def _compacted(chosen: Sequence[SharedExtent], encoding: str, parts: Sequence[bytes]) -> SharedExtent:
    first, last = chosen[0], chosen[-1]
    key = f"{COMPACTED}/{secrets.token_hex(16)}"
    size = sum(map(len, parts))
    return SharedExtent(first.first_seq, last.last_seq, "COMPACTED", key, encoding, 0, size, last.created_ms)


def _add(builder: SegmentBuilder, body: bytes, extent: SharedExtent, topic: SharedTopic) -> bool:
    """Add a slice; return whether all its records can be read."""
    try:
        return builder.add(body, Rebase(topic.incarnation, extent.first_seq, extent.last_seq))
    except OtherTopic:
        return False
