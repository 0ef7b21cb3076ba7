"""Reads after a position: report a gap first, then return records.

A read decides in this order: a position past the head of its own epoch is refused; a position of another
epoch, or before the evict floor, gets a tombstone; so does a position directly before a lost range. Then,
range by range, dead records and records of the reader's own nodes are skipped without a report, and the
others are returned. One answer has at most one tombstone: a read stops before a lost range, and the next
read, which begins at its edge, reports it and resumes after it.

Records are returned as slices of pages (`page.py`), never one by one. For records of a sealed segment that
are in no page, `try_read` returns `Unfetched`; `read` has a thread fetch them (`fetch.py`) and tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    STORAGE_FAILED,
    Refusal,
    invalid,
    reason_without_path,
    store_unavailable,
)
from shared.contract.reader_options import NO_NODES, ReaderOptions
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.damage import note_damage
from topicsd.engine.pending import call_reply
from topicsd.engine.read.fetch import fetch
from topicsd.engine.read.fetch_selected import SelectedFrames, TagSearchResult, Unselected, select_on_thread
from topicsd.engine.read.fill_page import Fetched, PageSource, Unfetched, keep_fetched
from topicsd.engine.read.page import PAGE_RECORDS, VARIANTS
from topicsd.engine.read.page_slices import PAGES_MAX, PageSlices
from topicsd.engine.read.position import position_past_head
from topicsd.engine.read.selected_slices import SelectedSlices
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.requests import ReadAnswer, ReadRequest, Reply, Tombstone
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.segment.entry import DATA, SegmentName
from topicsd.store.object_store import StoreUnavailable

logger = logging.getLogger("topicsd.engine")

Missing = Unfetched | Unselected
"""What a read has to wait for."""
ROUNDS_MAX = 32
"""Thread calls of one read; a filter may need one for each segment, and find nothing."""


def read(
    shard: ShardState,
    name: str,
    request: ReadRequest,
    reply: Reply[ReadAnswer],
    missing: Missing | None = None,
) -> None:
    """Read, at once or after disk reads; `reply` gets a `ReadAnswer` or a `Refusal`.

    `missing` is the result of `try_read` if the caller has called it. An unexpected error is answered like
    any other: a reader that waits for the disk would otherwise get no answer.
    """
    if missing is None:
        try:
            answer = try_read(shard, name, request)
        except Exception as error:
            answer = refuse_unexpected_error(logger, "a read", error)
        if isinstance(answer, ReadAnswer | Refusal):
            reply(answer)
            return
        missing = answer
    _fetch_and_read(shard, name, request, reply, missing, [])


def _fetch_and_read(
    shard: ShardState,
    name: str,
    request: ReadRequest,
    reply: Reply[ReadAnswer],
    missing: Missing,
    fetched: list[Fetched | SelectedFrames],
    rounds: int = 1,
) -> None:
    """Fetch the missing records on a thread, then read again."""

    def on_fetched(result: Fetched | TagSearchResult | OSError) -> None:
        try:
            refusal = keep(shard, name, request, missing, result, fetched)
            answer = refusal or try_read(shard, name, request, fetched, rounds >= ROUNDS_MAX)
        except Exception as error:
            answer = refuse_unexpected_error(logger, "a read", error)
        if isinstance(answer, ReadAnswer | Refusal):
            call_reply(reply, answer)
        else:
            _fetch_and_read(shard, name, request, reply, answer, fetched, rounds + 1)

    run, work = missing.run, work_of(shard, missing)
    if isinstance(run, SealedRun):
        shard.read_on_thread(run, work, on_fetched)
    else:
        shard.threads.read.submit(work, on_fetched)


def work_of(shard: ShardState, missing: Missing) -> Callable[[], Fetched | TagSearchResult]:
    """Return what a thread does for a read that has to wait."""
    if isinstance(missing, Unselected):
        return partial(select_on_thread, shard.segments, missing)
    return partial(fetch, shard.segments, missing.run, missing.first_seq, missing.bytes_wanted)


def keep(
    shard: ShardState,
    name: str,
    request: ReadRequest,
    missing: Missing,
    result: Fetched | TagSearchResult | OSError,
    fetched: list[Fetched | SelectedFrames],
) -> Refusal | None:
    """Keep the result of a thread for this read and later ones."""
    topic = shard.visible_topic(name)
    if isinstance(missing, Unselected):
        if isinstance(result, StoreUnavailable):
            shard.store_problem = shard.store_problem or str(result)
            return store_unavailable(f"cannot find the records with the tag: {result}")
        if isinstance(result, OSError):
            reason = reason_without_path(result)
            return Refusal(STORAGE_FAILED, f"cannot find the records with the tag: {reason}")
        assert isinstance(result, TagSearchResult)
        for run, seqs in result.seqs:
            shard.pages.selections.add(run, missing.tag_filter, seqs)
        if result.tags is not None and isinstance(missing.run, TailRun) and missing.run.tags.is_unknown:
            missing.run.tags = result.tags
        fetched += result.frames
        return None
    assert isinstance(result, Fetched), result
    fetched.append(result)
    if result.is_away:
        shard.store_problem = shard.store_problem or result.error
    if topic is not None:
        variant = VARIANTS[request.options.with_tags, request.options.with_meta]
        keep_fetched(shard, topic, variant, result)
    return None


def try_read(
    shard: ShardState,
    name: str,
    request: ReadRequest,
    fetched: Sequence[Fetched | SelectedFrames] = (),
    is_last: bool = False,
) -> ReadAnswer | Refusal | Missing:
    """Read without waiting: records in cached pages, in the log, in memory, or in `fetched`.

    The last of several tries answers with what there is, if it moves the position.
    """
    if request.from_seq < 0:
        return invalid("from_seq", f"must be at least 0, got {request.from_seq}")
    topic = shard.topics.get(name)
    if topic is None or not topic.visible:
        return missing_topic(shard, name)
    if topic.config.ttl_ms:
        evict_expired(shard, topic, shard.clock.now_ms())
    cursor, tombstone = request.from_seq, None
    is_other_epoch = request.epoch is not None and request.epoch != topic.epoch
    if cursor > topic.head or cursor + 1 < topic.evict_floor or is_other_epoch:
        if cursor > topic.head and request.epoch == topic.epoch:
            return position_past_head(topic.name, cursor, topic.head, topic.epoch)
        cursor, tombstone = _skip_lost(topic, request)
    head = stop = topic.head if not request.options.is_strong else max(cursor, _synced_head(shard, topic))
    if topic.lost.ranges:
        lost = topic.lost.next_after(cursor)
        if lost is not None and lost.first <= cursor + 1 and tombstone is None:
            tombstone = _tombstone(topic, cursor + 1, lost.last, lost.reason)
            cursor = lost.last
            lost = topic.lost.next_after(cursor)
        stop = head if lost is None else min(head, max(cursor, lost.first - 1))
    if tombstone is None and cursor < stop:
        plain = _plain_case(shard, topic, request.options, cursor, stop, head)
        if plain is not None:
            return plain
    is_filtered = request.options.match is not None
    collector = (SelectedSlices if is_filtered else _SliceCollector)(
        shard, topic, request.options, fetched, cursor
    )
    if cursor < stop:
        collector.collect(stop)
    if collector.unfetched is not None and not (is_last and collector.cursor > cursor):
        return collector.unfetched
    if collector.damaged_seq and not collector.parts and tombstone is None:
        for one in fetched:
            if one.is_away and one.first_seq <= collector.damaged_seq <= one.last_seq:
                return store_unavailable(one.error, {"segment": one.run.name.key(DATA)})
        return _corrupt(shard, topic, collector.damaged_seq, collector.damaged, fetched)
    return ReadAnswer(
        topic=topic.name,
        epoch=topic.epoch,
        parts=collector.parts,
        count=collector.count,
        next_from_seq=collector.cursor,
        head_seq=head,
        earliest_seq=topic.earliest_seq,
        tombstone=tombstone,
    )


def _plain_case(
    shard: ShardState, topic: Topic, options: ReaderOptions, cursor: int, stop: int, head: int
) -> ReadAnswer | None:
    """Answer the common case: all records are live, in one run, and in cached pages; else None."""
    if options.match is not None or (options.nodes and topic.config.dedupe_node):
        return None
    first, last = cursor + 1, min(stop, cursor + options.limit)
    if first < topic.earliest_seq or last < first:
        return None
    run: Run = topic.run
    if first < run.first_seq:
        before = topic.run_of(first)
        if before is None or not before.first_seq <= first <= last < before.next_seq:
            return None
        run = before
    if run.dead is not None:
        return None
    variant = VARIANTS[options.with_tags, options.with_meta]
    parts = shard.pages.slices(topic.cache_key, first, last, variant, options.bytes_max)
    if parts is None:
        return None
    # Positional arguments: keyword arguments would cost as much as finding the page.
    return ReadAnswer(topic.name, topic.epoch, parts, last - cursor, last, head, topic.earliest_seq)


def _synced_head(shard: ShardState, topic: Topic) -> int:
    """Return the last seq for a strong read.

    Of the classes that promise a sync, class disk alone publishes before it; class fsync publishes after it.
    """
    return durable_seq(shard, topic) if topic.config.durability == "disk" else topic.head


def _skip_lost(topic: Topic, request: ReadRequest) -> tuple[int, Tombstone | None]:
    """Return the seq after which to read, and the tombstone for the records lost before it."""
    cursor = request.from_seq
    if cursor > topic.head or request.epoch not in (None, topic.epoch):
        return topic.evict_floor - 1, _tombstone(topic, 1, topic.head, "recreated")
    reason = topic.reason_for(cursor + 1)
    return topic.evict_floor - 1, _tombstone(topic, cursor + 1, topic.evict_floor - 1, reason)


def _tombstone(topic: Topic, gap_from: int, gap_to: int, reason: str) -> Tombstone:
    return Tombstone(gap_from, gap_to, reason, max(0, gap_to - gap_from + 1), topic.earliest_seq, topic.head)


class _SliceCollector(PageSlices):
    """The slices of one answer, from the runs of a topic."""

    __slots__ = ("source", "topic", "unfetched")

    def __init__(
        self,
        shard: ShardState,
        topic: Topic,
        options: ReaderOptions,
        fetched: Sequence[Fetched | SelectedFrames],
        cursor: int,
    ) -> None:
        super().__init__(options, options.nodes if topic.config.dedupe_node else NO_NODES, cursor)
        self.topic = topic
        pages = [one for one in fetched if isinstance(one, Fetched)]
        self.source = PageSource(shard, topic, self.variant, pages)
        self.unfetched: Unfetched | None = None

    def collect(self, stop: int) -> None:
        topic = self.topic
        page_count = 0
        while self.cursor < stop and self.count < self.limit and page_count < PAGES_MAX:
            index = topic.run_index(self.cursor + 1)
            if index == len(topic.runs):
                self.cursor = stop
                return
            run = topic.runs[index]
            first = run.next_live(max(self.cursor + 1, topic.earliest_seq, run.first_seq))
            last = min(stop, run.next_seq - 1)
            if first > last:
                self.cursor = stop if run is topic.run else last
                continue
            page_last = min(last, first | (PAGE_RECORDS - 1))
            page = self.source.page(run, first, page_last, self.room)
            if isinstance(page, Unfetched):
                self.unfetched = page
                return
            page_count += 1
            if not self.take(page, first, min(page_last, page.next_seq - 1), run):
                return


def _corrupt(
    shard: ShardState,
    topic: Topic,
    seq: int,
    damaged: dict[int, str],
    fetched: Sequence[Fetched | SelectedFrames],
) -> Refusal:
    run = topic.run_of(seq)
    assert run is not None
    file, offset = run.place_of(seq, shard.files)
    last = seq
    while last + 1 in damaged:
        last += 1
    # `damaged` ends with its page; a failed fetch is of more records.
    for failed in fetched:
        if failed.frames is None and failed.run is run and failed.first_seq <= last:
            last = max(last, failed.last_seq)
    note_damage(shard, _damaged_place(run, file), topic.name, file, f"seqs {seq} to {last}: {damaged[seq]}")
    message = f'seq {seq} of topic "{topic.name}" is damaged at offset {offset} of {file}: {damaged[seq]}'
    detail: dict[str, object] = {
        "segment": file,
        "first_seq": seq,
        "last_seq": last,
        "next_from_seq": last,
    }
    return Refusal(CORRUPT_SEGMENT, message, detail)


def _damaged_place(run: Run, file: str) -> SegmentName | str:
    if isinstance(run, SealedRun):
        return run.name
    assert isinstance(run, TailRun)
    return file if run.source is None else run.source.name
