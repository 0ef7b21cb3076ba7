"""From the runs of a topic to the page that a reader needs: the cached one, grown by what is new.

A page may begin in one run and end in another. What stands in the log or in an active segment is read here,
as it was written lately; what stands in a sealed segment comes from `fetched`, or is asked for. A page of
large records is made for one reader and not kept: the cache is for what many read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topicsd.engine.read.page import PAGE_RECORDS, Frames, Page, Variant
from topicsd.engine.records.run import Run, Source
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.copies import own_frames
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic

# Frames that stand this close to each other are read in one call, with what is between them.
READ_GAP_BYTES = 4096
READ_SPAN_BYTES = 1 << 20
# A page with more than this is not kept: it would take the place of many, and each growth would copy it.
KEPT_BYTES_MAX = 256 << 10


class Unfetched(NamedTuple):
    """Records of a sealed segment that are in no page, for whoever can wait for the disk."""

    run: SealedRun
    first_seq: int
    bytes_wanted: int


class Fetched(NamedTuple):
    """Frames of a sealed segment as they were read, or why they could not be."""

    run: SealedRun
    first_seq: int
    last_seq: int
    frames: Frames | None
    error: str = ""


class PageSource:
    __slots__ = ("_fetched", "_shard", "_topic", "_variant")

    def __init__(self, shard: ShardState, topic: Topic, variant: Variant, fetched: Sequence[Fetched]) -> None:
        self._shard = shard
        self._topic = topic
        self._variant = variant
        self._fetched = fetched

    def page(self, run: Run, first: int, upto: int, bytes_wanted: int) -> Page | Unfetched:
        """A page that has the records of the run from `first`, up to `upto` or what fits into one reading."""
        cache = self._shard.pages
        page = cache.page(self._topic.epoch, first, self._variant)
        if page.next_seq > upto:
            return page
        if _is_large(run, page.next_seq, upto):
            page = Page(first)
            return self._grow_by(page, run, first, upto, bytes_wanted) or page
        before = len(page.text)
        while page.next_seq <= upto:
            missing = self._grow(page, upto, bytes_wanted)
            if missing is not None:
                cache.grew(len(page.text) - before)
                return missing
        cache.grew(len(page.text) - before)
        if page.damage is not None:
            # What could not be read now may be read another time.
            cache.forget(self._topic.epoch, first, self._variant)
        return page

    def _grow(self, page: Page, upto: int, bytes_wanted: int) -> Unfetched | None:
        """Take in what the next run has for the page, or step over what no run has."""
        run = self._topic.run_of(page.next_seq)
        if run is None or run.first_seq > upto:
            page.skip(upto)
            return None
        if run.first_seq > page.next_seq:
            page.skip(run.first_seq - 1)
        last = min(run.next_seq - 1, page.first_seq + PAGE_RECORDS - 1)
        return self._grow_by(page, run, page.next_seq, last, bytes_wanted)

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
        for one in self._fetched:
            if one.run is run and one.first_seq <= first <= one.last_seq:
                last = min(last, one.last_seq)
                if one.frames is None:
                    page.skip(last)
                    for seq in range(first, last + 1):
                        page.add_damage(seq, one.error)
                else:
                    page.add_frames(self._topic.topic_id, one.frames.part(first, last), self._variant)
                return None
        return Unfetched(run, first, bytes_wanted)


def _is_large(run: Run, first: int, last: int) -> bool:
    if isinstance(run, TailRun):
        low = max(0, first - run.first_seq)
        return sum(run.lengths[low : last + 1 - run.first_seq]) > KEPT_BYTES_MAX
    assert isinstance(run, SealedRun)
    return run.entry.data_bytes * PAGE_RECORDS > run.entry.count * KEPT_BYTES_MAX


def keep_fetched(shard: ShardState, topic: Topic, variant: Variant, fetched: Fetched) -> None:
    """Make pages of all that came with one reading, for the reads that follow."""
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
        upto = min(fetched.last_seq, first | (PAGE_RECORDS - 1))
        page = cache.page(topic.epoch, first, variant)
        if page.next_seq != first:
            # It begins in front of the segment, or somebody read on meanwhile.
            source.page(run, first, upto, 0)
            continue
        before = len(page.text)
        page.add_frames(topic.topic_id, frames.part(first, upto), variant)
        cache.grew(len(page.text) - before)
        if page.damage is not None:
            cache.forget(topic.epoch, first, variant)


def _read_run(
    run: TailRun, log: Source, first: int, last: int, bytes_wanted: int
) -> Iterable[tuple[Frames, str]]:
    """The frames of a stretch, those that stand close together in one read; with an error one by itself."""
    base = run.first_seq
    if run.frames is not None:
        for seq in range(first, last + 1):
            frame = run.frames[seq - base]
            yield Frames(seq, frame, (0,), (len(frame),)), ""
        return
    source = run.source or log
    places = run.places[first - base : last + 1 - base]
    lengths = run.lengths[first - base : last + 1 - base]
    at, count = 0, len(places)
    while at < count and bytes_wanted > 0:
        start = places[at]
        end = start + lengths[at]
        upto = at + 1
        while upto < count:
            place = places[upto]
            # Originals may stand in front of what a topic wrote before it copied them.
            if place - end > READ_GAP_BYTES or place - start > READ_SPAN_BYTES or place < end:
                break
            end = place + lengths[upto]
            upto += 1
        try:
            data = source.read(start, end)
            starts = [place - start for place in places[at:upto]]
            yield Frames(first + at, data, starts, lengths[at:upto]), ""
        except OSError:
            # One of them cannot be read: each by itself, so that it does not take the others with it.
            for n in range(at, upto):
                yield _read_alone(source, first + n, places[n], lengths[n])
        bytes_wanted -= end - start
        at = upto


def _read_alone(source: Source, seq: int, place: int, length: int) -> tuple[Frames, str]:
    try:
        return Frames(seq, source.read(place, place + length), (0,), (length,)), ""
    except OSError as error:
        return Frames(seq, b"", (), ()), f"it cannot be read: {error.strerror}"
