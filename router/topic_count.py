"""How many topics there are over all shards, exactly enough that a cap on them is never passed.

A worker asks before it makes a topic, and makes it in the turn in which it is allowed to. Its count on the
board is up to date whenever it asks or has been answered; allowed and not yet on the board is what the worker
has not seen of the permissions it got (`topic_grants_total`, stored behind `topics`).

T1  A shard that is down has the topics that it had. One that has never been ready since this process began is
    not known, and nothing is allowed until it is, or until it refuses to be.
T2  What a worker was allowed and did not make before it died is given back when it is ready again.

Must not know: links, who asks.
"""

from __future__ import annotations

from shared.board import Board, WorkerState

_SAYS: tuple[WorkerState, ...] = (WorkerState.READY, WorkerState.DRAINING)


class TopicCount:
    def __init__(self, board: Board, bound: int) -> None:
        """0 is no bound."""
        self.bound = bound
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
                unseen = self._granted[shard] - slot.topic_grants_total
                self._known[shard] = slot.topics + unseen
            elif state is WorkerState.REFUSED and self._known[shard] is None:
                self._known[shard] = 0

    def reserve(self, shard: int) -> bool | None:
        """Whether this shard may make one more; None when it is not known how many there are."""
        self.look()
        if not self.bound:
            return True
        total = 0
        for known in self._known:
            if known is None:
                return None
            total += known
        if total >= self.bound:
            return False
        self._granted[shard] += 1
        self._known[shard] = (self._known[shard] or 0) + 1
        return True
