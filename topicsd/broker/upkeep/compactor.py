"""The compactor: merges the first extents of a topic that are still parts of blobs into one object.

A blob holds records of many topics, so a reader of one topic needs a request for each blob. After a
compaction it needs one for many of them, and the blobs that no extent refers to are left for vacuum.

M1  The steps are claim, read, put, begin, finish, release. Each is safe to repeat, and any compactor may
    finish what another one has begun. Overlapping compactions are refused by the catalog, also when a claim
    was lost in between.
M2  The object has exactly the records of its range, byte for byte but for their numbers. A body that is
    damaged is not merged: the range ends before it, and readers report the damage (F2).
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
from topicsd.broker.frames_v1 import (
    FRAMES_V1,
    OtherTopic,
    Rebase,
    UnknownEncoding,
    decode_frames,
    renumber,
)
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
        bodies: list[bytes] = []
        count = 0
        for extent in chosen:
            body: bytes | None = yield partial(self._read, extent, topic, count + 1)
            if body is None:
                break
            bodies.append(body)
            count += extent.last_seq - extent.first_seq + 1
        chosen = chosen[: len(bodies)]
        if len(chosen) < limits.extents_min:
            return CompactionReport("nothing")
        extent = yield from self._put(chosen, bodies)
        compaction = Compaction(secrets.token_hex(16), name, topic.incarnation, extent)
        refusal: str | None = yield partial(self._begin, claim, compaction)
        if refusal is not None:
            return CompactionReport(refusal)
        yield partial(catalog.finish_compaction, name)
        return CompactionReport("merged", len(chosen), extent.byte_length)

    def _begin(self, claim: Claim, compaction: Compaction) -> str | None:
        """Let the catalog name the object; return why it refuses."""
        try:
            self._catalog.begin_compaction(claim, compaction)
        except CompactionRefused:
            return "refused"
        except ClaimLost:
            return "claim lost"
        return None

    def _read(self, extent: SharedExtent, topic: SharedTopic, first_number: int) -> bytes | None:
        """Return the body of an extent with other numbers, or None when it is damaged or missing (M2).

        Computed on the thread that reads it: it takes long for the event loop.
        """
        read = partial(self._store.read, extent.key, extent.byte_offset, extent.byte_length)
        try:
            body = repeat_request(read, self._retries())
        except FileNotFoundError:
            # Compacted by another compactor, or trimmed, since the lookup.
            return None
        return renumber(body, first_number) if _is_whole(body, extent, topic) else None

    def _put(self, chosen: Sequence[SharedExtent], bodies: Sequence[bytes]) -> BlockingSteps[SharedExtent]:
        key = f"{COMPACTED}/{secrets.token_hex(16)}"
        data = b"".join(bodies)
        yield lambda: create_object(self._store, key, [data], self._retries())
        first, last = chosen[0], chosen[-1]
        return SharedExtent(
            first.first_seq, last.last_seq, "COMPACTED", key, FRAMES_V1, 0, len(data), last.created_ms
        )


def _is_whole(body: bytes, extent: SharedExtent, topic: SharedTopic) -> bool:
    """Return whether all records of an extent can be read."""
    rebase = Rebase(topic.incarnation, extent.first_seq, extent.last_seq)
    try:
        decoded = decode_frames(body, rebase, encoding=extent.encoding)
    except (OtherTopic, UnknownEncoding):
        return False
    return not decoded.damaged and decoded.next_seq == extent.last_seq + 1
