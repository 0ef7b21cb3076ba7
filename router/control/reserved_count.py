"""A count over all shards, exact enough that a cap on it is never exceeded.

It counts objects that survive the worker that made them: topics and watch sessions. A worker makes one only
after a grant, and publishes its count on the board. That count is up to date whenever the worker asks or has
received an answer. The grants that are not in the count yet are those that the worker has not seen: granted
here, minus its `grants`, which it stores after the count.

T1  A shard that is down keeps its last count. The count of a shard that has not been ready since this process
    began is unknown, and nothing is granted until the shard is ready or refuses to start.
T2  Grants that a worker did not use before it died are returned when the shard is ready again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from shared.ipc.board import Board, Slot, WorkerState

_PUBLISHING: tuple[WorkerState, ...] = (WorkerState.READY, WorkerState.DRAINING)


class CountFields(NamedTuple):
    """The two values that a worker publishes on the board."""

    count: Callable[[Slot], int]
    grants: Callable[[Slot], int]


TOPICS: Final = CountFields(lambda slot: slot.topics, lambda slot: slot.topic_grants_total)
WATCH_SESSIONS: Final = CountFields(
    lambda slot: slot.watch_sessions, lambda slot: slot.watch_session_grants_total
)


class ReservedCount:
    def __init__(self, board: Board, bound: int, fields: CountFields) -> None:
        """Count under a cap of `bound`; 0 means no cap."""
        self.bound = bound
        self._fields = fields
        self._board = board
        self._pids = [0] * len(board)
        self._granted = [0] * len(board)
        self._counts: list[int | None] = [None] * len(board)

    def read_board(self) -> None:
        """Read the board; called regularly, so that the last count of a dead worker is known."""
        for shard, slot in enumerate(self._board):
            state = slot.state
            if state in _PUBLISHING:
                if slot.pid != self._pids[shard]:
                    self._pids[shard], self._granted[shard] = slot.pid, 0
                # In this order: the worker stores the two in the opposite order.
                unseen = self._granted[shard] - self._fields.grants(slot)
                self._counts[shard] = self._fields.count(slot) + unseen
            elif state is WorkerState.REFUSED and self._counts[shard] is None:
                self._counts[shard] = 0

    def of(self, shard: int) -> int:
        """Return the count of one shard, 0 when unknown."""
        return self._counts[shard] or 0

    def reserve(self, shard: int) -> bool | None:
        """Return whether this shard may make one more; None when the total is unknown."""
        self.read_board()
        if not self.bound:
            self._grant(shard)
            return True
        total = 0
        for count in self._counts:
            if count is None:
                return None
            total += count
        if total >= self.bound:
            return False
        self._grant(shard)
        return True

    def _grant(self, shard: int) -> None:
        self._granted[shard] += 1
        self._counts[shard] = (self._counts[shard] or 0) + 1

    def release(self, shard: int) -> None:
        """Return a grant that the worker never received."""
        self._granted[shard] -= 1
