"""How far a micro-batch goes: each topic's share of so many rows, and of so many bytes.

Shares are in proportion to what waits, the longest first, so that where there is less room than topics none
of them waits for ever. Every batch goes on by at least one record, else a record that is larger than the
bound would stop the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic


def shares(waiting: dict[str, int], room: int) -> dict[str, int]:
    """How much of what waits is taken of each; all of it when there is room.

    >>> shares({"a": 10, "b": 90}, 50)
    {'b': 45, 'a': 5}
    >>> shares({"a": 1, "b": 2}, 1)
    {'b': 1, 'a': 0}
    >>> shares({"a": 3, "b": 0}, 9)
    {'a': 3, 'b': 0}
    """
    total = sum(waiting.values())
    left, taken = room, {}
    for name, count in sorted(waiting.items(), key=lambda one: (-one[1], one[0])):
        share = count if total <= room else min(left, count, max(1, count * room // total))
        taken[name] = share
        left -= share
    return taken


def bytes_between(topic: Topic, start: int, end: int) -> int:
    """Of the frames from `start` up to `end`; of a part of a segment that is sealed, in proportion."""
    total = 0
    for run in topic.runs:
        low, high = max(start, run.first_seq), min(end, run.next_seq)
        if low >= high:
            continue
        if isinstance(run, SealedRun):
            total += run.entry.data_bytes * (high - low) // run.entry.count
        else:
            total += sum(run.lengths[low - run.first_seq : high - run.first_seq])
    return total


def end_within(topic: Topic, start: int, end: int, bytes_max: int) -> int:
    """Up to which seq about so many bytes go, at least one record."""
    for run in topic.runs:
        low, high = max(start, run.first_seq), min(end, run.next_seq)
        if low >= high:
            continue
        size = bytes_between(topic, low, high)
        if size > bytes_max:
            sums = list(accumulate(run.lengths[low - run.first_seq : high - run.first_seq]))
            return max(low + bisect_right(sums, bytes_max), start + 1)
        bytes_max -= size
    return end
