"""A server whose number of shards changes, with its real journal and without processes.

Promises: the files, the board, the placement and the reshard are those of a server. Workers are ready at
once, and a topic is only its name and its shard. The server can be killed at any of its disk calls;
`ReshardingServer` is then made again from the disk, as a start does. A move that was interrupted is where the
placement says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import Any, Final, cast

from router.resharding.placement_writer import PlacementWriter, SurveyResult
from router.resharding.reshard import Reshard
from shared.contract.errors import Refusal
from shared.contract.names import topic_id
from shared.ipc.board import PLACEMENT_VERSION, Board, WorkerState
from shared.ipc.placement import Placement, shard_of
from shared.ipc.placement_change import PlacementChange
from shared.ipc.shared_placement import SharedPlacement
from shared.ipc.survey import SurveyRequest
from shared.runtime.clock import SystemClock
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.machine.process_disk import ProcessDisk
from tests.harness.shard.shard_driver import DATA_DIR
from topicsd.disk.fs import Fs
from topicsd.disk.layout import create_data_dir, read_layout, shard_numbers
from topicsd.disk.placement_file import read_placement
from topicsd.disk.shard_dirs import ShardDirectories, settle_directories

END_SECONDS: Final = 20.0
INSTANCE: Final = bytes(16)


class DiskPlacement(SharedPlacement):
    def __init__(self, words: Any, fs: Fs) -> None:
        self._fs = fs
        super().__init__(words, "")

    def read(self) -> Placement:
        return read_placement(self._fs, DATA_DIR, self.shard_count)


class _Pool:
    """Workers that are ready as soon as they are started."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._count = 0
        self.grow(len(board))

    def __len__(self) -> int:
        return self._count

    def grow(self, count: int) -> None:
        for shard in range(self._count, count):
            slot = self._board.slot(shard)
            slot.pid, slot.state = 100 + shard, WorkerState.READY
        self._count = max(self._count, count)

    async def retire(self, count: int) -> None:
        for shard in range(count, self._count):
            self._board.slot(shard).pid = 0
        self._count = min(self._count, count)


class ReshardingServer:
    """`topics` has the shard of each topic; it outlives the server, as the directories of the shards do."""

    def __init__(self, disk: MemoryDisk, topics: dict[str, int], kill_after: int | None = None) -> None:
        self.process = ProcessDisk(disk)
        fs = cast(Fs, self.process)
        layout = read_layout(fs, DATA_DIR)
        assert layout is not None
        layout = settle_directories(fs, DATA_DIR, layout)
        assert sorted(shard_numbers(fs, DATA_DIR)) == list(range(layout.shards))
        if kill_after is not None:
            self.process.kill_after(kill_after)
        self.board = Board.create(layout.shards)
        self.placement = DiskPlacement(self.board.head, fs)
        self.board.head[PLACEMENT_VERSION] = self.placement.current.version
        self.placement.refresh()
        self.topics = topics
        for name in topics:
            topics[name] = self.placement.owner_of(name)
            assert topics[name] < layout.shards
        directories = ShardDirectories(fs, DATA_DIR)
        self.is_failed = False
        self._writer = PlacementWriter(
            self.board, self.placement, directories.write_placement, contextlib.nullcontext, self._fail
        )
        self.reshard = Reshard(
            self.board,
            self.placement,
            self._writer,
            _Pool(self.board),
            cast(Any, self),
            directories,
            lambda: True,
            SystemClock(),
        )

    def close(self) -> None:
        self.board.close()
        os.close(self.board.fd)

    def _fail(self) -> None:
        self.is_failed = True

    # -- the requests of the reshard to the shards -----------------------------------------------------------

    async def survey(self, request: SurveyRequest, shard_count: int) -> SurveyResult | Refusal:
        first_id = request.last_id + 1
        rule = partial(self._rule_shard, self.placement.current, request.rule, first_id)
        elsewhere = {name: shard for name, shard in self.topics.items() if rule(name) != shard}
        return SurveyResult({shard: 100 + shard for shard in range(shard_count)}, elsewhere, {}, set(), 0)

    @staticmethod
    def _rule_shard(current: Placement, rule: int, first_id: int, name: str) -> int:
        number = topic_id(name)
        return shard_of(number, rule) if number < first_id else current.rule_shard_of(number)

    async def move(self, name: str, source: int, target: int) -> float | str | None:
        assert self.topics[name] == source
        change = PlacementChange({name: target}, {source: 100 + source, target: 100 + target})
        refusal = await self._writer.change(change)
        if refusal is not None:
            return refusal.message
        self.topics[name] = target
        over = PlacementChange(change.shards, change.pids, is_over=True)
        refusal = await self._writer.change(over)
        return 1.0 if refusal is None else refusal.message

    # -- progress ------------------------------------------------------------------------------------------

    async def run(self, calls: int = 0) -> None:
        """Run until the number of shards is steady, or for so many disk calls.

        Raise MachineGoneError when the process is killed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_SECONDS
        while True:
            if self.process.is_dead or self.is_failed:
                raise MachineGoneError("the server ended")
            answer = self.reshard.answer()
            if self.process.calls >= calls > 0:
                return
            if answer["state"] == "steady" and answer["count"] == answer["target"]:
                return
            assert loop.time() < deadline, answer
            await asyncio.sleep(0)


def new_disk(shards: int) -> MemoryDisk:
    disk = MemoryDisk()
    create_data_dir(cast(Fs, disk), DATA_DIR, shards, INSTANCE)
    return disk
