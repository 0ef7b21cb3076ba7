"""Whether a connection has come to belong to another shard than the one that has it.

A request for another shard costs more than one for this one, moving the connection costs more than either. So
it moves when nearly all of its last requests were for one other shard, and not twice in a second: a client
that goes round many topics stays where it is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

LOOKED_AT: Final = 64
FOREIGN_MIN: Final = 60
STAY_SECONDS: Final = 1.0


class Drift:
    def __init__(self, shard: int, now: float) -> None:
        """`now` is when the connection came here."""
        self._shard = shard
        self._owners: deque[int | None] = deque()
        self._counts: dict[int | None, int] = {}
        """How many of them each is."""
        self._not_before = now + STAY_SECONDS
        self.is_due = False

    def note(self, owner: int | None) -> None:
        """Of each request; None are those for the front process."""
        owners, counts = self._owners, self._counts
        if len(owners) == LOOKED_AT:
            counts[owners.popleft()] -= 1
        owners.append(owner)
        counts[owner] = count = counts.get(owner, 0) + 1
        if owner != self._shard:
            self.is_due = owner is not None and count >= FOREIGN_MIN
        elif self.is_due:
            self.is_due = self.target is not None

    @property
    def target(self) -> int | None:
        """The shard that nearly all of the last requests were for."""
        for owner, count in self._counts.items():
            if count >= FOREIGN_MIN and owner is not None and owner != self._shard:
                return owner
        return None

    def may_move(self, now: float) -> bool:
        """Whether it is time; asked only when it is due. Of the next time a second has to go by again."""
        if now < self._not_before:
            return False
        self._not_before = now + STAY_SECONDS
        return True
