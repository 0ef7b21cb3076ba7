"""A board of some serving shards, for tests of sums over all shards.

Promises: every slot looks as its worker would leave it: ready, with a current heartbeat.
"""

from __future__ import annotations

import os

from shared.ipc.board import Board, WorkerState
from shared.runtime.clock import Clock


class SmallBoard:
    def __init__(self, shards: int, clock: Clock, brokers: int = 0) -> None:
        self.board = Board.create(shards, broker_count=brokers)
        os.close(self.board.fd)  # The memory stays mapped as long as the board exists.
        self._clock = clock
        for shard in range(shards):
            self.begin(shard, pid=100 + shard)
        for number in self.board.broker_numbers:
            self.begin(number, pid=200 + number)

    def begin(self, shard: int, pid: int, topics: int = 0) -> None:
        """Fill the slot of a worker that is ready."""
        slot = self.board.slot(shard)
        slot.clear()
        slot.pid = pid
        slot.topics = topics
        slot.beat_ms = int(self._clock.monotonic() * 1000)
        slot.state = WorkerState.READY

    def end(self, shard: int) -> None:
        self.board.slot(shard).clear()
