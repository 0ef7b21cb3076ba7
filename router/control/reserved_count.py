"""How many of something there are over all shards, exactly enough that a cap on them is never passed.

Of what survives the worker that made it: topics, watch sessions. A worker makes one only when it was allowed,
and says what it has on the board. Its count there is up to date whenever it asks or has been answered;
allowed and not yet on the board is what the worker has not seen of the permissions it got (its `grants`,
stored behind the count).

T1  A shard that is down has those that it had. One that has never been ready since this process began is not
    known, and nothing is allowed until it is, or until it refuses to be.
T2  What a worker was allowed and did not make before it died is given back when it is ready again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from shared.ipc.board import Board, Slot, WorkerState

_SAYS: tuple[WorkerState, ...] = (WorkerState.READY, WorkerState.DRAINING)


class Counted(NamedTuple):
    """What a worker says on the board."""

    count: Callable[[Slot], int]
    grants: Callable[[Slot], int]


TOPICS: Final = Counted(lambda slot: slot.topics, lambda slot: slot.topic_grants_total)
WATCH_SESSIONS: Final = Counted(
    lambda slot: slot.watch_sessions, lambda slot: slot.watch_session_grants_total
)


class ReservedCount:
    def __init__(self, board: Board, bound: int, counted: Counted) -> None:
        """0 is no bound."""
        self.bound = bound
        self._counted = counted
        self._board = board
        self._pids = [0] * len(board)
        self._granted = [0] * len(board)
        self._known: list[int | None] = [None] * len(board)

    def look(self) -> None:
        """Take in what the board says; now and then, so that it is known when a worker dies."""
        for shard, slot in enumerate(self._board):
            state = slot.state
            if state in _SAYS:
                if slot.pid != self._pids[shard]:
                    self._pids[shard], self._granted[shard] = slot.pid, 0
                # In this order: the worker stores them in the other.
                unseen = self._granted[shard] - self._counted.grants(slot)
                self._known[shard] = self._counted.count(slot) + unseen
            elif state is WorkerState.REFUSED and self._known[shard] is None:
                self._known[shard] = 0

    def of(self, shard: int) -> int:
        """Those of one shard, as far as is known."""
        return self._known[shard] or 0

    def reserve(self, shard: int) -> bool | None:
        """Whether this shard may make one more; None when it is not known how many there are."""
        self.look()
        if not self.bound:
            self._grant(shard)
            return True
        total = 0
        for known in self._known:
            if known is None:
                return None
            total += known
        if total >= self.bound:
            return False
        self._grant(shard)
        return True

    def _grant(self, shard: int) -> None:
        self._granted[shard] += 1
        self._known[shard] = (self._known[shard] or 0) + 1

    def give_back(self, shard: int) -> None:
        """What the worker never heard of."""
        self._granted[shard] -= 1
