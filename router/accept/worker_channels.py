"""The channels over which connections are handed to workers, and the state of each shard.

All state is on the board and in the sending ends of the channels, so every process that accepts connections
has its own `WorkerChannels` and asks no other process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from shared.contract.errors import Refusal, not_ready, shutting_down
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import send_connection
from shared.ipc.shard_refusal import owner_refusal
from shared.runtime.clock import Clock


class WorkerChannels:
    """The channels to the workers and the brokers, which are named by their owner numbers.

    `senders` are the sending ends of the workers, in shard order, `broker_senders` those of the brokers. New
    channels may be appended to the first; those of retired shards stay in it and serve later shards of the
    same number.
    """

    def __init__(
        self,
        board: Board,
        clock: Clock,
        fresh_seconds: float,
        senders: Sequence[socket.socket],
        broker_senders: Sequence[socket.socket] = (),
    ) -> None:
        assert len(board) <= len(senders)
        assert board.broker_count == len(broker_senders)
        self._board = board
        self._clock = clock
        self._fresh_ms = int(fresh_seconds * 1000)
        self._senders = senders
        self._broker_senders = broker_senders
        self._next_any = self._next_broker = 0
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._board)

    def refusal(self, owner: int) -> Refusal | None:
        """Return why no connection can be handed to the shard or broker now; None when one can."""
        slot = self._board.slot(owner)
        state = slot.state
        if state is WorkerState.READY and silence_ms(slot, self._clock) <= self._fresh_ms:
            return None
        if self.is_draining and state not in (WorkerState.REFUSED, WorkerState.FAILED):
            return shutting_down()
        return owner_refusal(self._board, owner, state)

    def returned_refusal(self, owner: int) -> Refusal:
        """Return the refusal of a connection that a process did not receive."""
        return self.refusal(owner) or owner_refusal(self._board, owner, WorkerState.GONE)

    def is_retired(self, owner: int) -> bool:
        return len(self._board) <= owner and not self._board.is_broker(owner)

    def any_ready(self) -> int | None:
        """Return the next shard, in rotation, that accepts connections; None when no shard does.

        On a node without shards it is a broker.
        """
        count = len(self._board)
        if not count:
            return self.any_broker()
        for offset in range(count):
            shard = (self._next_any + offset) % count
            if self.refusal(shard) is None:
                self._next_any = shard + 1
                return shard
        return None

    def any_broker(self) -> int | None:
        """Return the owner number of the next broker that accepts connections; None when none does."""
        numbers = self._board.broker_numbers
        for offset in range(len(numbers)):
            number = numbers[(self._next_broker + offset) % len(numbers)]
            if self.refusal(number) is None:
                self._next_broker = number - numbers[0] + 1
                return number
        return None

    def none_ready(self, is_broker: bool) -> Refusal:
        """Return the refusal of a request for any worker, or any broker, when none is ready."""
        is_broker = is_broker or not len(self._board)
        owners = self._board.broker_numbers if is_broker else range(len(self._board))
        refusals = [self.refusal(owner) for owner in owners]
        # A process whose refusal suggests no retry is not restarted.
        is_retry_useful = any(one is None or one.retry_after_ms is not None for one in refusals)
        what = "no broker is ready" if is_broker else "no shard is ready"
        return not_ready(what, is_retry_useful=is_retry_useful)

    def send(self, owner: int, fd: int, data: bytes) -> bool:
        """Hand a connection to a process that `refusal` allows; return False when the channel is full."""
        is_broker = self._board.is_broker(owner)
        sender = self._broker_senders[owner - self._board.slots_max] if is_broker else self._senders[owner]
        try:
            return send_connection(sender, fd, data)
        except ConnectionError:
            # No process holds the receiving end: the supervisor and the worker have died, so the channel
            # never has room again, and this process ends soon.
            return False


def silence_ms(slot: Slot, clock: Clock) -> int:
    return int(clock.monotonic() * 1000) - slot.beat_ms
