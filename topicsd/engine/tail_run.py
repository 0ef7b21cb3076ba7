"""A contiguous run of records and where they stand: the index of a topic's tail.

The seq is the place in the arrays, so a record costs 20 bytes here and is found without a search. Its bytes
stay in the WAL file or, once a checkpoint has copied them, in the topic's active segment (`source`); only an
ephemeral topic, which has neither, keeps its frames here.

What went from the front is forgotten a large piece at a time.

Must not know: why a record is gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, repeat

from topicsd.engine.active_file import ActiveFile
from topicsd.engine.run import Run, Source
from topicsd.engine.tag_index import TagIndex

# Dropping the front of the arrays moves the rest; done when it is at least this much and half of all.
TRIM_RECORDS = 4096


class TailRun(Run):
    __slots__ = ("_lengths", "_stamps", "frames", "is_being_copied", "positions", "source", "tags")

    def __init__(self, first_seq: int, in_memory: bool = False) -> None:
        super().__init__(first_seq)
        self.positions = array("Q")
        self._lengths = array("I")
        self._stamps = array("Q")
        self.frames: list[bytes] | None = [] if in_memory else None
        self.source: ActiveFile | None = None
        """None is the log."""
        self.tags = TagIndex()
        self.is_being_copied = False
        """A checkpoint reads its columns."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self._lengths)

    @property
    def lengths(self) -> array[int]:
        return self._lengths

    @property
    def stamps(self) -> array[int]:
        return self._stamps

    def extend(self, position: int, lengths: list[int], ts: int) -> None:
        """Take in the records of one request, whose frames stand one behind the other from `position`."""
        if len(lengths) == 1:
            self.positions.append(position)
            self._lengths.append(lengths[0])
            self._stamps.append(ts)
        else:
            self.positions.extend(accumulate(lengths[:-1], initial=position))
            self._lengths.extend(lengths)
            self._stamps.extend(repeat(ts, len(lengths)))
        if self.dead is not None:
            self.dead.extend(bytes(len(lengths)))

    def add(self, position: int, length: int, ts: int) -> None:
        """Take in one record."""
        self.positions.append(position)
        self._lengths.append(length)
        self._stamps.append(ts)
        if self.dead is not None:
            self.dead.append(0)

    def set_columns(self, lengths: array[int], stamps: array[int]) -> None:
        """What belongs to `positions`, of a run that is made whole."""
        assert len(self.positions) == len(lengths) == len(stamps)
        self._lengths, self._stamps = lengths, stamps

    def first_not_older(self, ts: int) -> int:
        return self.first_seq + bisect_left(self._stamps, ts)

    def take_front(self, first: int, last: int) -> tuple[int, int]:
        return self.live_totals(first, last)

    def find_tag(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        if self.tags.is_unknown:
            assert self.source is not None
            self.tags = TagIndex.of(self.source.tags())
        return self.tags.take(tag, is_prefix, below)

    def all_tags(self) -> dict[bytes, list[int]]:
        return {} if self.source is None else self.source.tags()

    def place_of(self, seq: int, log: Source) -> tuple[str, int]:
        if self.frames is not None:
            return "memory", 0
        return (self.source or log).place_of(self.positions[seq - self.first_seq])

    def forget_before(self, seq: int) -> bool:
        """Let go of the index below `seq` if it is worth the move; whether it was."""
        count = seq - self.first_seq
        if self.source is not None:
            return (
                False  # The place in the arrays is the place in the segment, which the next copy goes on in.
            )
        if self.is_being_copied or count < TRIM_RECORDS:
            return False
        self.tags.prune(seq)
        if count * 2 < len(self._lengths):
            return False
        for column in (self.positions, self._lengths, self._stamps):
            del column[:count]
        if self.dead is not None:
            del self.dead[:count]
        if self.frames is not None:
            del self.frames[:count]
        self.first_seq = seq
        return True
