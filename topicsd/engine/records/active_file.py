"""The bytes of a topic's active segment, where the records stand that a checkpoint has copied."""

from __future__ import annotations

from functools import partial

from topicsd.segment.entry import DATA, SegmentEntry, SegmentName
from topicsd.segment.rebuild import rebuild_tags
from topicsd.segment.store import SegmentStore


class ActiveFile:
    """What a `TailRun` reads from when it is not the log."""

    __slots__ = ("_key", "_store", "entry", "name")

    def __init__(self, store: SegmentStore, name: SegmentName, entry: SegmentEntry) -> None:
        self._store = store
        self._key = name.key(DATA)
        self.name = name
        self.entry = entry
        """As the checkpoint left it: what is alive of it is known by the run."""

    def read(self, start: int, end: int) -> bytes:
        return self._store.read_range(self._key, start, end - start)

    def tags(self) -> dict[bytes, list[int]]:
        """The seqs of each tag, from the records themselves."""
        return rebuild_tags(partial(self._store.read_range, self._key), self.name, self.entry)

    def place_of(self, position: int) -> tuple[str, int]:
        return self._key, position
