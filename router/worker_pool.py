"""The workers, one a shard: a pool of processes, and the doors through which they get their connections.

Must not know: what a connection is about, HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.process_pool import PoolTimes, ProcessPool, Told
from router.shard_doors import ShardDoors
from shared.board import Board
from shared.clock import Clock
from shared.errors import Refusal
from shared.handoff import Handed


class WorkerPool(ProcessPool):
    """`spec` is what every worker is told, `on_returned` takes connections that a worker will not answer."""

    kind = "worker"
    number_field = "shard"
    variable = "TOPICSD_WORKER"

    def __init__(
        self,
        board: Board,
        clock: Clock,
        command: Sequence[str],
        environment: Mapping[str, str],
        spec: Mapping[str, object],
        on_returned: Callable[[int, list[Handed]], None],
        times: PoolTimes = PoolTimes(),  # noqa: B008  # a tuple
    ) -> None:
        super().__init__(board, clock, command, environment, times)
        self._spec = spec
        self._on_returned = on_returned
        self.doors = ShardDoors(board, clock, times.fresh_seconds, self.senders)

    def tell(self, number: int) -> Told:
        return Told({**self._spec, "shard": number, "shards": len(self)})

    def returned(self, number: int, handed: list[Handed]) -> None:
        self._on_returned(number, handed)

    def refusal(self, shard: int) -> Refusal | None:
        return self.doors.refusal(shard)

    def is_serving(self, shard: int) -> bool:
        return self.doors.refusal(shard) is None

    async def drain(self) -> bool:
        self.doors.is_draining = True
        return await super().drain()
