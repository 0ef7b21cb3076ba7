"""Filling of pages: take the cached page that a reader needs, and add the new records of the topic's runs.

A page may begin in one run and end in another. Records in the log or in an active segment are read here, on
the loop, since they were written recently; records in a sealed segment are taken from `fetched`, or
requested with `Unfetched`. A page of large records is made for one reader and not cached: the cache is for
pages with many readers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topicsd.engine.read.page import PAGE_RECORDS, Frames, Page, Variant
from topicsd.engine.records.run import FrameSource, Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.copies import own_frames
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic

# Frames with at most this gap between them are read in one call, together with the gap.
READ_GAP_BYTES = 4096
READ_SPAN_BYTES = 1 << 20
# A larger page is not cached: it would displace many others, and each growth would copy it.
KEPT_BYTES_MAX = 256 << 10


class Unfetched(NamedTuple):
    """Records of a sealed segment that are in no page; the caller must fetch them from the disk."""

    run: SealedRun
    first_seq: int
    bytes_wanted: int


class Fetched(NamedTuple):
    """The frames of a sealed segment that a thread has read, or an error."""

    run: SealedRun
    first_seq: int
    last_seq: int
    frames: Frames | None
    error: str = ""
    is_away: bool = False
    """Whether the object store did not answer: the records are not damaged."""


class PageSource:
    """The pages of one topic in one variant, filled on demand."""

    __slots__ = ("_fetched", "_shard", "_topic", "_variant")

    def __init__(self, shard: ShardState, topic: Topic, variant: Variant, fetched: Sequence[Fetched]) -> None:
        self._shard = shard
        self._topic = topic
        self._variant = variant
        self._fetched = fetched

    def page(self, run: Run, first: int, last: int, bytes_wanted: int) -> Page | Unfetched:
        """Return a page with the records of `run` from `first` to `last`.

        It may have fewer records, as many as one disk read returns. Return `Unfetched` if records of a sealed
        segment are missing.
        """
        cache = self._shard.pages
        page = cache.page(self._topic.cache_key, first, self._variant)
        if page.next_seq > last:
            return page
        if _is_large(run, page.next_seq, last):
            page = Page(first)
            return self._grow_by(page, run, first, last, bytes_wanted) or page
        before = len(page.text)
        while page.next_seq <= last:
            missing = self._grow(page, last, bytes_wanted)
            if missing is not None:
                cache.add_bytes(len(page.text) - before)
                if page.damage is not None:
                    cache.forget(self._topic.cache_key, first, self._variant)
                return missing
        cache.add_bytes(len(page.text) - before)
        if page.damage is not None:
            # Do not cache damage: a later read may succeed.
            cache.forget(self._topic.cache_key, first, self._variant)
        return page

    def _grow(self, page: Page, last: int, bytes_wanted: int) -> Unfetched | None:
        """Add the records of the next run to the page, or skip seqs that are in no run."""
        run = self._topic.run_of(page.next_seq)
        if run is None or run.first_seq > last:
            page.skip(last)
            return None
        if run.first_seq > page.next_seq:
            page.skip(run.first_seq - 1)
        run_last = min(run.next_seq - 1, page.first_seq + PAGE_RECORDS - 1)
        return self._grow_by(page, run, page.next_seq, run_last, bytes_wanted)

    def _grow_by(self, page: Page, run: Run, first: int, last: int, bytes_wanted: int) -> Unfetched | None:
        if isinstance(run, SealedRun):
            return self._grow_fetched(page, run, first, last, bytes_wanted)
        assert isinstance(run, TailRun)
        topic = self._topic
        for frames, error in _read_run(run, self._shard.files, first, last, bytes_wanted):
            if error:
                page.skip(frames.first_seq)
                page.add_damage(frames.first_seq, error)
            else:
                page.add_frames(topic.topic_id, own_frames(run, frames, topic), self._variant)
        return None

    def _grow_fetched(
        self, page: Page, run: SealedRun, first: int, last: int, bytes_wanted: int
    ) -> Unfetched | None:
        for one in reversed(self._fetched):
            if one.run is run and one.first_seq <= first <= one.last_seq:
                last = min(last, one.last_seq)
                if one.frames is None:
                    page.skip(last)
                    for seq in range(first, last + 1):
                        page.add_damage(seq, one.error)
                else:
                    page.add_frames(self._topic.topic_id, one.frames.part(first, last), self._variant)
                    # The page may have damage of a segment before this one, or one that the store has not
                    # delivered: no reason to distrust this one.
                    is_damaged = page.damage is not None and max(page.damage) >= first
                    if is_damaged and self._shard.segments.distrust(run.name, run.entry):
                        # Read again, from the copy in the object store.
                        return Unfetched(run, first, bytes_wanted)
                return None
        return Unfetched(run, first, bytes_wanted)


def _is_large(run: Run, first: int, last: int) -> bool:
    if isinstance(run, TailRun):
        low = max(0, first - run.first_seq)
        return sum(run.lengths[low : last + 1 - run.first_seq]) > KEPT_BYTES_MAX
    assert isinstance(run, SealedRun)
    return run.entry.data_bytes * PAGE_RECORDS > run.entry.count * KEPT_BYTES_MAX


def keep_fetched(shard: ShardState, topic: Topic, variant: Variant, fetched: Fetched) -> None:
    """Add all records of one fetch to cached pages, for the reads that follow."""
    run, frames = fetched.run, fetched.frames
    if (
        frames is None
        or topic.run_of(fetched.first_seq) is not run
        or _is_large(run, fetched.first_seq, fetched.last_seq)
    ):
        return
    cache, source = shard.pages, PageSource(shard, topic, variant, [fetched])
    next_page = fetched.first_seq // PAGE_RECORDS * PAGE_RECORDS + PAGE_RECORDS
    for first in (fetched.first_seq, *range(next_page, fetched.last_seq + 1, PAGE_RECORDS)):
        last = min(fetched.last_seq, first | (PAGE_RECORDS - 1))
        page = cache.page(topic.cache_key, first, variant)
        if page.next_seq != first:
            # The page begins before the segment, or another read has filled it since.
            source.page(run, first, last, 0)
            continue
        before = len(page.text)
        page.add_frames(topic.topic_id, frames.part(first, last), variant)
        cache.add_bytes(len(page.text) - before)
        if page.damage is not None:
            cache.forget(topic.cache_key, first, variant)


def _read_run(
    run: TailRun, log: FrameSource, first: int, last: int, bytes_wanted: int
) -> Iterable[tuple[Frames, str]]:
    """Yield the frames of a range in groups, each with an error text or an empty string.

    Frames that are close together are read at once. An unreadable frame is yielded alone, with an error.
    """
    base = run.first_seq
    if run.frames is not None:
        for seq in range(first, last + 1):
            frame = run.frames[seq - base]
            yield Frames(seq, frame, (0,), (len(frame),)), ""
        return
    source = run.source or log
    places = run.bytes_positions[first - base : last + 1 - base]
    lengths = run.lengths[first - base : last + 1 - base]
    yield from read_places(source, range(first, last + 1), places, lengths, bytes_wanted, READ_GAP_BYTES)


def read_places(
    source: FrameSource,
    seqs: Sequence[int],
    places: array[int],
    lengths: array[int],
    bytes_wanted: int,
    gap_bytes: int,
) -> Iterable[tuple[Frames, str]]:
    """Yield the frames of these seqs in groups, as `_read_run` does, until `bytes_wanted` were read."""
    at, count = 0, len(places)
    while at < count and bytes_wanted > 0:
        start = places[at]
        end = start + lengths[at]
        next_at = at + 1
        while next_at < count:
            place = places[next_at]
            # Positions may decrease: originals can be before frames that the topic wrote earlier.
            if place - end > gap_bytes or place - start > READ_SPAN_BYTES or place < end:
                break
            end = place + lengths[next_at]
            next_at += 1
        try:
            data = source.read(start, end)
            starts = [place - start for place in places[at:next_at]]
            yield Frames(seqs[at], data, starts, lengths[at:next_at]), ""
        except OSError:
            # Read each frame alone, so that one unreadable frame does not affect the others.
            for n in range(at, next_at):
                yield _read_alone(source, seqs[n], places[n], lengths[n])
        bytes_wanted -= end - start
        at = next_at


def _read_alone(source: FrameSource, seq: int, place: int, length: int) -> tuple[Frames, str]:
    try:
        return Frames(seq, source.read(place, place + length), (0,), (length,)), ""
    except OSError as error:
        return Frames(seq, b"", (), ()), f"it cannot be read: {error.strerror}"
