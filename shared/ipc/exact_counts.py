"""Counts over all shards and brokers, exact enough that a cap on them is never exceeded.

The supervisor counts. A worker makes an object only after a grant, so that objects which are being made
count too. The objects differ in what happens to them when the worker dies:

Topics and watch sessions survive it (`ReservedCount`). A worker publishes its count on the board. That count
is up to date whenever the worker asks or has received an answer. The grants that are not in the count yet are
those that the worker has not seen: granted here, minus its `grants`, which it stores after the count.

T1  A shard that is down keeps its last count. The count of a shard that has not been ready since this process
    began is unknown, and nothing is granted until the shard is ready or refuses to start.
    A broker has none that lasts: what it had ended with it.
T2  Grants that a worker did not use before it died are returned when the shard is ready again.

Streams end with it (`StreamCount`). Each stream is assigned to a holder, the process that serves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
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
        self._pids: dict[int, int] = {}
        """By owner number, as the next two."""
        self._granted: dict[int, int] = {}
        self._counts: dict[int, int | None] = {}

    def read_board(self) -> None:
        """Read the board; called regularly, so that the last count of a dead worker is known."""
        self._follow_slot_count()
        for owner, slot in self._board.owners():
            state = slot.state
            if state in _PUBLISHING:
                if slot.pid != self._pids[owner]:
                    self._pids[owner], self._granted[owner] = slot.pid, 0
                # In this order: the worker stores the two in the opposite order.
                unseen = self._granted[owner] - self._fields.grants(slot)
                self._counts[owner] = self._fields.count(slot) + unseen
            elif self._counts[owner] is None and (
                state is WorkerState.REFUSED or self._board.is_broker(owner)
            ):
                self._counts[owner] = 0

    def _follow_slot_count(self) -> None:
        """Begin to count new shards, as unknown, and forget retired ones."""
        if len(self._counts) == len(self._board) + self._board.broker_count:
            return
        owners = [*range(len(self._board)), *self._board.broker_numbers]
        self._pids = {owner: self._pids.get(owner, 0) for owner in owners}
        self._granted = {owner: self._granted.get(owner, 0) for owner in owners}
        self._counts = {owner: self._counts.get(owner) for owner in owners}

    def of(self, owner: int) -> int:
        """Return the count of one shard or broker, 0 when unknown."""
        self._follow_slot_count()
        return self._counts[owner] or 0

    def reserve(self, shard: int) -> bool | None:
        """Return whether this shard may make one more; None when the total is unknown."""
        self.read_board()
        if not self.bound:
            self._grant(shard)
            return True
        total = 0
        for count in self._counts.values():
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
        if shard in self._granted:
            self._granted[shard] -= 1


BOUND: Final = "max_sse_connections"
BOUND_PER_KEY: Final = "max_sse_connections_per_key"


class StreamCount:
    def __init__(self, bound: int, bound_per_key: int) -> None:
        """Set the bounds; 0 means unlimited."""
        self.bounds = {BOUND: bound, BOUND_PER_KEY: bound_per_key}
        self._counts: dict[int, Counter[str]] = {}

    def enter(self, holder: int, key_id: str) -> str:
        """Count one more stream, unless a bound is reached; return the name of that bound, or "".

        `key_id` is empty when there are no keys.
        """
        limit = self._reached_bound(key_id)
        if not limit:
            self._counts.setdefault(holder, Counter())[key_id] += 1
        return limit

    def leave(self, holder: int, key_id: str) -> None:
        """Count one stream less; do nothing for a holder that was removed."""
        counts = self._counts.get(holder)
        if counts is not None:
            counts[key_id] -= 1
            assert counts[key_id] >= 0
            if not counts[key_id]:
                del counts[key_id]

    def keep(self, holders: Container[int]) -> None:
        """Remove every holder that is not in `holders`."""
        for holder in list(self._counts):
            if holder not in holders:
                del self._counts[holder]

    def _reached_bound(self, key_id: str) -> str:
        in_all, per_key = self.bounds[BOUND], self.bounds[BOUND_PER_KEY]
        if in_all and sum(counts.total() for counts in self._counts.values()) >= in_all:
            return BOUND
        if per_key and key_id and sum(counts[key_id] for counts in self._counts.values()) >= per_key:
            return BOUND_PER_KEY
        return ""
