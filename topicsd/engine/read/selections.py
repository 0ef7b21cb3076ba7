"""The seqs that filters select in segments, as threads have found them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final

from shared.contract.tag_filter import TagFilter
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.segment.entry import SegmentName

KEPT_BYTES_MAX: Final = 4 << 20
_ENTRY_BYTES: Final = 300


class Selections:
    """An LRU cache of the seqs that a filter selects in a segment, within a bound of bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[SegmentName, int, TagFilter], array[int]] = OrderedDict()
        self._bytes = 0

    def find(self, run: Run, tag_filter: TagFilter) -> array[int] | None:
        key = _key(run, tag_filter)
        seqs = self._kept.get(key)
        if seqs is not None:
            self._kept.move_to_end(key)
        return seqs

    def add(self, run: Run, tag_filter: TagFilter, seqs: array[int]) -> None:
        key = _key(run, tag_filter)
        if key not in self._kept:
            self._kept[key] = seqs
            self._bytes += _ENTRY_BYTES + 8 * len(seqs)
        while self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= _ENTRY_BYTES + 8 * len(dropped)


def _key(run: Run, tag_filter: TagFilter) -> tuple[SegmentName, int, TagFilter]:
    """Return a key that an active segment has again only with the same records."""
    if isinstance(run, SealedRun):
        return run.name, run.next_seq, tag_filter
    assert isinstance(run, TailRun)
    assert run.source is not None
    return run.source.name, run.next_seq, tag_filter
