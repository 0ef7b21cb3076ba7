"""The doors of the shards: whether a connection can be handed to a shard now, and the handing over.

All of it comes from the board and from the sending ends of the channels, so every process that accepts
connections has doors of its own and asks nobody.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from shared.contract.errors import SHUTTING_DOWN, Refusal
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import send_connection
from shared.ipc.shard_refusal import RETRY_AFTER_MS, shard_refusal
from shared.runtime.clock import Clock


class ShardDoors:
    """`senders` are the sending ends of the workers' channels, in the order of the shards."""

    def __init__(
        self, board: Board, clock: Clock, fresh_seconds: float, senders: Sequence[socket.socket]
    ) -> None:
        assert len(board) == len(senders)
        self._board = board
        self._clock = clock
        self._fresh_ms = int(fresh_seconds * 1000)
        self._senders = senders
        self._next_any = 0
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._senders)

    def refusal(self, shard: int) -> Refusal | None:
        """Why no connection can be handed to the shard now; None when one can."""
        slot = self._board.slot(shard)
        state = slot.state
        if state is WorkerState.READY and silence_ms(slot, self._clock) <= self._fresh_ms:
            return None
        if self.is_draining and state not in (WorkerState.REFUSED, WorkerState.FAILED):
            return Refusal(SHUTTING_DOWN, "the server is shutting down", None, RETRY_AFTER_MS)
        return shard_refusal(shard, state)

    def any_ready(self) -> int | None:
        """A shard that takes connections, each in its turn; None when there is none."""
        count = len(self._senders)
        for offset in range(count):
            shard = (self._next_any + offset) % count
            if self.refusal(shard) is None:
                self._next_any = shard + 1
                return shard
        return None

    def send(self, shard: int, fd: int, data: bytes) -> bool:
        """Hand a connection to a shard that `refusal` allows; False when there is no room now."""
        try:
            return send_connection(self._senders[shard], fd, data)
        except ConnectionError:
            # Nobody holds the other end any more: the supervisor has died and the worker too, so there is
            # never room again, and the end of this process is near.
            return False


def silence_ms(slot: Slot, clock: Clock) -> int:
    return int(clock.monotonic() * 1000) - slot.beat_ms
