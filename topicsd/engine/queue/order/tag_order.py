"""Lanes: the jobs of one tag in an ordered queue, in the order of seqs. Pure: seqs and tags.

Only the front of a lane may be claimed, and only while no other job of the lane is in flight. A job without a
tag is in no lane.

O1  A call costs what it touches: a job has its lane, a lane has its front. A removed seq leaves the lane's
    array when it reaches the front, or when most of the array is removed seqs.
O2  A parked job is set aside: its lane continues without it. When it is freed, it returns to its place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, KeysView
from typing import Final

# A lane is rewritten once it has this many entries more than twice its jobs.
GONE_MAX: Final = 64


class Lane:
    """The jobs of one tag."""

    __slots__ = ("count", "in_flight_count", "ready", "seqs", "start", "tag")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.seqs = array("Q")
        """Ascending. Entries before `at`, and some after it, are removed or set aside."""
        self.start = 0
        self.count = 0
        """The number of its jobs, including those set aside."""
        self.in_flight_count = 0
        """The number of its jobs in flight."""
        self.ready = 0
        """The seq of the job that may be claimed, or 0."""


class TagOrder:
    """All lanes of one ordered queue."""

    __slots__ = ("_aside", "_lane_of", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[bytes, Lane] = {}
        self._lane_of: dict[int, Lane] = {}
        """The lane of each seq that is in one and not set aside."""
        self._aside: dict[int, Lane] = {}

    def add(self, seq: int, tag: bytes) -> Lane:
        """Add a new job at the end of the lane of its tag."""
        lane = self._lanes.get(tag)
        if lane is None:
            lane = self._lanes[tag] = Lane(tag)
        lane.seqs.append(seq)
        lane.count += 1
        self._lane_of[seq] = lane
        return lane

    def seqs(self) -> KeysView[int]:
        """Return the seqs in all lanes."""
        return self._lane_of.keys()

    def lane_of(self, seq: int) -> Lane | None:
        """Return the lane of a job, or None if it is in none or set aside."""
        return self._lane_of.get(seq)

    def seqs_in(self, lane: Lane) -> Iterator[int]:
        """Return the seqs in a lane, ascending."""
        lane_of = self._lane_of
        return (seq for seq in lane.seqs[lane.start :] if lane_of.get(seq) is lane)

    def front(self, lane: Lane) -> int:
        """Return the first seq in a lane, or 0."""
        seqs, lane_of, at = lane.seqs, self._lane_of, lane.start
        while at < len(seqs) and lane_of.get(seqs[at]) is not lane:
            at += 1
        lane.start = at
        return seqs[at] if at < len(seqs) else 0

    def remove(self, seq: int) -> Lane | None:
        """Remove a job; return its lane, or None if it was in none."""
        lane = self._lane_of.pop(seq, None) or self._aside.pop(seq, None)
        if lane is None:
            return None
        lane.count -= 1
        if not lane.count:
            del self._lanes[lane.tag]
        elif len(lane.seqs) > GONE_MAX + 2 * lane.count:
            if lane.start * 4 > len(lane.seqs):
                # The usual case: jobs leave from the front, and the others need not be checked.
                del lane.seqs[: lane.start]
            else:
                lane.seqs = array("Q", self.seqs_in(lane))
            lane.start = 0
        return lane

    def set_aside(self, seq: int) -> Lane | None:
        """Set a job aside; return its lane, or None if it was in none."""
        lane = self._lane_of.pop(seq, None)
        if lane is not None:
            self._aside[seq] = lane
        return lane

    def put_back(self, seq: int) -> Lane | None:
        """Return a job that was set aside to its lane; return the lane, or None."""
        lane = self._aside.pop(seq, None)
        if lane is not None:
            self._lane_of[seq] = lane
            at = bisect_left(lane.seqs, seq)
            if at == len(lane.seqs) or lane.seqs[at] != seq:
                lane.seqs.insert(at, seq)
            lane.start = min(lane.start, at)
        return lane
