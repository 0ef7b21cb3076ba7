"""The pool of workers, one for each shard, and that of the brokers, which run the same program.

The workers' pool has the channels through which both receive connections. A broker is named by its number in
its pool, and by its owner number everywhere else (`shared/ipc/board.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

from router.accept.worker_channels import WorkerChannels
from router.supervision.process_pool import PoolTimes, ProcessPool, StartParameters
from shared.contract.errors import Refusal
from shared.ipc.board import Board
from shared.ipc.handoff import HandoffMessage
from shared.runtime.clock import Clock


class WorkerPool(ProcessPool):
    """The workers, one for each shard.

    `spec` holds their common parameters. `on_returned` takes connections that a worker will not answer.
    """

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
        on_returned: Callable[[int, list[HandoffMessage]], None],
        times: PoolTimes = PoolTimes(),  # noqa: B008  # a tuple
        broker_senders: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__(board, clock, command, environment, times)
        self._spec = spec
        self._on_returned = on_returned
        self.channels = WorkerChannels(board, clock, times.fresh_seconds, self.senders, broker_senders)

    def start_parameters(self, number: int) -> StartParameters:
        return StartParameters({**self._spec, "shard": number, "shards": len(self)})

    def on_returned(self, number: int, handed: list[HandoffMessage]) -> None:
        self._on_returned(number, handed)

    def refusal(self, shard: int) -> Refusal | None:
        return self.channels.refusal(shard)

    def is_serving(self, shard: int) -> bool:
        return self.channels.refusal(shard) is None

    async def drain(self) -> bool:
        self.channels.is_draining = True
        return await super().drain()


class BrokerPool(ProcessPool):
    """The brokers, which are workers without a shard on the disk; `spec` and `on_returned` as for workers."""

    kind = "broker"
    number_field = "broker"
    variable = "TOPICSD_WORKER"

    def __init__(
        self,
        board: Board,
        clock: Clock,
        command: Sequence[str],
        environment: Mapping[str, str],
        spec: Mapping[str, object],
        on_returned: Callable[[int, list[HandoffMessage]], None],
        times: PoolTimes,
    ) -> None:
        super().__init__(board, clock, command, environment, times, board.broker_numbers)
        self._spec = spec
        self._on_returned = on_returned

    def start_parameters(self, number: int) -> StartParameters:
        owner = self._board.broker_number(number)
        return StartParameters({**self._spec, "shard": owner, "shards": len(self._board), "broker": number})

    def on_returned(self, number: int, handed: list[HandoffMessage]) -> None:
        self._on_returned(self._board.broker_number(number), handed)
