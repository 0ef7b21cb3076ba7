"""The records of one answer that a filter selects.

The seqs come from the tag indexes of the runs, so that other records cost nothing. Where a page has many of
them it is filled and shared like any other; where they are few their frames are read one by one, and kept
nowhere.

A step examines a bounded number of tags (`TAGS_MAX`), and may end without a record: its cursor then has
moved.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import sub
from typing import Final

from shared.contract.reader_options import NO_NODES, ReaderOptions
from shared.contract.tag_filter import TagFilter
from topicsd.engine.read.fetch_selected import GAP_BYTES, SelectedFrames, Unselected
from topicsd.engine.read.fill_page import Fetched, PageSource, Unfetched, read_places
from topicsd.engine.read.page import PAGE_RECORDS, Frames, Page
from topicsd.engine.read.page_slices import PageSlices
from topicsd.engine.read.selections import SelectedPage
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tag_index import RANGE_RECORDS
from topicsd.engine.records.tag_search import search_for
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.copies import own_frames_of
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.frame import FrameDamage, parse_frame

TAGS_MAX: Final = 8192
"""The tags that one step may examine, and about the time of 1 ms."""
RANGE_COST: Final = 8
"""The cost of a range without a look at its tags, in tags."""
NEW_MAX: Final = 64
NEW_BYTES_MAX: Final = 256 << 10
"""So many records at the end of a topic are compared one by one, unless the filter has nothing but tags."""
KEPT_RECORDS: Final = 4 * RANGE_RECORDS
RANGE_BYTES_MAX: Final = 256 << 10
"""The few selected records of so many seqs are kept, up to this size."""
RUNS_MAX: Final = 16
"""Sealed runs that a thread searches for one read at once."""
FEW_MAX: Final = 512
"""The frames that are read one by one at once."""
SPARSE_MAX: Final = 8
"""A page with at most this many selected records is not filled for them."""

_page_of = PAGE_RECORDS.__rfloordiv__


class SelectedSlices(PageSlices):
    """The slices of one answer to a reader with a filter."""

    __slots__ = ("_cost", "_fetched", "_filter", "_shard", "_source", "_topic", "unfetched")

    def __init__(
        self,
        shard: ShardState,
        topic: Topic,
        options: ReaderOptions,
        fetched: Sequence[Fetched | SelectedFrames],
        cursor: int,
    ) -> None:
        super().__init__(options, options.nodes if topic.config.dedupe_node else NO_NODES, cursor)
        assert options.match is not None
        self._shard = shard
        self._topic = topic
        self._filter: TagFilter = options.match
        self._fetched = [one for one in fetched if isinstance(one, SelectedFrames)]
        pages = [one for one in fetched if isinstance(one, Fetched)]
        self._source = PageSource(shard, topic, self.variant, pages)
        self._cost = 0
        self.unfetched: Unfetched | Unselected | None = None

    def collect(self, stop: int) -> None:
        topic = self._topic
        while self.cursor < stop and self.count < self.limit and self._cost < TAGS_MAX:
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
            is_taken = self._take_range(run, first, last, stop)
            if is_taken is not None:
                if not is_taken:
                    return
                continue
            if isinstance(run, TailRun) and not run.tags.is_unknown:
                selected, last = self._select_tail(run, first, last)
                seqs: Sequence[int] = selected
            else:
                assert isinstance(run, SealedRun | TailRun)
                kept = self._select_kept(run, first, last, stop)
                if kept is None:
                    return
                seqs = kept
            if run.dead is not None:
                seqs = [seq for seq in seqs if not run.is_dead(seq)]
            if not self._take_selected(run, seqs, stop):
                return
            self.cursor = last

    # -- ranges with few selected records, which are kept

    def _take_range(self, run: Run, first: int, last: int, stop: int) -> bool | None:
        """Take the selected records of the range of `first`.

        Return False at a bound, or when records have to be fetched, and None when the range is not kept.
        """
        if isinstance(run, TailRun) and run.tags.is_unknown:
            return None
        range_last = min(run.next_seq - 1, first | (KEPT_RECORDS - 1))
        range_first = first & -KEPT_RECORDS
        # The tags of a range are compared with globs at once, which takes a few milliseconds.
        if isinstance(run, TailRun) and (self._filter.globs or run.is_growing_at(range_last)):
            range_last = min(run.next_seq - 1, first | (RANGE_RECORDS - 1))
            range_first = first & -RANGE_RECORDS
            if run.is_growing_at(range_last):
                return None
        range_first = max(run.first_seq, range_first)
        self._cost += RANGE_COST
        key = (self._topic.cache_key, self.variant.number, self._filter, range_first, range_last)
        page = self._shard.pages.selected_pages.find(key)
        if page is None:
            page = self._selected_page(run, range_first, range_last, stop)
            if page is None:
                return None if self.unfetched is None else False
            self._shard.pages.selected_pages.add(key, page)
        last = min(last, range_last)
        low, high = bisect_left(page.seqs, first), bisect_right(page.seqs, last)
        if low == high:
            self.cursor = last
            return True
        if run.dead is None and (not self.nodes or page.page.nodes is None):
            high = min(high, low + self.limit - self.count)
            start = page.ends[low - 1] if low else 0
            size = page.ends[high - 1] - start
            if size < self.room:
                self.parts.append(page.text[start : start + size])
                self.room -= size
                self.count += high - low
                if self.count >= self.limit:
                    self.cursor = page.seqs[high - 1]
                    return False
                self.cursor = last
                return True
        live = [at for at in range(low, high) if not run.is_dead(page.seqs[at])]
        texts = page.texts(low, high)
        seqs = [page.seqs[at] for at in live]
        if not self.take_texts(page.page, seqs, [texts[at - low] for at in live]):
            return False
        self.cursor = last
        return True

    def _selected_page(self, run: Run, first: int, last: int, stop: int) -> SelectedPage | None:
        """Return a page of the few selected records of a range; None if they are many, or not at hand."""
        if isinstance(run, TailRun):
            search = search_for(self._filter)
            seqs = []
            for at in range(first & -RANGE_RECORDS, last + 1, RANGE_RECORDS):
                of_range = max(first, at), min(last, at + RANGE_RECORDS - 1)
                more, cost = run.tags.select(search, *of_range)
                seqs += more
                self._cost += cost
        else:
            assert isinstance(run, SealedRun)
            kept = self._select_kept(run, first, last, stop)
            if kept is None:
                return None
            seqs = list(kept)
        if run.dead is not None:
            seqs = [seq for seq in seqs if not run.is_dead(seq)]
        if len(seqs) > SPARSE_MAX * (last // PAGE_RECORDS - first // PAGE_RECORDS + 1):
            return None
        page = Page(first)
        texts: list[bytes] = []
        if isinstance(run, TailRun):
            lengths = run.lengths
            if sum([lengths[seq - run.first_seq] for seq in seqs]) > RANGE_BYTES_MAX:
                return None
            for part, frames, error in self._read_tail(run, seqs) if seqs else ():
                if error:
                    return None
                own = own_frames_of(run, part, frames, self._topic)
                texts += page.render(self._topic.topic_id, part, own, self.variant)
        elif seqs:
            assert isinstance(run, SealedRun)
            frames_of_seqs = self._frames_of(run, seqs, first, stop)
            if frames_of_seqs is None:
                return None
            texts = page.render(self._topic.topic_id, seqs, _joined(frames_of_seqs), self.variant)
        if page.damage is not None:
            return None
        return SelectedPage(seqs, list(accumulate(map(len, texts))), b"".join(texts), page)

    def _frames_of(self, run: SealedRun, seqs: list[int], first: int, stop: int) -> list[bytes] | None:
        """Return the frames of these seqs as they were fetched; have them fetched once."""
        if run.mean_bytes * len(seqs) > RANGE_BYTES_MAX:
            return None
        is_fetched = False
        for one in reversed(self._fetched):
            if one.run is run and one.frames is not None:
                frames = [one.frames.get(seq, b"") for seq in seqs]
                if all(frames):
                    return frames
            is_fetched = is_fetched or (one.run is run and one.first_seq <= seqs[0] <= one.last_seq)
        if not is_fetched:
            self._miss(run, first, stop)
        return None

    # -- the selected seqs

    def _select_tail(self, run: TailRun, first: int, last: int) -> tuple[list[int], int]:
        """Return selected seqs, as many as are wanted, and the last seq that was examined."""
        search = search_for(self._filter)
        seqs: list[int] = []
        seqs_max = min(self.limit - self.count, FEW_MAX)
        while True:
            range_last = min(last, first | (RANGE_RECORDS - 1))
            if (
                not search.is_exact
                and range_last - first < NEW_MAX
                and run.is_growing_at(range_last)
                and sum(run.lengths_of(first, range_last)) <= NEW_BYTES_MAX
            ):
                # Cheaper than all tags of a range that is not sorted yet.
                self._cost += NEW_MAX
                seqs += self._select_new(run, range(first, range_last + 1))
            else:
                more, cost = run.tags.select(search, first, range_last)
                self._cost += RANGE_COST + cost
                seqs += more
            if range_last == last or len(seqs) >= seqs_max or self._cost >= TAGS_MAX:
                return seqs, range_last
            first = range_last + 1

    def _select_new(self, run: TailRun, seqs: range) -> list[int]:
        """Return the selected seqs, and the damaged ones, whose tags are unknown."""
        selects = search_for(self._filter).selects
        selected: list[int] = []
        for part, frames, error in self._read_tail(run, seqs):
            if error:
                selected += part
                continue
            for seq, start, length in zip(part, frames.starts, frames.lengths, strict=True):
                try:
                    frame = parse_frame(frames.data, start, min(len(frames.data), start + length))
                except FrameDamage:
                    selected.append(seq)
                else:
                    if frame.tag and selects(frame.tag):
                        selected.append(seq)
        return selected

    def _select_kept(
        self, run: SealedRun | TailRun, first: int, last: int, stop: int
    ) -> Sequence[int] | None:
        """Return what a thread has found, or None when one has to."""
        if isinstance(run, SealedRun) and not run.entry.has_tags:
            self._cost += RANGE_COST
            return ()
        seqs = self._shard.pages.selections.find(run, self._filter)
        if seqs is None:
            self._miss(run, first, stop)
            return None
        part = seqs[bisect_left(seqs, first) : bisect_right(seqs, last)]
        self._cost += RANGE_COST + len(part)
        return part

    def _miss(self, run: SealedRun | TailRun, first: int, stop: int) -> None:
        """Have a thread find the selected seqs and frames of a run, and of those after it."""
        sealed = []
        if isinstance(run, SealedRun):
            at = self._topic.run_index(first)
            for one in self._topic.runs[at : at + RUNS_MAX]:
                if not isinstance(one, SealedRun) or one.entry.tier != run.entry.tier:
                    break
                sealed.append((one, self._shard.pages.selections.find(one, self._filter)))
        records_wanted = max(SPARSE_MAX * KEPT_RECORDS // PAGE_RECORDS, min(self.limit - self.count, FEW_MAX))
        self.unfetched = Unselected(
            run, sealed, self._filter, first, stop, records_wanted, max(self.room, RANGE_BYTES_MAX)
        )

    # -- their records

    def _take_selected(self, run: Run, seqs: Sequence[int], stop: int) -> bool:
        """Take these live records of a run; return False at a bound, or when records have to be fetched."""
        for at in range(0, len(seqs), FEW_MAX):
            batch = seqs[at : at + min(FEW_MAX, self.limit - self.count)]
            page_count = batch[-1] // PAGE_RECORDS - batch[0] // PAGE_RECORDS + 1
            if len(batch) <= SPARSE_MAX * page_count:
                if not self._take_few(run, batch, stop):
                    return False
            else:
                for _, of_page in groupby(batch, _page_of):
                    if not self._take_page(run, list(of_page)):
                        return False
            if at + len(batch) < len(seqs) and len(batch) < FEW_MAX:
                # The rest is left to the next step, when some of these were of the reader's own nodes.
                return False
        return True

    def _take_page(self, run: Run, seqs: Sequence[int]) -> bool:
        """Take these records of one page."""
        page: Page | None = None
        at = 0
        while at < len(seqs):
            if page is None or page.next_seq <= seqs[at]:
                last = min(run.next_seq - 1, seqs[-1] | (PAGE_RECORDS - 1))
                filled = self._source.page(run, seqs[at], last, self.room)
                if isinstance(filled, Unfetched):
                    self.unfetched = filled
                    return False
                page = filled
            end = bisect_left(seqs, page.next_seq, at)
            if not self.take_seqs(page, seqs[at:end]):
                return False
            at = end
        return True

    def _take_few(self, run: Run, seqs: Sequence[int], stop: int) -> bool:
        """Take records whose frames are read one by one."""
        if isinstance(run, TailRun):
            return self._take_few_of_tail(run, seqs)
        assert isinstance(run, SealedRun)
        page = Page(seqs[0])
        source = self._fetched_at(run, seqs[0])
        if source is None:
            self._miss(run, seqs[0], stop)
            return False
        if source.frames is None:
            page.add_damage(seqs[0], source.error)
            return self.take_texts(page, seqs[:1], [b""])
        for seq, what in source.damage.items():
            page.add_damage(seq, what)
        part = seqs[: bisect_right(seqs, source.last_seq)]
        if any(seq not in source.frames and seq not in source.damage for seq in part):
            part = seqs[:1]
        frames = _joined([source.frames.get(seq, b"") for seq in part])
        texts = page.render(self._topic.topic_id, part, frames, self.variant)
        is_damaged = page.damage is not None and not source.damage
        if is_damaged and self._shard.segments.distrust(run.name, run.entry):
            # Read again, from the copy in the object store.
            self._miss(run, seqs[0], stop)
            return False
        if not self.take_texts(page, part, texts):
            return False
        return len(part) == len(seqs) or self._take_few(run, seqs[len(part) :], stop)

    def _take_few_of_tail(self, run: TailRun, seqs: Sequence[int]) -> bool:
        page = Page(seqs[0])
        at = 0
        while at < len(seqs):
            end = at + self._count_that_fit(run, seqs[at:])
            for part, frames, error in self._read_tail(run, seqs[at:end]):
                if error:
                    page.add_damage(part[0], error)
                    texts = [b""]
                else:
                    own = own_frames_of(run, part, frames, self._topic)
                    texts = page.render(self._topic.topic_id, part, own, self.variant)
                if not self.take_texts(page, part, texts):
                    return False
            at = end
        return True

    def _count_that_fit(self, run: TailRun, seqs: Sequence[int]) -> int:
        """Return how many of the frames may be read for the room that is left, at least 1."""
        lengths, base = run.lengths, run.first_seq
        ends = list(accumulate([lengths[seq - base] for seq in seqs]))
        return max(1, bisect_right(ends, self.room))

    def _fetched_at(self, run: SealedRun, seq: int) -> SelectedFrames | None:
        for one in reversed(self._fetched):
            if one.run is not run or not one.first_seq <= seq <= one.last_seq:
                continue
            if one.frames is None or seq in one.frames or seq in one.damage:
                return one
        return None

    def _read_tail(self, run: TailRun, seqs: Sequence[int]) -> list[tuple[Sequence[int], Frames, str]]:
        """Read the frames of these seqs, at least of the first one."""
        base = run.first_seq
        if run.frames is not None:
            return [(seqs, _joined([run.frames[seq - base] for seq in seqs]), "")]
        positions, lengths = run.bytes_positions, run.lengths
        groups: list[tuple[Sequence[int], Frames, str]] = []
        places = array("Q", [positions[seq - base] for seq in seqs])
        sizes = array("I", [lengths[seq - base] for seq in seqs])
        done = 0
        source = run.source or self._shard.files
        for frames, error in read_places(source, seqs, places, sizes, 1 << 62, GAP_BYTES):
            count = 1 if error else len(frames.starts)
            groups.append((seqs[done : done + count], frames, error))
            done += count
        return groups


def _joined(frames: Sequence[bytes]) -> Frames:
    lengths = list(map(len, frames))
    data = b"".join(frames)
    ends: list[int] = []
    end = 0
    for length in lengths:
        end += length
        ends.append(end)
    return Frames(0, data, list(map(sub, ends, lengths)), lengths)
