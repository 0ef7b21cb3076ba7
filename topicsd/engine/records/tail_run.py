"""A tail run: the index of the records at the end of a topic, which are in the log or in memory.

The seq is the index into the arrays, so a record costs 20 bytes here and is found without a search. Its bytes
stay in the WAL file or, once a checkpoint has copied them, in the topic's active segment (`source`). Only an
ephemeral topic, which has neither, keeps its frames here.

A copy of a record that is in the log need not be written to the log again: it refers to the bytes of the
original, until a checkpoint frames it as a record of its own (`routes/copies.py`).

Entries removed from the front are freed many at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import partial
from itertools import accumulate, compress, count, islice, repeat
from operator import add, ne

from topicsd.engine.records.run import FrameSource, Run
from topicsd.engine.records.tag_index import RANGE_RECORDS, TagIndex
from topicsd.segment.entry import DATA, SegmentEntry, SegmentName
from topicsd.segment.rebuild import SalvagedTags, rebuild_tags, salvage_tags
from topicsd.segment.store import SegmentStore

# Removing the front of the arrays moves the rest; done when it is at least this many records and half of all.
TRIM_RECORDS = 4096


class ActiveFile:
    """The source of a `TailRun` whose records are in an active segment instead of the log."""

    __slots__ = ("_key", "_store", "entry", "name")

    def __init__(self, store: SegmentStore, name: SegmentName, entry: SegmentEntry) -> None:
        self._store = store
        self._key = name.key(DATA)
        self.name = name
        self.entry = entry
        """The entry as the checkpoint wrote it; the run knows which records are live."""

    def read(self, start: int, end: int) -> bytes:
        return self._store.read_range(self._key, start, end - start)

    def tags(self) -> dict[bytes, list[int]]:
        """Return the seqs of each tag, read from the records themselves."""
        return rebuild_tags(partial(self._store.read_range, self._key), self.name, self.entry)

    def salvage_tags(self) -> SalvagedTags:
        """Return the seqs of each tag of the intact records, and the damaged seqs."""
        return salvage_tags(partial(self._store.read_range, self._key), self.name, self.entry)

    def place_of(self, position: int) -> tuple[str, int]:
        return self._key, position


class TailRun(Run):
    """A run whose records are in the log, in an active segment, or in memory."""

    __slots__ = (
        "_lengths",
        "_originals",
        "_times_ms",
        "frame_positions",
        "frames",
        "is_being_copied",
        "source",
        "tags",
    )

    def __init__(self, first_seq: int, in_memory: bool = False) -> None:
        super().__init__(first_seq)
        self.frame_positions = array("Q")
        """The position in the source of each record, or of the frame that names a copy.

        A record is as durable as the bytes at its position.
        """
        self._originals: array[int] | None = None
        """The position of the bytes of each record, for a copy those of its original; None without copies."""
        self._lengths = array("I")
        self._times_ms = array("Q")
        self.frames: list[bytes] | None = [] if in_memory else None
        self.source: ActiveFile | None = None
        """The active segment that holds the records; None when the log holds them."""
        self.tags = TagIndex()
        self.is_being_copied = False
        """True while a checkpoint reads the columns."""

    @classmethod
    def of_segment(
        cls,
        source: ActiveFile,
        positions: array[int],
        lengths: array[int],
        times_ms: array[int],
        tags: TagIndex,
        dead: bytearray | None,
    ) -> TailRun:
        """Return the run of the records in an active segment; it keeps the columns."""
        assert len(positions) == len(lengths) == len(times_ms)
        run = cls(source.name.first_seq)
        run.source = source
        run.frame_positions, run._lengths, run._times_ms = positions, lengths, times_ms
        run.tags, run.dead = tags, dead
        return run

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self._lengths)

    @property
    def lengths(self) -> array[int]:
        return self._lengths

    @property
    def times_ms(self) -> array[int]:
        return self._times_ms

    @property
    def bytes_positions(self) -> array[int]:
        """Return the positions of the bytes of the records."""
        return self.frame_positions if self._originals is None else self._originals

    @property
    def has_copies(self) -> bool:
        return self._originals is not None

    def is_copy(self, at: int) -> bool:
        """Return whether the record at this index refers to the bytes of another record."""
        return self._originals is not None and self._originals[at] != self.frame_positions[at]

    def copies(self, at: int, end: int) -> bytes | None:
        """Return one byte for each record of the slice, 1 for a copy; None when there is no copy."""
        if self._originals is None:
            return None
        marks = bytes(map(ne, self._originals[at:end], self.frame_positions[at:end]))
        return marks if 1 in marks else None

    def logged_count(self, end: int) -> int:
        """Return the number of records that are complete in the log up to this position."""
        count = bisect_left(self.frame_positions, end)
        # The frames of a topic do not overlap: all that begin before the end are complete, except the last
        # one if it extends past the end. The position of a copy is the last byte of the frame that names it.
        last = count - 1
        if count and not self.is_copy(last) and self.frame_positions[last] + self._lengths[last] > end:
            return last
        return count

    def logged_end(self, seq: int) -> int:
        """Return the position up to which the log must be synced for this record to be durable."""
        at = seq - self.first_seq
        return self.frame_positions[at] + (1 if self.is_copy(at) else self._lengths[at])

    def extend(self, position: int, lengths: list[int], ts: int, originals: array[int] | None = None) -> None:
        """Add the records of one request, whose frames are adjacent from `position`.

        With `originals` they are copies of the records there, and the frame that names them ends at
        `position`.
        """
        if originals is not None:
            self._extend_copies(position, lengths, ts, originals)
            return
        if len(lengths) == 1:
            self.frame_positions.append(position)
            self._lengths.append(lengths[0])
            self._times_ms.append(ts)
        else:
            self.frame_positions.extend(accumulate(lengths[:-1], initial=position))
            self._lengths.extend(lengths)
            self._times_ms.extend(repeat(ts, len(lengths)))
        if self._originals is not None:
            self._originals.extend(self.frame_positions[len(self._originals) :])
        if self.dead is not None:
            self.dead.extend(bytes(len(lengths)))

    def _extend_copies(self, end: int, lengths: list[int], ts: int, originals: array[int]) -> None:
        if self._originals is None:
            self._originals = self.frame_positions[:]
        # The last byte of the frame that names the copies is the position of no original.
        self.frame_positions.extend(repeat(end - 1, len(lengths)))
        self._originals.extend(originals)
        self._lengths.extend(lengths)
        self._times_ms.extend(repeat(ts, len(lengths)))
        if self.dead is not None:
            self.dead.extend(bytes(len(lengths)))

    def add(self, position: int, length: int, ts: int) -> None:
        """Add one record."""
        self.frame_positions.append(position)
        self._lengths.append(length)
        self._times_ms.append(ts)
        if self._originals is not None:
            self._originals.append(position)
        if self.dead is not None:
            self.dead.append(0)

    def seq_at_or_after(self, ts: int) -> int:
        return self.first_seq + bisect_left(self._times_ms, ts)

    def take_front(self, first: int, last: int) -> tuple[int, int]:
        return self.live_totals(first, last)

    def find_tag(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        if self.tags.is_unknown:
            assert self.source is not None
            self.tags = TagIndex.of(self.source.tags())
        return self.tags.take(tag, is_prefix, below)

    def is_growing_at(self, seq: int) -> bool:
        """Return whether the range of tags that holds the seq may still grow."""
        return seq // RANGE_RECORDS == (self.next_seq - 1) // RANGE_RECORDS

    def all_tags(self) -> dict[bytes, list[int]]:
        return {} if self.source is None else self.source.tags()

    def place_of(self, seq: int, log: FrameSource) -> tuple[str, int]:
        if self.frames is not None:
            return "memory", 0
        return (self.source or log).place_of(self.bytes_positions[seq - self.first_seq])

    def can_forget_before(self, seq: int) -> bool:
        """Return whether enough entries are below `seq` to justify moving the rest."""
        # With an active segment the index in the arrays is the index in the file, which the next checkpoint
        # continues.
        count = seq - self.first_seq
        is_large = count >= TRIM_RECORDS and count * 2 >= len(self._lengths)
        return is_large and self.source is None and not self.is_being_copied

    def forget_before(self, seq: int) -> list[object]:
        """Remove the entries below `seq` if they are many; return parts of the tag index to free."""
        count = seq - self.first_seq
        if count < TRIM_RECORDS:
            return []
        pruned = self.tags.prune(seq)
        if not self.can_forget_before(seq):
            return pruned
        for column in (self.frame_positions, self._lengths, self._times_ms, self._originals):
            if column is not None:
                del column[:count]
        if self.dead is not None:
            del self.dead[:count]
        if self.frames is not None:
            del self.frames[:count]
        self.first_seq = seq
        return pruned


def adjacent_ranges(places: array[int], lengths: array[int]) -> list[tuple[int, int]]:
    """Return the (start, end) ranges of adjacent frames, as the frames of one request are.

    It runs no Python loop over all frames.
    """
    ends = list(map(add, places, lengths))
    breaks = list(compress(count(1), map(ne, ends, islice(places, 1, None))))
    starts = [places[0], *[places[at] for at in breaks]]
    return list(zip(starts, [*[ends[at - 1] for at in breaks], ends[-1]], strict=True))
