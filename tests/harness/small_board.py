"""A board of some serving shards, for tests of sums over all shards.

Promises: every slot looks as its worker would leave it: ready, with a current heartbeat.
"""

from __future__ import annotations

import os
from types import TracebackType

from shared.ipc.board import Board, WorkerState
from shared.runtime.clock import Clock


class SmallBoard:
    def __init__(self, shards: int, clock: Clock) -> None:
        self.board = Board.create(shards)
        self._clock = clock

    def __enter__(self) -> SmallBoard:
        for shard in range(len(self.board)):
            self.begin(shard, pid=100 + shard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.board.close()
        os.close(self.board.fd)

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
