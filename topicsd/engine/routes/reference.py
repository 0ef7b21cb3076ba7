"""References from copies to records in the log: made with the copies, and resolved again by replay.

The records that a reference names exist whenever its frame is replayed. A snapshot without the copies began
before they were made, so it is the newest one of that time or an earlier one. The originals lie after the
start of that newest snapshot (`ShardState.referable_from`), and the log is kept from the start of a snapshot
on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from topicsd.disk.layout import wal_name
from topicsd.engine.records.tail_run import TailRun, adjacent_ranges
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.control_frame import COPIES_MAX, ForwardCursor
from topicsd.log.files import LogFiles
from topicsd.log.frame import FrameDamage, FrameType, parse_frame

KEPT_MAX: Final = 64
NAMING_BYTES: Final = 256
RANGE_BYTES: Final = 10


class References(NamedTuple):
    """The location of records in one file of the log, as a frame and as an index describe it."""

    file: int
    offsets: list[int]
    sizes: list[int]
    places: array[int]
    lengths: list[int]
    size: int
    """The size of all frames."""
    lowest: int
    """The lowest of the places."""

    @property
    def log_bytes(self) -> int:
        """Return an estimate of the size of a frame with these references."""
        return NAMING_BYTES + RANGE_BYTES * len(self.offsets)


def refer(shard: ShardState, source: Topic, seqs: Sequence[int]) -> References | None:
    """Return references to these records, or None if the log lacks them or forbids it.

    A reference must not reach before `ShardState.referable_from`.
    """
    run = source.run_of(seqs[0])
    if not isinstance(run, TailRun) or run.source is not None or run.frames is not None:
        return None
    base, first, last = run.first_seq, seqs[0], seqs[-1]
    if not base <= first <= last < run.next_seq or len(seqs) > COPIES_MAX:
        return None
    places, lengths = (
        run.bytes_positions[first - base : last + 1 - base],
        run.lengths[first - base : last + 1 - base],
    )
    if len(places) != len(seqs):
        places = array("Q", [places[seq - first] for seq in seqs])
        lengths = array("I", [lengths[seq - first] for seq in seqs])
    lowest = min(places)
    file = shard.files.file_of(lowest)
    if lowest < shard.referable_from or shard.files.file_of(max(places)) is not file:
        return None
    ranges = adjacent_ranges(places, lengths)
    offsets = [start - file.base for start, _ in ranges]
    sizes = [end - start for start, end in ranges]
    return References(file.first_ordinal, offsets, sizes, places, list(lengths), sum(sizes), lowest)


class UnknownOriginals(Exception):
    """A reference that names no records of the log, with the reason."""


class ReferredRecords(NamedTuple):
    """The records that a reference names."""

    places: array[int]
    lengths: list[int]
    tags: list[bytes] | None
    """None if no record has a tag."""


class Originals:
    """Resolves references. Keeps recent results: copies of the same records follow each other."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._recent: dict[tuple[int, ...], ReferredRecords] = {}

    def of(self, control: ForwardCursor) -> ReferredRecords:
        """Return the records of a frame; raise UnknownOriginals unless they are `count` records."""
        key = (control.file, *control.offsets, *control.sizes)
        records = self._recent.get(key)
        if records is None:
            while len(self._recent) >= KEPT_MAX:
                del self._recent[next(iter(self._recent))]
            records = self._recent[key] = self._resolve(control)
        if len(records.lengths) != control.count:
            raise UnknownOriginals(f"it declares {control.count} records and names {len(records.lengths)}")
        return records

    def _resolve(self, control: ForwardCursor) -> ReferredRecords:
        records = ReferredRecords(array("Q"), [], [])
        if len(control.offsets) != len(control.sizes):
            raise UnknownOriginals(f"it has {len(control.offsets)} offsets and {len(control.sizes)} sizes")
        for offset, size in zip(control.offsets, control.sizes, strict=True):
            position = self._files.position_of(control.file, offset)
            if position is None:
                raise UnknownOriginals(f"{wal_name(control.file)} is not part of the log")
            self._add(records, position, size)
        assert records.tags is not None
        return records if any(records.tags) else records._replace(tags=None)

    def _add(self, records: ReferredRecords, position: int, size: int) -> None:
        file, offset = self._files.place_of(position)
        data = self._files.read(position, position + size)
        at = 0
        while at < size:
            try:
                frame = parse_frame(data, at, len(data))
            except FrameDamage as damage:
                raise UnknownOriginals(f"{file} at offset {offset + at}: {damage.what}") from None
            if frame.type != FrameType.APPEND:
                raise UnknownOriginals(f"{file} has no record at offset {offset + at}")
            records.places.append(position + at)
            records.lengths.append(frame.size)
            assert records.tags is not None
            records.tags.append(frame.tag)
            at += frame.size
