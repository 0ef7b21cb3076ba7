"""Affinity: evidence that the requests of a connection belong to one other shard.

A request for another shard costs more than a request for this one, and moving the connection costs more
than either. So it moves when nearly all of its last requests were for one other shard, and at most once a
second: a client that alternates between many topics stays where it is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_REQUESTS: Final = 64
FOREIGN_MIN: Final = 60
MOVE_INTERVAL_SECONDS: Final = 1.0


class ShardAffinity:
    def __init__(self, shard: int, now: float) -> None:
        """Start counting for a connection that arrived at this shard at `now`."""
        self._shard = shard
        self._owners: deque[int | None] = deque()
        self._counts: dict[int | None, int] = {}
        """The number of requests in `_owners`, by owner."""
        self._not_before = now + MOVE_INTERVAL_SECONDS
        self.is_due = False

    def count(self, owner: int | None) -> None:
        """Count one request. An `owner` of None is the supervisor."""
        owners, counts = self._owners, self._counts
        if len(owners) == WINDOW_REQUESTS:
            counts[owners.popleft()] -= 1
        owners.append(owner)
        counts[owner] = count = counts.get(owner, 0) + 1
        if owner != self._shard:
            self.is_due = owner is not None and count >= FOREIGN_MIN
        elif self.is_due:
            self.is_due = self.target is not None

    @property
    def target(self) -> int | None:
        """Return the other shard that nearly all of the last requests were for, or None."""
        for owner, count in self._counts.items():
            if count >= FOREIGN_MIN and owner is not None and owner != self._shard:
                return owner
        return None

    def may_move(self, now: float) -> bool:
        """Return whether a second has passed since the last move or attempt. Call only if `is_due`."""
        if now < self._not_before:
            return False
        self._not_before = now + MOVE_INTERVAL_SECONDS
        return True
