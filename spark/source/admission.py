"""The size of a micro-batch: each topic's share of a number of rows or bytes.

Shares are proportional to the backlog of each topic, longest first, so that no topic starves when there is
less room than topics. Every batch advances by at least one record; otherwise a record larger than the bound
would stop the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic


def shares(backlog: dict[str, int], room: int) -> dict[str, int]:
    """Return how much to take of each topic's backlog; all of it when there is room.

    >>> shares({"a": 10, "b": 90}, 50)
    {'b': 45, 'a': 5}
    >>> shares({"a": 1, "b": 2}, 1)
    {'b': 1, 'a': 0}
    >>> shares({"a": 3, "b": 0}, 9)
    {'a': 3, 'b': 0}
    """
    total = sum(backlog.values())
    rest, result = room, {}
    for name, count in sorted(backlog.items(), key=lambda one: (-one[1], one[0])):
        share = count if total <= room else min(rest, count, max(1, count * room // total))
        result[name] = share
        rest -= share
    return result


def bytes_between(topic: Topic, start: int, end: int) -> int:
    """Return the bytes of the frames from `start` up to `end`; proportional in a sealed segment."""
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
    """Return the end of the records that fit in about `bytes_max` bytes; at least one record."""
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
