"""The rules of a read of several topics: when it is complete, and how many bytes each topic may add.

N1  A read ends when it has `min_bytes`, when `bytes_max` is used up, when a topic has all bytes that it
    may add, was refused or has a lost range to report, or when its time has passed. With a `min_bytes`
    of 0 it never waits.
N2  The topics are served in the order of the request. Each adds at most its own `bytes_max`, and all together
    at most that of the request. About as many bytes are read from the store, even if few of them are wanted:
    the topics after that are served by later requests, when those before them have caught up.
N3  A record is never cut. The first record of a read is returned whatever its size, so that a reader with a
    small bound always advances; every other one only if it fits.
"""

from __future__ import annotations


def is_complete(
    byte_count: int,
    min_bytes: int,
    bytes_max: int,
    has_report: bool,
    waited_seconds: float,
    wait_seconds: float,
) -> bool:
    """Return whether a read is answered now (N1).

    >>> is_complete(0, 1, 100, False, 0.0, 5.0), is_complete(1, 1, 100, False, 0.0, 5.0)
    (False, True)
    >>> is_complete(50, 80, 100, False, 5.0, 5.0), is_complete(0, 80, 100, True, 0.0, 5.0)
    (True, True)
    """
    return has_report or byte_count >= min(min_bytes, bytes_max) or waited_seconds >= wait_seconds


def room_of(byte_count: int, bytes_max: int, topic_bytes: int, topic_bytes_max: int) -> int | None:
    """Return how many bytes a topic may add now; None when any record may be added (N3).

    >>> room_of(0, 100, 0, 50), room_of(70, 100, 20, 50), room_of(70, 100, 0, 50)
    (None, 30, 30)
    """
    if byte_count == 0:
        return None
    return max(0, min(bytes_max - byte_count, topic_bytes_max - topic_bytes))


def first_room(bytes_max: int, topic_bytes_max: int) -> int:
    """Return how many bytes the first topic with records may add, at least one record (N3).

    >>> first_room(100, 50)
    50
    """
    return min(bytes_max, topic_bytes_max)
