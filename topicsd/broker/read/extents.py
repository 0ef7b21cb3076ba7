"""Reads of committed records from the store: look up extents, get each object once, cut out the slices.

E1  One lookup of a topic is shared by all reads that need the same seq at the same time.
E2  One GET an object, however many topics of a read are in it: from the first needed byte to the last.
E3  A topic with more than LAGGARD_EXTENTS extents after the one that is read has a reader that lags. It reads
    through a small cache of its own, on threads of its own, and adds nothing to the tail cache: readers at
    the tail keep their cache and their threads.
E4  An object that is missing was compacted or trimmed away since the lookup: the topic is looked up again.
E5  A compacted object is read in parts, by its index (`topicsd/broker/segment_v1.py`). Its records are old,
    so its readers lag.
E6  A read of many topics plans in their order, and only the bytes that it may return: the topics after that
    wait for their turn. It has few lookups on their way, so that others are not behind all of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.retries import Retries
from topicsd.broker.frames_v1 import SEGMENT_V1, Rebase
from topicsd.broker.read.tail_cache import TailChunk
from topicsd.broker.segment_v1 import SegmentPart, SegmentParts
from topicsd.broker.steps import Pool, Resume, Steps, Wait, together
from topicsd.catalog.shared.shared_catalog import SharedCatalog, SharedExtent
from topicsd.store.block_cache import BlockCache
from topicsd.store.create_object import repeat_request

LAGGARD_EXTENTS: Final = 16
LOOKUPS_AT_ONCE: Final = 16
"""Lookups of one read that are on their way (E6)."""
LOOKUPS_MAX: Final = 4
"""Lookups of one read of a topic, when objects vanish between lookup and GET."""


class Need(NamedTuple):
    """The records of a topic from `seq`, about `bytes_max` of them."""

    topic: str
    incarnation: int
    seq: int
    bytes_max: int


class _Lookup(NamedTuple):
    need: Need
    extents: list[SharedExtent]
    is_laggard: bool


class _Plan:
    """The objects that a read gets, each from its first needed byte to its last (E2)."""

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max
        """How many bytes may be added; what is added first may exceed it."""
        self.slices: list[_Lookup] = []
        self.segments: list[_Lookup] = []
        self.spans: dict[tuple[str, bool], tuple[int, int]] = {}

    def add(self, need: Need, candidates: Sequence[SharedExtent]) -> None:
        # Not more than the read may return; the topic continues in the next round.
        extents = _enough(candidates, need._replace(bytes_max=min(need.bytes_max, self.left)))
        one = _Lookup(need, extents, _is_laggard(candidates))
        if _has_segment(one):
            self.segments.append(one)
            self.left -= min(extents[0].byte_length, need.bytes_max)
            return
        self.slices.append(one)
        for extent in extents:
            key = extent.key, one.is_laggard
            start, end = extent.byte_offset, extent.byte_offset + extent.byte_length
            first, last = self.spans.get(key, (start, start))
            self.spans[key] = min(first, start), max(last, end)
            self.left -= max(last, end) - min(first, start) - (last - first)


class FetchedChunks(NamedTuple):
    """Chunks that follow each other; the first one holds the seq, or begins after it if that was trimmed."""

    chunks: list[TailChunk]
    is_laggard: bool


FetchResult = FetchedChunks | OSError


class ExtentReader:
    def __init__(
        self,
        catalog: SharedCatalog,
        lookups: Pool,
        reads: Pool,
        laggard_reads: Pool,
        blocks: BlockCache,
        laggard_blocks: BlockCache,
        retries: Callable[[], Retries],
    ) -> None:
        self._catalog = catalog
        self._lookups = lookups
        self._reads = reads
        self._laggard_reads = laggard_reads
        self._blocks = blocks
        self._laggard_blocks = laggard_blocks
        self._retries = retries
        self._parts = SegmentParts()
        self._waiting: dict[tuple[str, int, int], list[Resume]] = {}
        """Lookups that are on their way, by topic, incarnation and seq (E1)."""
        self.lookup_count = self.get_count = self.laggard_gets = 0

    def fetch(self, needs: Sequence[Need], bytes_max: int) -> Steps[dict[str, FetchResult]]:
        """Return chunks, or an error, for the first of the topics: about `bytes_max`, at least one topic."""
        results: dict[str, FetchResult] = {}
        left = list(needs)
        for _ in range(LOOKUPS_MAX):
            if not left:
                break
            plan = yield from self._plan(left, bytes_max, results)
            left = yield from self._get(plan, results)
        for need in left:
            results[need.topic] = FileNotFoundError(f"topic {need.topic}: seq {need.seq}: no such object")
        return results

    def _plan(self, needs: Sequence[Need], bytes_max: int, results: dict[str, FetchResult]) -> Steps[_Plan]:
        """Look topics up in their order, until there are enough bytes (E6)."""
        plan = _Plan(bytes_max)
        for begin in range(0, len(needs), LOOKUPS_AT_ONCE):
            now = needs[begin : begin + LOOKUPS_AT_ONCE]
            outcomes = yield together([self._lookup(need) for need in now])
            for need, outcome in zip(now, outcomes, strict=True):
                if isinstance(outcome, OSError):
                    results[need.topic] = outcome
                elif plan.left > 0:
                    plan.add(need, outcome)
            errors = [outcome for outcome in outcomes if isinstance(outcome, OSError)]
            if errors:
                # The catalog is away: each lookup could take as long again.
                results.update((need.topic, errors[0]) for need in needs[begin + len(now) :])
            if errors or plan.left <= 0:
                break
        return plan

    def _lookup(self, need: Need) -> Wait:
        key = need.topic, need.incarnation, need.seq

        def end(outcome: list[SharedExtent] | OSError) -> None:
            for resume in self._waiting.pop(key):
                resume(outcome)

        def start(resume: Resume) -> None:
            if key in self._waiting:
                self._waiting[key].append(resume)
                return
            self._waiting[key] = [resume]
            self.lookup_count += 1
            limit = LAGGARD_EXTENTS + 1
            self._lookups.call(partial(self._catalog.extents_from, need.topic, need.seq, limit))(end)

        return start

    def _get(self, plan: _Plan, results: dict[str, FetchResult]) -> Steps[list[Need]]:
        """Get the objects; return the needs whose objects are missing."""
        slices, segments, spans = plan.slices, plan.segments, plan.spans
        reads = [self._read(*key, *span) for key, span in spans.items()]
        outcomes = yield together([*reads, *map(self._read_part, segments)])
        objects = dict(zip(spans, outcomes[: len(reads)], strict=True))
        missing: list[Need] = []
        fetched = [_cut(one, spans, objects) for one in slices]
        fetched += [_chunks_of(*both) for both in zip(segments, outcomes[len(reads) :], strict=True)]
        for one, chunks in zip([*slices, *segments], fetched, strict=True):
            if isinstance(chunks, FileNotFoundError):
                missing.append(one.need)
            elif isinstance(chunks, OSError):
                results[one.need.topic] = chunks
            else:
                results[one.need.topic] = FetchedChunks(chunks, one.is_laggard)
        return missing

    def _read(self, key: str, is_laggard: bool, start: int, end: int) -> Wait:
        pool, blocks = self._count_get(is_laggard)
        read = partial(blocks.read, key, start, end - start)
        return pool.call(lambda: repeat_request(read, self._retries()))

    def _read_part(self, one: _Lookup) -> Wait:
        """Read a part of the compacted object that the lookup found first (E5)."""
        pool, blocks = self._count_get(one.is_laggard)
        extent, need = one.extents[0], one.need
        rebase = Rebase(need.incarnation, extent.first_seq, extent.last_seq)
        # Records before the first extent were trimmed.
        seq = max(need.seq, extent.first_seq)

        def read(offset: int, size: int) -> bytes:
            return repeat_request(partial(blocks.read, extent.key, offset, size), self._retries())

        return pool.call(
            lambda: self._parts.read(read, extent.key, rebase, extent.byte_length, seq, need.bytes_max)
        )

    def _count_get(self, is_laggard: bool) -> tuple[Pool, BlockCache]:
        self.get_count += 1
        self.laggard_gets += is_laggard
        if is_laggard:
            return self._laggard_reads, self._laggard_blocks
        return self._reads, self._blocks


def _is_laggard(extents: Sequence[SharedExtent]) -> bool:
    """Return whether a reader that needs the first of these extents lags (E3, E5)."""
    return len(extents) > LAGGARD_EXTENTS or any(one.type == "COMPACTED" for one in extents[:1])


def _enough(extents: Sequence[SharedExtent], need: Need) -> list[SharedExtent]:
    """Return as many of the extents as hold the bytes that are needed, at least one."""
    taken: list[SharedExtent] = []
    size = 0
    for extent in extents[:LAGGARD_EXTENTS]:
        if taken and (size >= need.bytes_max or extent.first_seq != taken[-1].last_seq + 1):
            break
        if taken and SEGMENT_V1 in (taken[0].encoding, extent.encoding):
            # Read alone: the part of it that is read may not reach its end.
            break
        taken.append(extent)
        # The records of the first one before `seq` are read and not wanted, so it does not count.
        size += extent.byte_length if len(taken) > 1 or extent.first_seq == need.seq else 0
    return taken


def _has_segment(one: _Lookup) -> bool:
    return any(extent.encoding == SEGMENT_V1 for extent in one.extents[:1])


def _chunks_of(one: _Lookup, outcome: SegmentPart | OSError | None) -> list[TailChunk] | OSError:
    """Return the part of a compacted object; nothing when the topic was deleted since the lookup."""
    if isinstance(outcome, OSError):
        return outcome
    if outcome is None:
        return []
    return [TailChunk(one.need.topic, outcome.rebase, outcome.body, SEGMENT_V1, one.extents[0].key)]


def _cut(
    one: _Lookup,
    spans: dict[tuple[str, bool], tuple[int, int]],
    objects: dict[tuple[str, bool], bytes | OSError],
) -> list[TailChunk] | OSError:
    """Return the slices of one topic, up to the first one that is not there."""
    chunks: list[TailChunk] = []
    for extent in one.extents:
        key = extent.key, one.is_laggard
        data = objects[key]
        if isinstance(data, OSError):
            # What is before it is returned; the next read begins at it.
            return chunks or data
        at = extent.byte_offset - spans[key][0]
        rebase = Rebase(one.need.incarnation, extent.first_seq, extent.last_seq)
        body = data[at : at + extent.byte_length]
        chunks.append(TailChunk(one.need.topic, rebase, body, extent.encoding, extent.key))
    return chunks
