"""The reader: answers reads of several topics from the tail cache, the store, or by waiting at the tail.

A topic is served from its position: what retention removed is passed over or reported, then chunks of the
tail cache, then extents of the store. A topic at its head adds nothing, and a read that has too little waits
for all its topics.

D1  Only committed records are returned, in the order of their seqs, without a gap that is not reported.
D2  A removal by another broker is seen after at most ROW_SECONDS, its own at once.
D3  A head that this broker knows is compared with the catalog before a read is answered as caught up, if it
    was not within the time of a poll. So a read without a wait is outdated by at most that time.
D4  Damage is searched on a thread: in a slice of many megabytes it takes a good part of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from shared.contract.errors import Refusal, store_unavailable
from shared.runtime.clock import Clock
from topicsd.broker.frames_v1 import (
    FRAMES_V1,
    SEGMENT_V1,
    TOPIC_ID_MASK,
    Decoded,
    OtherTopic,
    Rebase,
    UnknownEncoding,
    decode_frames,
    decode_intact,
)
from topicsd.broker.read.extents import ExtentReader, FetchedChunks, Need
from topicsd.broker.read.heads import Heads, HeadsWait, TailPosition
from topicsd.broker.read.read_rules import first_room, is_complete, room_of
from topicsd.broker.read.tail_cache import TailCache, TailChunk
from topicsd.broker.read.text_runs import TextRun, records_of_texts, text_run
from topicsd.broker.refusals import no_catalog, no_such_topic, store_failed, topic_replaced
from topicsd.broker.steps import Pool, Resume, Steps, Wait, run, together
from topicsd.broker.topic_table import TopicTable
from topicsd.catalog.catalog import CatalogRefused, CatalogUnavailable
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.log.frame import FrameDamage, Record, parse_frame
from topicsd.store.object_store import StoreRefused

ROW_SECONDS: Final = 5.0
ROUNDS_MAX: Final = 8
"""Lookups of one read: it returns what it has by then, and nothing only if records vanish while it reads."""

logger = logging.getLogger("topicsd.broker")

LossReason = Literal["evicted", "damaged"]


class MissingSeqs(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int
    reason: LossReason


class TopicRead(msgspec.Struct, frozen=True):
    topic: str
    from_seq: int
    """The first seq that is wanted."""
    bytes_max: int = 1 << 20
    incarnation: int | None = None
    """The incarnation that the position belongs to; None takes the present one."""
    as_chunks: bool = False
    """Whether the answer has the chunks that hold the records, and not the records. They are not checked."""
    as_runs: bool = False
    """Whether the answer has `runs`, and not the records."""


class SharedRead(msgspec.Struct, frozen=True):
    topics: list[TopicRead]
    min_bytes: int = 1
    bytes_max: int = 8 << 20
    wait_seconds: float = 0.0


class TopicRecords(msgspec.Struct):
    """The answer for one topic."""

    topic: str
    next_seq: int
    incarnation: int = 0
    head: int = 0
    records: list[Record] = []
    runs: list[TextRun | list[Record]] = []
    """With `as_runs`: they follow each other."""
    chunks: list[TailChunk] = []
    """With `as_chunks`: they follow each other, and the first one holds the position."""
    lost: list[MissingSeqs] = []
    """What is missing between the position and `next_seq`, in order."""
    refusal: Refusal | None = None
    byte_count: int = 0
    has_waited: bool = False
    """Whether the read waited at the heads of its topics."""


class ReadWait:
    """The wait of a read at the heads of its topics. A cancelled read is answered with what it has."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._now: tuple[HeadsWait, Resume] | None = None
        self._is_cancelled = False

    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def at(self, positions: Sequence[TailPosition], seconds: float) -> Wait:
        """Wait as `Heads.wait` does; also the result of a wait that was cancelled is False."""

        def start(resume: Resume) -> None:
            def end(has_grown: bool) -> None:
                self._now = None
                resume(has_grown)

            self._now = self._heads.begin_wait(positions, seconds, end), end

        return start

    def cancel(self) -> None:
        """End the wait; a lookup or a request to the store that is on its way is finished first."""
        self._is_cancelled = True
        if self._now is not None:
            waiter, end = self._now
            self._heads.cancel(waiter)
            end(False)


class SharedReader:
    def __init__(
        self,
        clock: Clock,
        topics: TopicTable,
        heads: Heads,
        cache: TailCache,
        extents: ExtentReader,
        decodes: Pool,
    ) -> None:
        """`decodes` has the threads that search damage (D4)."""
        self._decodes = decodes
        self._clock = clock
        self._topics = topics
        self._heads = heads
        self._cache = cache
        self._extents = extents

    def read(
        self,
        request: SharedRead,
        reply: Callable[[list[TopicRecords]], object],
        wait: ReadWait | None = None,
    ) -> None:
        def end(outcome: list[TopicRecords] | OSError) -> None:
            if isinstance(outcome, OSError):
                refusal = store_failed(outcome)
                outcome = [TopicRecords(one.topic, one.from_seq, refusal=refusal) for one in request.topics]
            reply(outcome)

        run(self.steps(request, wait), end)

    def steps(self, request: SharedRead, wait: ReadWait | None = None) -> Steps[list[TopicRecords]]:
        wait = wait or ReadWait(self._heads)
        begun_at = self._clock.monotonic()
        reads = [_TopicProgress(one) for one in request.topics]
        total = 0
        has_time = True
        while True:
            yield from self._look_up(reads)
            total = yield from self._collect(request, reads, total)
            # Not by the clock alone: a timer may end a rounding error before its time.
            waited = self._clock.monotonic() - begun_at if has_time else request.wait_seconds
            has_report = any(one.answer.refusal or one.answer.lost for one in reads)
            if is_complete(
                total, request.min_bytes, request.bytes_max, has_report, waited, request.wait_seconds
            ):
                return [self._finish(one) for one in reads]
            if wait.is_cancelled() or any(one.is_full for one in reads):
                return [self._finish(one) for one in reads]
            # All are at their heads: a topic is full, refused, or read up to its head.
            positions = [TailPosition(one.name, one.answer.next_seq) for one in reads]
            has_time = yield wait.at(positions, request.wait_seconds - waited)
            for one in reads:
                one.answer.has_waited = True
            if wait.is_cancelled():
                return [self._finish(one) for one in reads]

    def _finish(self, one: _TopicProgress) -> TopicRecords:
        answer = one.answer
        if one.topic is not None:
            answer.incarnation = one.topic.incarnation
            answer.head = self._head(one)
        return answer

    def _head(self, one: _TopicProgress) -> int:
        """Return the highest head that this read has seen, also when the topic was replaced since."""
        one.head = max(one.head, self._heads.head(one.name, one.incarnation))
        return one.head

    # -- rows

    def _look_up(self, reads: Sequence[_TopicProgress]) -> Steps[None]:
        """Find rows that are recent enough, and apply what was removed."""
        rows = yield together([self._topics.find(one.name, one.row_seconds) for one in reads])
        for one, outcome in zip(reads, rows, strict=True):
            one.row_seconds = ROW_SECONDS
            if one.answer.refusal is not None:
                continue
            if isinstance(outcome, OSError):
                one.answer.refusal = no_catalog(outcome)
            elif outcome is None:
                self._drop(one.name)
                one.answer.refusal = no_such_topic(one.name)
            else:
                self._use(one, outcome)

    def _use(self, one: _TopicProgress, topic: SharedTopic) -> None:
        expected = one.request.incarnation if one.topic is None else one.topic.incarnation
        if expected is not None and topic.incarnation != expected:
            self._drop(one.name)
            one.answer.refusal = topic_replaced(one.name)
            return
        one.topic = topic
        self._heads.advance(one.name, topic.incarnation, topic.head)
        one.apply_removals(topic)

    def _drop(self, name: str) -> None:
        self._cache.drop(name)
        self._heads.forget(name)

    # -- records

    def _collect(self, request: SharedRead, reads: Sequence[_TopicProgress], total: int) -> Steps[int]:
        """Add records to the answers until they are full or at the tail; return the bytes of all."""
        store_bytes = 0
        for _ in range(ROUNDS_MAX):
            behind: list[_TopicProgress] = []
            may_take = True
            for one in reads:
                if may_take:
                    total = yield from self._take_cached(request, one, total)
                if one.answer.refusal is not None or one.is_full:
                    continue
                if one.answer.next_seq <= self._head(one):
                    # The topics after it wait for their turn (N2).
                    may_take = False
                elif self._is_past_head(one) or not self._heads.is_current(one.name, one.incarnation):
                    behind.append(one)
            if behind:
                yield from self._check_heads(behind)
            needs: list[Need] = []
            for one in filter(self._is_behind, reads):
                if total and max(total, store_bytes) >= request.bytes_max:
                    one.is_full = True
                elif self._cache.find(one.name, one.incarnation, one.answer.next_seq) is None:
                    needs.append(one.need(request, total))
            if not needs and not any(map(self._is_behind, reads)):
                return total
            names = {need.topic for need in needs}
            results = yield from self._extents.fetch(needs, max(1, request.bytes_max - total))
            store_bytes += sum(map(_fetched_bytes, results.values()))
            for one in reads:
                if one.name in results:
                    one.had_turn = True
                    total = yield from self._take_fetched(request, one, results[one.name], total)
                elif one.name in names:
                    # It and the topics after it wait for their turn (N2).
                    break
                else:
                    total = yield from self._take_cached(request, one, total)
            yield from self._look_up([one for one in reads if one.row_seconds == 0])
        for one in reads:
            if self._is_behind(one) and (one.answer.byte_count or not one.had_turn):
                # Many small extents, or little that is wanted in large ones: the next read continues.
                one.is_full = True
            elif self._is_behind(one):
                cause = OSError(f"topic {one.name}: seq {one.answer.next_seq} cannot be read")
                one.answer.refusal = store_failed(cause)
        return total

    def _is_past_head(self, one: _TopicProgress) -> bool:
        """Return whether the position is after the known next one: another broker returned it."""
        return one.answer.next_seq > self._head(one) + 1

    def _is_behind(self, one: _TopicProgress) -> bool:
        is_open = one.answer.refusal is None and not one.is_full
        return is_open and one.answer.next_seq <= self._head(one)

    def _check_heads(self, reads: Sequence[_TopicProgress]) -> Steps[None]:
        checks = [self._heads.check(one.name, one.incarnation) for one in reads]
        outcomes = yield together(checks)
        for one, outcome in zip(reads, outcomes, strict=True):
            if outcome is not None:
                one.answer.refusal = no_catalog(outcome)
            elif not self._heads.is_current(one.name, one.incarnation):
                # It was deleted, or made again: look it up.
                one.row_seconds = 0.0
        yield from self._look_up([one for one in reads if one.row_seconds == 0])

    def _take_cached(self, request: SharedRead, one: _TopicProgress, total: int) -> Steps[int]:
        while one.answer.refusal is None and not one.is_full:
            chunk = self._cache.find(one.name, one.incarnation, one.answer.next_seq)
            if chunk is None:
                break
            total = yield from self._take(request, one, chunk, total)
        return total

    def _take_fetched(
        self, request: SharedRead, one: _TopicProgress, result: FetchedChunks | OSError, total: int
    ) -> Steps[int]:
        if isinstance(result, OSError):
            one.answer.refusal = refusal_of(result)
            return total
        chunks = result.chunks
        if not chunks or chunks[0].rebase.first_seq > one.answer.next_seq:
            # Trimmed, or deleted, since its row was read.
            one.row_seconds = 0.0
            return total
        for chunk in chunks:
            if one.answer.refusal is None and not one.is_full:
                next_seq = one.answer.next_seq
                total = yield from self._take(request, one, chunk, total)
                # Only what was decoded: it is of this incarnation.
                if one.answer.next_seq > next_seq and not result.is_laggard:
                    self._cache.add(chunk)
        return total

    def _take(self, request: SharedRead, one: _TopicProgress, chunk: TailChunk, total: int) -> Steps[int]:
        """Decode records of a chunk into the answer, as far as there is room."""
        if one.request.as_chunks:
            return self._take_whole(one, chunk, total)
        answer = one.answer
        room = room_of(total, request.bytes_max, answer.byte_count, one.request.bytes_max)
        bytes_max = first_room(request.bytes_max, one.request.bytes_max) if room is None else room
        try:
            decoded = yield from self._decoded(chunk, answer.next_seq, bytes_max, one.request.as_runs)
        except Exception as error:
            self._refuse_chunk(one, chunk, error)
            return total
        # The records are committed, and may be newer than the head that was known.
        self._heads.advance(one.name, one.incarnation, chunk.rebase.last_seq)
        if room is not None and decoded.byte_count > room:
            # A single record that does not fit.
            one.is_full = True
            return total
        if isinstance(decoded, TextRun):
            answer.runs.append(decoded)
        else:
            if one.request.as_runs:
                answer.runs += [decoded.records] if decoded.records else []
            else:
                answer.records = answer.records + decoded.records if answer.records else decoded.records
            answer.lost = answer.lost + [
                MissingSeqs(lost.first_seq, lost.last_seq, "damaged") for lost in decoded.damaged
            ]
        answer.byte_count += decoded.byte_count
        answer.next_seq = decoded.next_seq
        one.is_full = decoded.next_seq <= chunk.rebase.last_seq
        return total + decoded.byte_count

    def _decoded(self, chunk: TailChunk, seq: int, bytes_max: int, as_runs: bool) -> Steps[TextRun | Decoded]:
        """Return records from `seq` on, at least one, and no more than fit `bytes_max`."""
        try:
            return _decode(chunk, seq, bytes_max, as_runs)
        except FrameDamage:
            search = partial(_search_damage, chunk.body, chunk.rebase, seq, bytes_max, chunk.encoding)
            return (yield self._decodes.call(search))  # type: ignore[no-any-return]

    def _refuse_chunk(self, one: _TopicProgress, chunk: TailChunk, error: Exception) -> None:
        """Refuse the topic of a chunk that cannot be decoded, or look it up again."""
        if isinstance(error, OtherTopic):
            one.row_seconds = 0.0
            self._topics.forget(one.name)
        elif isinstance(error, UnknownEncoding):
            one.answer.refusal = store_failed(OSError(str(error)))
        else:
            # A bug, or bytes of a program that has one: the other topics of the read are answered.
            what = f"topic {one.name}: seqs {chunk.rebase.first_seq}..{chunk.rebase.last_seq}"
            logger.error("read: %s: decode failed: unexpected error  key=%s", what, chunk.key, exc_info=error)
            one.answer.refusal = store_failed(OSError(f"{what}: unexpected error: {error!r}"))

    def _take_whole(self, one: _TopicProgress, chunk: TailChunk, total: int) -> int:
        """Add a chunk to the answer; its records before the position count as none."""
        answer, rebase = one.answer, chunk.rebase
        if chunk.encoding not in (FRAMES_V1, SEGMENT_V1):
            answer.refusal = store_failed(OSError(f"body encoding {chunk.encoding} is unknown"))
            return total
        if not _is_of_topic(chunk):
            one.row_seconds = 0.0
            self._topics.forget(one.name)
            return total
        self._heads.advance(one.name, one.incarnation, rebase.last_seq)
        size = chunk.byte_count * (rebase.last_seq + 1 - answer.next_seq) // chunk.count
        answer.chunks.append(chunk)
        answer.byte_count += size
        answer.next_seq = rebase.last_seq + 1
        one.is_full = answer.byte_count >= one.request.bytes_max
        return total + size


def _decode(chunk: TailChunk, seq: int, bytes_max: int, as_runs: bool) -> TextRun | Decoded:
    """Return records that are intact; raise FrameDamage when there may be others."""
    run = text_run(chunk, seq, bytes_max) if as_runs else None
    if run is not None:
        return run
    if chunk.texts is not None:
        return records_of_texts(chunk, seq, bytes_max)
    return decode_intact(chunk.body, chunk.rebase, seq, bytes_max, chunk.encoding)


def _search_damage(
    body: bytes, rebase: Rebase, seq: int, bytes_max: int, encoding: str
) -> Decoded | Exception:
    """Decode what is intact, on a thread; its errors are raised on the event loop."""
    try:
        return decode_frames(body, rebase, seq, bytes_max, encoding)
    except Exception as error:
        return error


def _fetched_bytes(result: FetchedChunks | OSError) -> int:
    return 0 if isinstance(result, OSError) else sum([chunk.byte_count for chunk in result.chunks])


def _is_of_topic(chunk: TailChunk) -> bool:
    """Return whether the first frame is of the incarnation of the chunk, or is damaged."""
    if chunk.texts is not None:
        return True
    try:
        frame = parse_frame(chunk.body, 0, len(chunk.body))
    except FrameDamage:
        return True
    return frame.topic_id == chunk.rebase.incarnation & TOPIC_ID_MASK


class _TopicProgress:
    """One topic of a read: its answer so far."""

    def __init__(self, request: TopicRead) -> None:
        self.request = request
        self.name = request.topic
        self.answer = TopicRecords(request.topic, request.from_seq)
        self.topic: SharedTopic | None = None
        self.row_seconds = ROW_SECONDS
        """The age of a row that is recent enough; 0 after a sign that it is outdated."""
        self.head = 0
        self.is_full = False
        self.had_turn = False
        """Whether it was read from the store, or could not be."""

    @property
    def incarnation(self) -> int:
        return 0 if self.topic is None else self.topic.incarnation

    def need(self, request: SharedRead, total: int) -> Need:
        room = min(request.bytes_max - total, self.request.bytes_max - self.answer.byte_count)
        return Need(self.name, self.incarnation, self.answer.next_seq, max(1, room))

    def apply_removals(self, topic: SharedTopic) -> None:
        """Pass over what a client deleted, and report what was evicted."""
        answer = self.answer
        answer.next_seq = max(answer.next_seq, topic.deleted_to + 1)
        if answer.next_seq <= topic.evicted_to:
            answer.lost = [*answer.lost, MissingSeqs(answer.next_seq, topic.evicted_to, "evicted")]
            answer.next_seq = topic.evicted_to + 1


def refusal_of(error: OSError) -> Refusal:
    """Refuse a read that the catalog or the store did not answer."""
    if isinstance(error, CatalogUnavailable | CatalogRefused):
        return no_catalog(error)
    if isinstance(error, StoreRefused | FileNotFoundError):
        return store_failed(error)
    return store_unavailable(str(error))
