"""Chains: frames of one topic that follow each other after damage, and which of them are records.

A record of bytes may hold whole frames of its own topic. When its header is lost, a search finds them, and
nothing in their bytes says that they are the content of a record. Their place does: all frames between two
known places are there, in the order of their numbers, and each has at least FRAME_BYTES_MIN.

H1  A chain that begins where the last known frame ends, or that ends where the frames end, is one of records:
    around a copy is at least the header and the checksum of the record that holds it.
H2  Any other chain has lost frames before and after it. It must fit between its neighbours: there is room for
    each number that is missing. So a copy within one or two damaged frames never fits.
H3  Of chains that contradict each other, the one is taken to which a length of the damaged frame leads. Else
    none is taken: intact records may be reported as damaged, and no copy is returned.

What is not excluded: in a row of three or more damaged frames, a copy whose numbers and whose place fit. In
a segment that was rewritten, numbers are missing without damage, so a single damaged frame may hold such a
copy; it is passed over when a length of that frame is intact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topicsd.log.frame import FRAME_LEN_MIN, LEN_BYTES

FRAME_BYTES_MIN: Final = LEN_BYTES + FRAME_LEN_MIN
CHAINS_MAX: Final = 1000
"""Chains that are compared with each other; of more, only those of H1 are taken."""


class Chain(NamedTuple):
    """Intact frames without a gap, neither of bytes nor of numbers."""

    start: int
    end: int
    first_number: int
    last_number: int


def chains_of_records(
    chains: Sequence[Chain], bounds: Chain, lengths: dict[int, tuple[int, ...]], is_dense: bool = True
) -> list[Chain]:
    """Return the chains that are of records, in order.

    `bounds` are the bytes and numbers of all frames. `lengths` has the ends of damaged frames by their start,
    as their lengths say. `is_dense` is False when numbers may be missing without damage.

    >>> bounds = Chain(0, 1000, 1, 10)
    >>> before, copy, after = Chain(0, 100, 1, 2), Chain(150, 300, 4, 6), Chain(400, 1000, 4, 10)
    >>> chains_of_records([before, copy, after], bounds, {}) == [before, after]
    True
    """

    def fits(before: Chain, after: Chain) -> bool:
        gap, missing = after.start - before.end, after.first_number - before.last_number - 1
        if gap <= 0 or missing <= 0:
            return gap == 0 and missing >= 0
        return gap >= FRAME_BYTES_MIN * (missing if is_dense else 1)

    def is_inside(one: Chain) -> bool:
        is_last = one.last_number == bounds.last_number
        return one.last_number <= bounds.last_number and (one.end == bounds.end or not is_last)

    last = Chain(bounds.start, bounds.start, bounds.first_number - 1, bounds.first_number - 1)
    left = [one for one in chains if is_inside(one) and fits(last, one)]
    tail = left[-1] if left and left[-1].end == bounds.end else None
    if len(left) > CHAINS_MAX:
        left = [one for one in left if one.start == bounds.start or one is tail]
    taken: list[Chain] = []
    while True:
        left = [one for one in left if fits(last, one) and (tail is None or one is tail or fits(one, tail))]
        if not left:
            return taken
        one = left[0]
        if one.start != last.end:
            ends = lengths.get(last.end, ())
            if not is_dense and tail is None and bounds.end in ends:
                # The damaged frame is the last one.
                return taken
            next_but_one = last.last_number + 2
            led_to = [
                one
                for one in left
                if one.start in ends and not (is_dense and one.first_number != next_but_one)
            ]
            others = [other for other in left[1:] if not fits(one, other)]
            if len(led_to) == 1:
                one = led_to[0]
            elif others:
                left = [other for other in left[1:] if other not in others]
                continue
        taken.append(one)
        last = one
