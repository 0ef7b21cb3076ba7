"""The bytes of a topic's active segment, which holds the records that checkpoints have copied."""

from __future__ import annotations

from functools import partial

from topicsd.segment.entry import DATA, SegmentEntry, SegmentName
from topicsd.segment.rebuild import rebuild_tags
from topicsd.segment.store import SegmentStore


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

    def place_of(self, position: int) -> tuple[str, int]:
        return self._key, position
