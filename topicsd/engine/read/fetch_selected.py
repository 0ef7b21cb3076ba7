"""The part of a read with a filter that runs on a thread: selected seqs of a run, and frames.

A sealed segment is searched by its tags file. The tags of an active segment may not be loaded after a start;
they are loaded whole.

A damaged record whose tag cannot be known counts as selected, so that a reader learns of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from shared.contract.tag_filter import TagFilter
from topicsd.engine.read.fetch import FETCH_BYTES_MAX
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tag_index import TagIndex
from topicsd.engine.records.tag_search import TagSearch, search_for
from topicsd.engine.records.tail_run import TailRun
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.reader import SegmentReader
from topicsd.store.object_store import StoreRefused, StoreUnavailable

# Frames with at most this gap between them are read in one call: a call costs as much as copying these bytes.
GAP_BYTES: Final = 32 << 10


class SelectedFrames(NamedTuple):
    """The frames of some seqs of a sealed segment, or an error."""

    run: SealedRun
    first_seq: int
    last_seq: int
    frames: dict[int, bytes] | None
    damage: Mapping[int, str] = MappingProxyType({})
    """Why a record cannot be read."""
    error: str = ""
    is_away: bool = False
    """Whether the object store did not answer: the records are not damaged."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.frames.values())) if self.frames else 0


class TagSearchResult(NamedTuple):
    """What a thread has found: the selected seqs of runs, or the tags of an active segment, and frames."""

    seqs: list[tuple[SealedRun | TailRun, array[int]]]
    tags: TagIndex | None = None
    frames: Sequence[SelectedFrames] = ()


class Unselected(NamedTuple):
    """Runs whose selected seqs or frames are not at hand; the caller must have a thread find them.

    `run` is an active segment, or the first of `sealed`.
    """

    run: SealedRun | TailRun
    sealed: list[tuple[SealedRun, array[int] | None]]
    """Sealed runs in their order, with the selected seqs if they are known."""
    tag_filter: TagFilter
    first_seq: int
    last_seq: int
    records_wanted: int
    bytes_wanted: int


def select_on_thread(reader: SegmentReader, request: Unselected) -> TagSearchResult:
    """Find what a read lacks. Raises OSError."""
    run, search = request.run, search_for(request.tag_filter)
    if isinstance(run, TailRun):
        return _load_tags(run, search)
    columns: list[tuple[SealedRun | TailRun, array[int]]] = []
    frames: list[SelectedFrames] = []
    count, room = request.records_wanted, request.bytes_wanted
    for sealed, known in request.sealed:
        seqs = array("Q", _select_sealed(reader, sealed, search)) if known is None else known
        columns.append((sealed, seqs))
        low = bisect_left(seqs, request.first_seq)
        first_ones = [seq for seq in seqs[low : low + count] if seq <= request.last_seq]
        if first_ones:
            frames.append(_read_frames(reader, sealed, first_ones, room))
            count -= len(first_ones)
            room -= frames[-1].size_bytes
        if count <= 0 or room <= 0:
            break
    return TagSearchResult(columns, frames=frames)


def _load_tags(run: TailRun, search: TagSearch) -> TagSearchResult:
    source = run.source
    assert source is not None
    try:
        return TagSearchResult([], TagIndex.of(source.tags()))
    except SegmentDamage:
        salvaged = source.salvage_tags()
        seqs = array("Q", sorted({*search.select(salvaged.by_tag.items()), *salvaged.damaged}))
        return TagSearchResult([(run, seqs)])


def _select_sealed(reader: SegmentReader, run: SealedRun, search: TagSearch) -> list[int]:
    try:
        return reader.find_in_tags(run.name, run.entry, search.find_in)
    except SegmentDamage:
        salvaged = reader.salvage_tags(run.name, run.entry)
        return sorted({*search.select(salvaged.by_tag.items()), *salvaged.damaged})


def _read_frames(
    reader: SegmentReader, run: SealedRun, seqs: Sequence[int], bytes_wanted: int
) -> SelectedFrames:
    """Read the frames of these seqs, as many as suit one answer, at least one."""
    name, entry = run.name, run.entry
    frames: dict[int, bytes] = {}
    damage: dict[int, str] = {}
    first, last = seqs[0], seqs[0]
    room = min(bytes_wanted, FETCH_BYTES_MAX)
    try:
        index = reader.index(name, entry)
        offsets, lengths, base = index.offsets, index.lengths, index.first_seq
        at = 0
        while at < len(seqs) and (room > 0 or not at):
            start = offsets[seqs[at] - base]
            end = start + lengths[seqs[at] - base]
            next_at = at + 1
            while next_at < len(seqs):
                place, length = offsets[seqs[next_at] - base], lengths[seqs[next_at] - base]
                if place - end > GAP_BYTES or place + length - start > FETCH_BYTES_MAX:
                    break
                end = place + length
                next_at += 1
            group = seqs[at:next_at]
            try:
                data, start = reader.frames(name, entry, index, group[0], group[-1])
                for seq in group:
                    place, length = offsets[seq - base] - start, lengths[seq - base]
                    frames[seq] = data[place : place + length]
            except SegmentDamage:
                # The damage may be of records between them.
                for seq in group:
                    try:
                        frames[seq], _ = reader.frames(name, entry, index, seq, seq)
                    except SegmentDamage as one:
                        damage[seq] = one.what
            last = group[-1]
            room -= sum(lengths[seq - base] for seq in group)
            at = next_at
    except SegmentDamage as one:
        return SelectedFrames(run, first, max(last, one.last_seq), None, error=one.what)
    except (StoreUnavailable, StoreRefused) as error:
        if not frames:
            return SelectedFrames(run, first, first, None, error=str(error), is_away=True)
    except OSError as error:
        if not frames:
            return SelectedFrames(run, first, first, None, error=f"it cannot be read: {error.strerror}")
    return SelectedFrames(run, first, last, frames, damage=damage)
