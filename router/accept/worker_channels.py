"""The channels over which connections are handed to workers, and the state of each shard.

All state is on the board and in the sending ends of the channels, so every process that accepts connections
has its own `WorkerChannels` and asks no other process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from shared.contract.errors import Refusal, shutting_down
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import send_connection
from shared.ipc.shard_refusal import shard_refusal
from shared.runtime.clock import Clock


class WorkerChannels:
    """The channels to the workers; `senders` are their sending ends, in shard order.

    New channels may be appended to the list; those of retired shards stay in it and serve later shards of the
    same number.
    """

    def __init__(
        self, board: Board, clock: Clock, fresh_seconds: float, senders: Sequence[socket.socket]
    ) -> None:
        assert len(board) <= len(senders)
        self._board = board
        self._clock = clock
        self._fresh_ms = int(fresh_seconds * 1000)
        self._senders = senders
        self._next_any = 0
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._board)

    def refusal(self, shard: int) -> Refusal | None:
        """Return why no connection can be handed to the shard now; None when one can."""
        slot = self._board.slot(shard)
        state = slot.state
        if state is WorkerState.READY and silence_ms(slot, self._clock) <= self._fresh_ms:
            return None
        if self.is_draining and state not in (WorkerState.REFUSED, WorkerState.FAILED):
            return shutting_down()
        return shard_refusal(shard, state)

    def any_ready(self) -> int | None:
        """Return the next shard, in rotation, that accepts connections; None when no shard does."""
        count = len(self._board)
        for offset in range(count):
            shard = (self._next_any + offset) % count
            if self.refusal(shard) is None:
                self._next_any = shard + 1
                return shard
        return None

    def send(self, shard: int, fd: int, data: bytes) -> bool:
        """Hand a connection to a shard that `refusal` allows; return False when the channel is full."""
        try:
            return send_connection(self._senders[shard], fd, data)
        except ConnectionError:
            # No process holds the receiving end: the supervisor and the worker have died, so the channel
            # never has room again, and this process ends soon.
            return False


def silence_ms(slot: Slot, clock: Clock) -> int:
    return int(clock.monotonic() * 1000) - slot.beat_ms
