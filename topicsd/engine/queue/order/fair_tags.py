"""Fair claims: the next job is of the ready tag with the fewest jobs in flight. Pure: seqs, tags, priorities.

F1  So no tag gets another job while one with fewer in flight waits: its share is what the others leave. Of
    tags with as many in flight, the one that got a job least recently is next.
F2  The jobs of one tag are claimed by priority, then in the order of seqs. Jobs without a tag are one tag.
F3  A call costs what it touches, and the logarithm of the number of tags with ready jobs. Outdated entries of
    the heaps are dropped when they are met.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from typing import Final

from topicsd.engine.queue.order.lazy_heap import LazyHeap

_SEQ_BITS: Final = 64
SEQ_MASK: Final = (1 << _SEQ_BITS) - 1


def rank_of(seq: int, priority: int) -> int:
    """Return the place of a job: a higher priority is a lower number, whatever the seq.

    >>> sorted((4, 5, 6), key=lambda seq: rank_of(seq, {5: 9, 6: 1}.get(seq, 0)))
    [5, 6, 4]
    """
    return seq - (priority << _SEQ_BITS) if priority else seq


class FairTag:
    """The jobs of one tag."""

    __slots__ = ("count", "entry", "in_flight_count", "ready", "tag", "turn")

    def __init__(self, tag: bytes, ready: LazyHeap[int], turn: int) -> None:
        self.tag = tag
        self.count = 0
        """The number of its jobs, in any state."""
        self.in_flight_count = 0
        self.turn = turn
        """The number of its last claim, or of its arrival; no two tags have the same."""
        self.ready = ready
        """The ranks of its ready jobs. May contain outdated entries."""
        self.entry: tuple[int, int, FairTag] | None = None
        """Its valid entry in the heap of tags; None when it has no ready job."""


class FairTags:
    """The tags of one queue; every job has to be entered with `add`.

    >>> tags = FairTags(lambda seq: True)
    >>> for seq, tag in ((1, b"a"), (2, b"a"), (3, b"b")):
    ...     tags.add(seq, tag)
    ...     tags.push(seq, 0)
    >>> tags.first()
    1
    >>> tags.change_in_flight(1, 1)
    >>> tags.first()
    3
    """

    __slots__ = ("_is_ready", "_ready_tags", "_tag_of", "_tags", "_turn")

    def __init__(self, is_ready: Callable[[int], bool]) -> None:
        self._is_ready = is_ready
        self._tags: dict[bytes, FairTag] = {}
        self._tag_of: dict[int, FairTag] = {}
        self._ready_tags: LazyHeap[tuple[int, int, FairTag]] = LazyHeap(_is_entry)
        """The tags that may have ready jobs, by jobs in flight and turn.

        An entry is never higher than its tag: a claim does not touch it, and `first` raises it.
        """
        self._turn = 0

    def add(self, seq: int, tag: bytes) -> None:
        """Add a new job."""
        one = self._tags.get(tag)
        if one is None:
            self._turn += 1
            one = self._tags[tag] = FairTag(tag, LazyHeap(self._is_rank_ready), self._turn)
        one.count += 1
        self._tag_of[seq] = one

    def push(self, seq: int, priority: int) -> None:
        """Note that a job is ready."""
        one = self._tag_of[seq]
        one.ready.push(rank_of(seq, priority))
        if one.entry is None:
            self._enter(one)

    def first(self) -> int:
        """Return the seq of the job to claim next, or 0."""
        tags = self._ready_tags
        while (entry := tags.front()) is not None:
            in_flight_count, turn, one = entry
            if in_flight_count != one.in_flight_count or turn != one.turn:
                one.entry = (one.in_flight_count, one.turn, one)
                tags.replace_lowest(one.entry)
                continue
            rank = one.ready.front()
            if rank is not None:
                return rank & SEQ_MASK
            one.entry = None
        return 0

    def has(self, seq: int) -> bool:
        return seq in self._tag_of

    def take(self, seq: int) -> None:
        """Remove the entry of the job that `first` returned."""
        self._tag_of[seq].ready.pop()

    def change_in_flight(self, seq: int, change: int) -> None:
        """Note that a job is in flight, with 1, or is no longer, with -1."""
        one = self._tag_of[seq]
        one.in_flight_count += change
        if change > 0:
            self._turn += 1
            one.turn = self._turn
        elif one.entry is not None and one.in_flight_count < one.entry[0]:
            self._enter(one)

    def remove(self, seq: int, is_in_flight: bool) -> None:
        one = self._tag_of.get(seq)
        if one is None:
            return
        if is_in_flight:
            self.change_in_flight(seq, -1)
        del self._tag_of[seq]
        one.count -= 1
        if one.count:
            one.ready.tidy(one.count)
        else:
            del self._tags[one.tag]
            one.entry = None

    def seqs(self) -> KeysView[int]:
        return self._tag_of.keys()

    def _enter(self, one: FairTag) -> None:
        one.entry = (one.in_flight_count, one.turn, one)
        self._ready_tags.push(one.entry)
        self._ready_tags.tidy(len(self._tags))

    def _is_rank_ready(self, rank: int) -> bool:
        return self._is_ready(rank & SEQ_MASK)


def _is_entry(entry: tuple[int, int, FairTag]) -> bool:
    return entry[2].entry is entry
