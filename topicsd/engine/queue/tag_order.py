"""Jobs of one tag go one by one, in the order of seqs: who stands where. Pure: seqs and tags.

Jobs of a tag stand in a *lane*. Only the front of a lane may be handed out, and only while nobody holds
another one of it. A job without a tag stands in none.

O1  A call costs what it touches: a job knows its lane, a lane its front, and what is gone is taken out of a
    lane when its turn would have come, or when most of the lane is gone.
O2  A job that is parked is set aside: its tag goes on without it. When it is freed it is back in its place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, KeysView
from typing import Final

# A lane is written anew once so many more are gone from it than stand in it.
GONE_MAX: Final = 64


class Lane:
    __slots__ = ("at", "count", "held", "ready", "seqs", "tag")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.seqs = array("Q")
        """In their order; what is in front of `at`, and some behind it, is gone or set aside."""
        self.at = 0
        self.count = 0
        """Those that are there, also set aside."""
        self.held = 0
        """How many somebody holds."""
        self.ready = 0
        """The seq of the one that may be handed out, 0 when none may."""


class TagOrder:
    __slots__ = ("_aside", "_lane_of", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[bytes, Lane] = {}
        self._lane_of: dict[int, Lane] = {}
        """Of those that stand in one."""
        self._aside: dict[int, Lane] = {}

    def came(self, seq: int, tag: bytes) -> Lane:
        """The job goes behind all of its tag."""
        lane = self._lanes.get(tag)
        if lane is None:
            lane = self._lanes[tag] = Lane(tag)
        lane.seqs.append(seq)
        lane.count += 1
        self._lane_of[seq] = lane
        return lane

    def seqs(self) -> KeysView[int]:
        """Of all that stand in a lane."""
        return self._lane_of.keys()

    def lane_of(self, seq: int) -> Lane | None:
        """Where it stands, None when it stands in none or is set aside."""
        return self._lane_of.get(seq)

    def standing(self, lane: Lane) -> Iterator[int]:
        """In their order."""
        lane_of = self._lane_of
        return (seq for seq in lane.seqs[lane.at :] if lane_of.get(seq) is lane)

    def front(self, lane: Lane) -> int:
        """The first that stands in it, 0 when none does."""
        seqs, lane_of, at = lane.seqs, self._lane_of, lane.at
        while at < len(seqs) and lane_of.get(seqs[at]) is not lane:
            at += 1
        lane.at = at
        return seqs[at] if at < len(seqs) else 0

    def gone(self, seq: int) -> Lane | None:
        """The job is no more; the lane that it was of, if it was of one."""
        lane = self._lane_of.pop(seq, None) or self._aside.pop(seq, None)
        if lane is None:
            return None
        lane.count -= 1
        if not lane.count:
            del self._lanes[lane.tag]
        elif len(lane.seqs) > GONE_MAX + 2 * lane.count:
            if lane.at * 4 > len(lane.seqs):
                # As nearly always they went from the front, and none of the others is looked at.
                del lane.seqs[: lane.at]
            else:
                lane.seqs = array("Q", self.standing(lane))
            lane.at = 0
        return lane

    def set_aside(self, seq: int) -> Lane | None:
        """The lane that it stood in, None when it stood in none."""
        lane = self._lane_of.pop(seq, None)
        if lane is not None:
            self._aside[seq] = lane
        return lane

    def put_back(self, seq: int) -> Lane | None:
        """The lane that it stands in now."""
        lane = self._aside.pop(seq, None)
        if lane is not None:
            self._lane_of[seq] = lane
            at = bisect_left(lane.seqs, seq)
            if at == len(lane.seqs) or lane.seqs[at] != seq:
                lane.seqs.insert(at, seq)
            lane.at = min(lane.at, at)
        return lane
