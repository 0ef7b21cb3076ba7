"""A sealed run: a sealed segment as part of a topic. Totals are in memory, records and index in its files.

Memory use is per segment and not per record, except for `dead` once a record in the middle is deleted. Exact
counts need the index: for caps and deletes that end within the segment, and for age. The index is read on
demand, on the loop. The run keeps the columns of some records from the front of the topic on: with very many
topics under a cap, more than the index cache holds, otherwise each write would read an index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from topicsd.engine.records.run import FrameSource, Run
from topicsd.segment.entry import DATA, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex

if TYPE_CHECKING:
    from topicsd.segment.reader import SegmentReader

# These columns take 1.5 KiB; to read an index of 10,000 records costs as much as 100 writes.
NEAR_RECORDS = 128


class _NearColumns(NamedTuple):
    """The index columns of some records from `first_seq` on."""

    first_seq: int
    lengths: array[int]
    times_ms: array[int]


_NONE_NEAR = _NearColumns(0, array("I"), array("Q"))


class SealedRun(Run):
    """A run whose records are in one sealed segment."""

    __slots__ = (
        "_front",
        "_near",
        "_next_seq",
        "_reader",
        "dead_count",
        "entry",
        "is_next_prefetched",
        "live_bytes",
        "live_count",
        "name",
        "saved_dead_count",
    )

    def __init__(
        self, reader: SegmentReader, name: SegmentName, entry: SegmentEntry, dead: bytearray | None = None
    ) -> None:
        super().__init__(entry.first_seq)
        self._reader = reader
        self._next_seq = entry.first_seq + entry.count
        self._front = (entry.first_seq, entry.first_ts)
        """A seq and its time: the first record that was young enough at the last search by time."""
        self._near = _NONE_NEAR
        self.is_next_prefetched = False
        """True once the index of the next run was requested."""
        self.name = name
        self.entry = entry
        self.dead = dead
        self.dead_count = 0 if dead is None else dead.count(1)
        self.saved_dead_count = self.dead_count
        """The number of marks in the `.del` file of the segment."""
        self.live_count = entry.live_count
        self.live_bytes = entry.live_bytes

    @property
    def next_seq(self) -> int:
        return self._next_seq

    @property
    def index(self) -> SegmentIndex:
        """Return the index; called on the loop, so it makes no request to the object store."""
        return self._reader.index(self.name, self.entry, is_local=True)

    def load_index(self) -> None:
        """Load the index into the cache of the reader; runs on a thread, for later use on the loop."""
        self._reader.index(self.name, self.entry)

    @property
    def lengths(self) -> array[int]:
        return self.index.lengths

    def lengths_of(self, first: int, last: int) -> array[int]:
        near = self._near
        if first < near.first_seq or last - near.first_seq >= len(near.lengths):
            if last - first >= NEAR_RECORDS:
                return super().lengths_of(first, last)
            near = self._load_near(self.index, first)
        return near.lengths[first - near.first_seq : last + 1 - near.first_seq]

    def _load_near(self, index: SegmentIndex, seq: int) -> _NearColumns:
        """Keep and return the columns of the records from this seq on."""
        at = seq - self.first_seq
        end = at + NEAR_RECORDS
        self._near = _NearColumns(seq, index.lengths[at:end], index.times_ms[at:end])
        return self._near

    @property
    def times_ms(self) -> array[int]:
        return self.index.times_ms

    @property
    def is_changed(self) -> bool:
        """Return whether the live or dead records differ from the entry of the segment."""
        entry = self.entry
        return self.live_count != entry.live_count or self.dead_count != entry.dead_count

    @property
    def mean_bytes(self) -> int:
        """Return the mean length of the frames."""
        return self.entry.data_bytes // self.entry.count

    def seq_at_or_after(self, ts: int) -> int:
        entry = self.entry
        if ts > entry.last_ts:
            return self._next_seq
        seq, time_ms = self._front
        if ts <= time_ms:
            return self.first_seq
        near = self._near
        if not near.first_seq <= seq < near.first_seq + len(near.times_ms) or near.times_ms[-1] < ts:
            index = self.index
            match = self.first_seq + bisect_left(index.times_ms, ts, seq - self.first_seq)
            # After a compaction dropped the last records, their index entries have the times of live records.
            if match == self._next_seq:
                return match
            # The caller counts the records that are too old next, so keep their columns if they fit.
            seq = seq if match < seq + NEAR_RECORDS else match
            near = self._load_near(index, seq)
        at = bisect_left(near.times_ms, ts, seq - near.first_seq)
        self._front = (near.first_seq + at, near.times_ms[at])
        return near.first_seq + at

    def find_seq_at_or_after(self, ts: int) -> int:
        """Return the first seq whose time is at least `ts`, without moving the kept front.

        `seq_at_or_after` is for the eviction by age, whose times never decrease; this is for any time.
        """
        if ts > self.entry.last_ts:
            return self._next_seq
        return self.first_seq + (bisect_left(self.times_ms, ts) if ts > self.entry.first_ts else 0)

    def take_front(self, first: int, last: int) -> tuple[int, int]:
        if last == self._next_seq - 1:
            count, size = self.live_count, self.live_bytes
        else:
            count, size = self.live_totals(first, last)
        self.live_count -= count
        self.live_bytes -= size
        return count, size

    def mark_all_dead(self, seqs: Iterable[int], first: int) -> tuple[list[int], int]:
        taken, size = super().mark_all_dead(seqs, first)
        self.count_dead(len(taken), size)
        return taken, size

    def count_dead(self, count: int, size: int) -> None:
        """Count records that were marked dead, and their bytes."""
        self.dead_count += count
        self.live_count -= count
        self.live_bytes -= size

    def all_tags(self) -> dict[bytes, list[int]]:
        """Return the seqs of each tag, including dead records."""
        return self._reader.all_tags(self.name, self.entry) if self.live_count else {}

    def place_of(self, seq: int, log: FrameSource) -> tuple[str, int]:
        try:
            return self.name.key(DATA), self.index.offsets[seq - self.first_seq]
        except (SegmentDamage, OSError):
            return self.name.key(DATA), 0  # Without the index the offset is unknown.

    def find_tag(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        if not self.entry.has_tags or not self.live_count:
            return []
        return self._reader.find_tag(self.name, self.entry, tag, is_prefix, below)
