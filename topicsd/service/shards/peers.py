"""The other shards, and the brokers, as the board shows them: their availability, and totals.

A shard that does not answer still has its data: its last published numbers count until it publishes others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.contract.errors import Refusal
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.placement import NO_SHARD
from shared.ipc.shard_refusal import NO_LOCAL_TOPICS, owner_refusal
from shared.runtime.clock import Clock

# A worker sends two heartbeats in this time.
FRESH_MS: Final = 1000

_ANSWERING: Final = (WorkerState.READY, WorkerState.DRAINING)


class Peers:
    def __init__(self, board: Board, clock: Clock, shard: int) -> None:
        self._board = board
        self._clock = clock
        self._shard = shard
        self._bytes_live: dict[int, int] = {}
        self._in_flight: list[memoryview] = []

    @property
    def slot(self) -> Slot:
        """Return the slot of this shard."""
        return self._board.slot(self._shard)

    def in_flight_elsewhere(self) -> list[memoryview]:
        """Return the counts by key of all other processes, in a list that `refresh` keeps up to date."""
        self.refresh()
        return self._in_flight

    def refresh(self) -> None:
        """Notice that the number of shards has changed; called at each heartbeat."""
        others = self._others()
        if len(self._in_flight) != len(others):
            self._in_flight[:] = [slot.in_flight_by_key for slot in others]

    def refusal(self, shard: int) -> Refusal | None:
        """Return the refusal when the shard, or the broker, does not serve requests now, or None."""
        if shard == NO_SHARD:
            return NO_LOCAL_TOPICS
        slot = self._board.slot(shard)
        state = slot.state
        silence_ms = int(self._clock.monotonic() * 1000) - slot.beat_ms
        if state in _ANSWERING and silence_ms <= FRESH_MS:
            return None
        return owner_refusal(self._board, shard, state)

    @property
    def broker_numbers(self) -> Sequence[int]:
        return self._board.broker_numbers

    def is_broker(self, owner: int) -> bool:
        return self._board.is_broker(owner)

    def ready_broker(self, present: int) -> int:
        """Return the first broker that serves now, from the present one on; that one if none does."""
        numbers = self.broker_numbers
        if present in numbers:
            for number in sorted(numbers, key=lambda one: (one < present, one)):
                if self.refusal(number) is None:
                    return number
        return present

    def pid(self, shard: int) -> int:
        """Return the pid of the shard's worker; 0 while it has none."""
        return self._board.slot(shard).pid

    def has_draining_peer(self) -> bool:
        """Return whether another worker or broker that is also stopping still has connections."""
        return any(slot.state is WorkerState.DRAINING and slot.connections for slot in self._others())

    def has_ready_peer(self) -> bool:
        """Return whether another worker or broker is ready, and so not stopping or not yet notified."""
        return any(slot.state is WorkerState.READY for slot in self._others())

    def _others(self) -> list[Slot]:
        return [slot for owner, slot in self._board.owners() if owner != self._shard]

    def topics_elsewhere(self) -> int:
        """Return the topics of all other shards as of their last heartbeats."""
        return sum(slot.topics for shard, slot in enumerate(self._board) if shard != self._shard)

    def bytes_elsewhere(self) -> int:
        total = 0
        for shard, slot in enumerate(self._board):
            if shard != self._shard:
                if slot.state in _ANSWERING:
                    self._bytes_live[shard] = slot.bytes_live
                total += self._bytes_live.get(shard, 0)
        return total

    def __len__(self) -> int:
        return len(self._board)
