"""The compactor: merges the first extents of a topic that are still parts of blobs into one object.

A blob holds records of many topics, so a reader of one topic needs a request for each blob. After a
compaction it needs one for many of them, and the blobs that no extent refers to are left for vacuum.
A slow topic gets small objects, which are merged again.

M1  The steps are claim, trim, read, put, begin, finish, release. Each is safe to repeat, and any compactor
    may finish what another one has begun. Overlapping compactions are refused by the catalog, also when a
    claim was lost in between.
M2  The object has exactly the records of its range, byte for byte but for their numbers, as a segment
    (`topicsd/broker/segment_v1.py`). A slice that is damaged is not merged: the range ends before it, also if
    that is a single slice. As the first slice it gets an object alone, as it is, so that it stops nothing;
    readers report the damage (F2).
    A slice whose object is missing, or of an unknown encoding, also ends the range. As the first one it stops
    the compaction of its topic, until retention removes it: nothing takes its place, and it is reported.
M3  The object is put before the catalog names it (R3). One that the catalog refuses is an orphan.
M4  Memory is bounded by the bytes of one object.
M5  When no slice can be merged, small compacted objects are, by the same steps. They are looked up page by
    page, once in the life of a process; later only the last page. An object that is damaged or missing stays
    as it is, and the merges continue after it.

The steps are a generator: it yields the blocking calls, and a test runs it call by call.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.retries import Retries
from topicsd.broker.frames_v1 import FRAMES_V1, SEGMENT_V1, OtherTopic, Rebase
from topicsd.broker.segment_v1 import SegmentBuilder, frame_bytes_of
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.compaction_choice import (
    AGAIN_MIN,
    CompactorLimits,
    extents_to_merge,
    extents_to_merge_again,
)
from topicsd.broker.upkeep.retention import SIZED_TOPICS_MAX, SPAN_PARTS, Retention, limits_of
from topicsd.broker.upkeep.stages import Staged
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    REPEATED_MS,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    SharedCatalog,
    SharedExtent,
    SharedTopic,
)
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectStore

COMPACTED: Final = "llog/compacted"
"""The folder of compacted objects; the key begins with random characters, like those of blobs."""
RENEWED_AFTER: Final = 256
"""Slices that are read before the claim is renewed; a begun compaction shows whether it was lost."""


class UpkeepAbandoned(Exception):
    """Raised in the steps of a topic by a process that ends: they release the claim, and end."""


class CompactionReport(NamedTuple):
    """What one run for one topic did."""

    outcome: str
    """`merged`, `nothing`, `busy`, `no topic`, `refused`, `claim lost` or `abandoned`."""
    extents: int = 0
    byte_count: int = 0
    removed_records: int = 0
    """The records that retention removed."""
    is_recovery: bool = False
    """Whether a compaction was finished that another process had begun."""
    pending_records: int = 0
    """The records that were not compacted before."""
    due_in_ms: int | None = None
    """The time until retention removes records, if no more are written."""
    obstacle: str = ""
    """Why the first slice cannot be merged, which stops those after it; empty if it can, or may later."""


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
        self._retention = Retention(catalog)
        self._again_from: OrderedDict[tuple[str, int], int] = OrderedDict()
        """By topic and incarnation: the seq from which compacted extents may be merged again (M5)."""

    def compact(self, name: str) -> BlockingSteps[CompactionReport]:
        """Finish what was begun, apply retention, then merge extents of a topic once."""
        try:
            claim: Claim | None = yield Staged("claim", partial(self._claim, name))
            if claim is None:
                (topic,) = yield Staged("lookup", partial(self._catalog.topics, [name]))
                return CompactionReport("no topic" if topic is None else "busy")
            report = yield from self._keep_up(claim)
        except UpkeepAbandoned:
            # Perhaps in the call that claims, whose answer is not known here.
            claim = Claim(name, self._name, 0, 0)
            report = CompactionReport("abandoned")
        # After an OSError the claim ends with its lease.
        yield Staged("claim", partial(self._catalog.release, claim))
        return report

    def _claim(self, name: str) -> Claim | None:
        return self._catalog.claim(name, self._name, self._limits.lease_ms)

    def _keep_up(self, claim: Claim) -> BlockingSteps[CompactionReport]:
        name, catalog, now_ms = claim.topic, self._catalog, claim.claimed_ms
        begun: Compaction | None = yield Staged("commit", partial(catalog.finish_compaction, name))
        (topic,) = yield Staged("lookup", partial(catalog.topics, [name]))
        if topic is None:
            return CompactionReport("no topic")
        retained = yield from self._retention.apply(topic, now_ms)
        due_in_ms = None if retained.due_ms is None else max(0, retained.due_ms - now_ms)
        if retained.topic is None:
            return CompactionReport("no topic")
        report = yield from self._merge(claim, retained.topic)
        return report._replace(
            removed_records=retained.records,
            is_recovery=begun is not None,
            pending_records=retained.topic.head - max(topic.compacted_to, retained.topic.first_seq - 1),
            due_in_ms=due_in_ms,
        )

    def _merge(self, claim: Claim, topic: SharedTopic) -> BlockingSteps[CompactionReport]:
        catalog = self._catalog
        chosen = yield from self._choose(claim.claimed_ms, topic)
        first = yield from self._read_whole(chosen, topic)
        obstacle = first if isinstance(first, str) else ""
        merged = (yield from self._read_again(topic)) if isinstance(first, str) else first
        if merged is None:
            return CompactionReport("nothing", obstacle=obstacle)
        extent = merged.extent
        yield Staged("put", lambda: create_object(self._store, extent.key, merged.parts, self._retries()))
        compaction = Compaction(secrets.token_hex(16), topic.name, topic.incarnation, extent)
        refusal: str | None = yield Staged("commit", partial(self._begin, claim, compaction))
        if refusal is not None:
            return CompactionReport(refusal)
        yield Staged("commit", partial(catalog.finish_compaction, topic.name))
        return CompactionReport("merged", merged.extents, extent.byte_length, obstacle=obstacle)

    def _choose(self, now_ms: int, topic: SharedTopic) -> BlockingSteps[list[SharedExtent]]:
        """Return the extents to merge, looked up page by page until they fill an object."""
        span_ms = limits_of(topic).ttl_ms // SPAN_PARTS
        present: list[SharedExtent] = []
        seq = topic.compacted_to + 1
        while True:
            lookup = partial(self._catalog.extents_from, topic.name, seq, EXTENTS_AT_ONCE)
            page: list[SharedExtent] = yield Staged("lookup", lookup)
            present += page
            chosen = extents_to_merge(present, now_ms, self._limits, span_ms)
            # Another page may have more of them, unless these end before its last one.
            is_open = not chosen or len(chosen) == len(present)
            is_old = bool(page) and page[-1].created_ms <= now_ms - REPEATED_MS
            is_small = sum(extent.byte_length for extent in present) <= self._limits.object_bytes
            is_short = len(page) < EXTENTS_AT_ONCE or len(present) > self._limits.extents_max
            if is_short or not (is_open and is_old and is_small):
                return chosen
            seq = page[-1].last_seq + 1

    def _read_whole(self, chosen: Sequence[SharedExtent], topic: SharedTopic) -> BlockingSteps[_Merged | str]:
        """Read slices up to the first one that is damaged or missing, and make the object of them (M2).

        Return the obstacle when there is no object to make.
        """
        if not chosen:
            return ""
        builder = SegmentBuilder(topic.incarnation, chosen[0].first_seq)
        added = yield from self._add_all(builder, chosen, topic)
        if added is None:
            return ""
        if added.extents:
            # Also a single one: what ended the merge is the first one of the next.
            parts: list[bytes] = yield Staged("merge", builder.parts)
            return _Merged(_compacted(chosen[: added.extents], SEGMENT_V1, parts), parts, added.extents)
        if added.damaged is None:
            return (yield from self._obstacle(chosen[0], topic))
        # Again, since bytes may also be damaged on their way.
        again: bytes | None = yield Staged("read", partial(self._read, chosen[0]))
        if again == added.damaged:
            return _Merged(_compacted(chosen[:1], FRAMES_V1, [again]), [again], 1)
        return ""

    def _add_all(
        self, builder: SegmentBuilder, chosen: Sequence[SharedExtent], topic: SharedTopic
    ) -> BlockingSteps[_Added | None]:
        """Add extents up to the first one that cannot be merged (M2); return None when the claim is lost."""
        for count, extent in enumerate(chosen):
            if count % RENEWED_AFTER == RENEWED_AFTER - 1 and not (
                yield Staged("claim", partial(self._claim, topic.name))
            ):
                return None
            body: bytes | None = yield Staged("read", partial(self._read, extent))
            if body is None or extent.encoding not in (FRAMES_V1, SEGMENT_V1):
                return _Added(count, None)
            # On the thread, too: it takes long for the event loop.
            if not (yield Staged("merge", partial(_add, builder, body, extent, topic))):
                return _Added(count, body)
        return _Added(len(chosen), None)

    # -- compacted objects

    def _read_again(self, topic: SharedTopic) -> BlockingSteps[_Merged | None]:
        """Make an object of small compacted ones, if there are enough (M5)."""
        chosen = yield from self._choose_again(topic)
        if not chosen:
            return None
        builder = SegmentBuilder(topic.incarnation, chosen[0].first_seq)
        added = yield from self._add_all(builder, chosen, topic)
        if added is None:
            return None
        if added.extents < len(chosen):
            self._note_again(topic, chosen[added.extents].last_seq + 1)
        if added.extents < AGAIN_MIN:
            return None
        parts: list[bytes] = yield Staged("merge", builder.parts)
        return _Merged(_compacted(chosen[: added.extents], SEGMENT_V1, parts), parts, added.extents)

    def _choose_again(self, topic: SharedTopic) -> BlockingSteps[list[SharedExtent]]:
        """Return compacted extents to merge, looked up page by page from where nothing was found before."""
        span_ms = limits_of(topic).ttl_ms // SPAN_PARTS
        seq = self._again_from.get((topic.name, topic.incarnation), 0)
        while max(seq, topic.first_seq) <= topic.compacted_to:
            lookup = partial(self._catalog.extents_from, topic.name, seq, EXTENTS_AT_ONCE)
            page: list[SharedExtent] = yield Staged("lookup", lookup)
            chosen = extents_to_merge_again(page, self._limits, span_ms)
            if chosen or len(page) < EXTENTS_AT_ONCE:
                return chosen
            # The last ones may be merged with those of the next page.
            seq = page[-AGAIN_MIN].first_seq
            self._note_again(topic, seq)
        return []

    def _note_again(self, topic: SharedTopic, seq: int) -> None:
        key = topic.name, topic.incarnation
        self._again_from[key] = max(seq, self._again_from.pop(key, 0))
        if len(self._again_from) > SIZED_TOPICS_MAX:
            self._again_from.popitem(last=False)

    def _obstacle(self, extent: SharedExtent, topic: SharedTopic) -> BlockingSteps[str]:
        """Say why a slice could not be read, unless it was trimmed away meanwhile."""
        lookup = partial(self._catalog.extents_from, topic.name, extent.first_seq, 1)
        present: list[SharedExtent] = yield Staged("lookup", lookup)
        if present != [extent]:
            return ""
        is_unknown = extent.encoding != FRAMES_V1
        why = f"has the unknown encoding {extent.encoding}" if is_unknown else "is missing"
        return f"seqs {extent.first_seq}..{extent.last_seq}: object {extent.key} {why}"

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
        """Return the frames of an extent; None when another compactor, or a trim, has removed it."""
        offset, size = extent.byte_offset, extent.byte_length
        if extent.encoding == SEGMENT_V1:
            offset, size = SEGMENT_HEADER_BYTES, frame_bytes_of(extent.last_seq - extent.first_seq + 1, size)
        read = partial(self._store.read, extent.key, offset, size)
        try:
            return repeat_request(read, self._retries())
        except FileNotFoundError:
            return None


class _Added(NamedTuple):
    """How many extents were added to an object, and the bytes of the one after them if it is damaged."""

    extents: int
    damaged: bytes | None


class _Merged(NamedTuple):
    """An object that is to be put, and the number of extents that it replaces."""

    extent: SharedExtent
    parts: list[bytes]
    extents: int


def _compacted(chosen: Sequence[SharedExtent], encoding: str, parts: Sequence[bytes]) -> SharedExtent:
    first, last = chosen[0], chosen[-1]
    key = f"{COMPACTED}/{secrets.token_hex(16)}"
    size = sum(map(len, parts))
    # Not of the last one: the clocks of the nodes may differ, and no record is removed before its time.
    created_ms = max(extent.created_ms for extent in chosen)
    return SharedExtent(first.first_seq, last.last_seq, "COMPACTED", key, encoding, 0, size, created_ms)


def _add(builder: SegmentBuilder, body: bytes, extent: SharedExtent, topic: SharedTopic) -> bool:
    """Add a slice; return whether all its records can be read."""
    try:
        return builder.add(body, Rebase(topic.incarnation, extent.first_seq, extent.last_seq))
    except OtherTopic:
        return False
