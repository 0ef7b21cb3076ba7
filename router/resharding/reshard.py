"""A reshard: the number of shards of a running server changes, and topics move one after the other.

The journal is the placement and the layout. The target is in the placement before a request is answered, and
the unmoved topics of the placement are what is left to do. So a start continues without being asked, and
every step below can be repeated.

R1  Grow: LAYOUT.json counts the new shards, their workers serve, every process has its channel to them; then
    the board counts them. The rule does not, so they own nothing. A start after a crash up to here continues
    with as many shards as LAYOUT.json counts.
R2  Survey: the placement gets the new rule for a range of topic ids in one replacement, in which every topic
    that the rule gives to another shard is an exception and unmoved (`PlacementWriter.change_rule`). New
    topics of the range follow the new rule. A range has about `TOPICS_AT_ONCE` topics, so that no process
    reads a long list for each replacement.
R3  Move: the source of each unmoved topic moves it to its shard by the rule, as for a request to move it. A
    few move at a time, and their changes of the placement share replacements.
R4  Survey again, up to the end of the next range: exceptions that say the same as the rule are removed,
    except while a second copy of their topic is left. Topics that are found elsewhere are moved.
R5  Retire: shards beyond the rule hold no topic. The board stops counting them, their workers drain and end,
    and then LAYOUT.json stops counting them and their directories are removed. Their watch sessions end.

A shard that is down, or any other failure, pauses the reshard: it is tried again every `RETRY_SECONDS`. A
request for another count replaces the target when the rule holds for all topic ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from router.resharding.placement_writer import PlacementWriter
from router.resharding.shard_requests import ShardRequests
from shared.contract.errors import NOT_IMPLEMENTED, Refusal, invalid
from shared.contract.names import topic_id
from shared.ipc.board import Board, WorkerState
from shared.ipc.placement import ID_END, Placement
from shared.ipc.shared_placement import SharedPlacement
from shared.ipc.survey import SurveyRequest
from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields
from shared.runtime.unexpected_error import refuse_unexpected_error

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
PROGRESS_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 0.05
START_SECONDS: Final = 30.0
# The board may not show yet that the last topic left a shard.
HEARTBEAT_SECONDS: Final = 2.0
TOPICS_AT_ONCE: Final = 1000
MOVES_AT_ONCE: Final = 32


class GrowingPool(Protocol):
    """The workers, as `router/supervision/process_pool.py` presents them."""

    def __len__(self) -> int: ...
    def grow(self, count: int) -> None: ...
    async def retire(self, count: int) -> None: ...


class Directories(Protocol):
    """The directories of the shards, as `topicsd/disk/shard_dirs.py` presents them."""

    def write_placement(self, placement: Placement) -> None: ...
    def add(self, shard_count: int) -> None: ...
    def remove(self, shard_count: int) -> None: ...


class Paused(Exception):
    """A step that cannot be made now; the text says why."""


class Reshard:
    """The present reshard, if any. `directories` is None for a server without a data directory.

    `has_all_channels` returns whether every process that places connections has a channel to each worker.
    """

    def __init__(
        self,
        board: Board,
        placement: SharedPlacement,
        writer: PlacementWriter,
        workers: GrowingPool,
        shards: ShardRequests,
        directories: Directories | None,
        has_all_channels: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._board = board
        self._placement = placement
        self._writer = writer
        self._workers = workers
        self._shards = shards
        self._directories = directories
        self._has_all_channels = has_all_channels
        self._clock = clock
        self._target = min(placement.current.target or placement.current.shard_count, board.slots_max)
        self._directory_count = len(board)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._state = "steady"
        self._last_error = ""
        self._longest_pause_ms = 0.0
        self._logged = 0.0
        self.moved_total = 0
        """Topics that a reshard has moved since the start."""

    # -- requests ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Continue an interrupted reshard, if there is one."""
        if self._directories is not None and not self._is_finished():
            logger.info("reshard: continued", extra=fields(shards=len(self._board), target=self._target))
            self._begin()

    async def request(self, count: int) -> dict[str, object] | Refusal:
        """Change the number of shards to `count`, in the background; return the state.

        The request outlives the server once this returns.
        """
        if self._directories is None:
            return Refusal(NOT_IMPLEMENTED, "a server without a data directory cannot change its shards")
        if not len(self._board):
            return Refusal(
                NOT_IMPLEMENTED,
                "a node without shards cannot get any; start another data directory with TOPICS_SHARDS",
            )
        bound = self._board.slots_max
        if not 1 <= count <= bound:
            return invalid("count", f"must be 1 to {bound}, got {count}", bound)
        before, self._target = self._target, count
        refusal = await self._writer.set_target(count)
        if refusal is not None:
            self._target = before if self._target == count else self._target
            return refusal
        if not self._is_finished():
            logger.info("reshard: requested", extra=fields(shards=len(self._board), target=count))
            self._begin()
        return self.answer()

    def answer(self) -> dict[str, object]:
        current = self._current
        is_of_target = current.shard_count == self._target
        return {
            "count": len(self._board),
            "rule": current.shard_count,
            "target": self._target,
            "state": self._state,
            "progress": round(current.former.first_id / ID_END, 3) if is_of_target else 0.0,
            "topics_left": len(current.unmoved),
            "topics_moved": self.moved_total,
            "longest_pause_ms": round(self._longest_pause_ms, 3),
            "last_error": self._last_error,
            "shards": [
                {
                    "shard": shard,
                    "state": slot.state.name.lower(),
                    "topics": slot.topics,
                    "records": slot.records_live,
                    "bytes": slot.bytes_live,
                }
                for shard, slot in enumerate(self._board)
            ],
        }

    async def close(self) -> None:
        """Stop; the next start continues."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def _current(self) -> Placement:
        self._placement.refresh()
        return self._placement.current

    # -- the steps -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._wake.set()
        if self._task is None or self._task.done():
            self._state = "growing" if len(self._board) < self._target else "surveying"
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _is_finished(self) -> bool:
        current, target = self._current, self._target
        return (
            current.shard_count == target
            and not current.target
            and current.former.first_id == ID_END
            and not current.unmoved
            and not current.has_entry_of_rule()
            and len(self._board) == len(self._workers) == self._directory_count == target
        )

    async def _run(self) -> None:
        while not self._is_finished():
            self._wake.clear()
            try:
                # A start may have lowered it to its bound.
                await self._check(self._writer.set_target(self._target))
                current = self._current
                # A rule that holds for a part of the topics first holds for all of them.
                is_partial = current.former.first_id < ID_END
                await self._step(current.shard_count if is_partial else self._target)
                self._last_error = ""
            except Paused as pause:
                await self._pause(str(pause))
            except Exception as error:  # tried again: each step can be repeated
                await self._pause(refuse_unexpected_error(logger, "a reshard", error).message)
        self._state, self._last_error = "steady", ""
        longest = round(self._longest_pause_ms, 1)
        summary = fields(shards=self._target, moved=self.moved_total, longest_pause_ms=longest)
        logger.info("reshard: finished", extra=summary)

    async def _pause(self, reason: str) -> None:
        if reason != self._last_error:
            logger.warning("reshard: paused: %s", reason, extra=fields(target=self._target))
        self._last_error = reason
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._wake.wait()

    async def _step(self, target: int) -> None:
        if len(self._board) < target:
            self._state = "growing"
            await self._grow(target)
        current = self._current
        if current.shard_count != target or not current.unmoved:
            self._state = "surveying"
            await self._survey(target)
        if self._current.unmoved:
            self._state = "moving"
            await self._move_all(target)
        if self._current.unmoved or self._current.former.first_id < ID_END:
            return
        if self._current.has_entry_of_rule():
            raise Paused("waits until a shard has dropped its copy of a topic that was moved")
        if max(len(self._board), len(self._workers), self._directory_count) > target:
            self._state = "retiring"
            await self._retire(target)

    async def _grow(self, target: int) -> None:
        assert self._directories is not None
        await self._check(self._writer.rewrite(is_needed=self._current.version == 0))
        self._directory_count = max(self._directory_count, target)
        try:
            await asyncio.to_thread(self._directories.add, target)
            self._board.allocate(target)
        except OSError as error:
            raise Paused(f"cannot make shards: {error.strerror or error}") from error
        self._workers.grow(target)
        deadline = self._clock.monotonic() + START_SECONDS
        while problem := self._start_problem(target):
            if self._clock.monotonic() > deadline or target != self._target:
                raise Paused(problem)
            await asyncio.sleep(CHECK_SECONDS)
        self._board.set_slot_count(target)
        logger.info("reshard: shards added", extra=fields(shards=target))

    def _start_problem(self, target: int) -> str:
        for shard in range(target):
            slot = self._board.slot(shard)
            if slot.state is not WorkerState.READY:
                return f"shard {shard} is not ready: {slot.reason or slot.state.name.lower()}"
        return "" if self._has_all_channels() else "an acceptor has no channel to a new shard yet"

    async def _survey(self, target: int) -> None:
        current = self._current
        first_id = current.former.first_id if current.shard_count == target else 0
        share = TOPICS_AT_ONCE / max(sum(slot.topics for slot in self._board), 1)
        first_id = min(ID_END, first_id + int(ID_END * share))
        survey = partial(self._shards.survey, SurveyRequest(target, first_id - 1), len(self._board))
        await self._check(self._writer.change_rule(target, first_id, survey))

    async def _check(self, change: Awaitable[Refusal | None]) -> None:
        refusal = await change
        if refusal is not None:
            raise Paused(refusal.message)

    # -- moving topics -------------------------------------------------------------------------------------

    async def _move_all(self, rule: int) -> None:
        names = sorted(self._current.unmoved, reverse=True)
        problems: list[str] = []

        async def move_some() -> None:
            while names and not problems:
                problem = await self._move(names.pop())
                if problem:
                    problems.append(problem)
                self._log_progress()

        await asyncio.gather(*(move_some() for _ in range(MOVES_AT_ONCE)))
        if problems:
            raise Paused(problems[0])
        await self._survey(rule)

    async def _move(self, name: str) -> str:
        """Move a topic to its shard by the rule; return why that failed, or an empty string."""
        current = self._current
        if name not in current.unmoved:
            return ""
        target = current.rule_shard_of(topic_id(name))
        frozen_ms = await self._shards.move(name, current.owner_of(name), target)
        if isinstance(frozen_ms, str):
            return frozen_ms
        if frozen_ms is not None:
            self.moved_total += 1
            self._longest_pause_ms = max(self._longest_pause_ms, frozen_ms)
        return ""

    def _log_progress(self) -> None:
        now = self._clock.monotonic()
        if now - self._logged >= PROGRESS_SECONDS:
            self._logged = now
            left = len(self._current.unmoved)
            logger.info("reshard: moving topics", extra=fields(left=left, moved=self.moved_total))

    # -- retiring shards -----------------------------------------------------------------------------------

    async def _retire(self, target: int) -> None:
        assert self._directories is not None
        assert self._current.shard_count == target
        assert self._current.former.first_id == ID_END
        assert not any(shard >= target for shard in self._current.exceptions.values())
        for shard in range(target, len(self._board)):
            deadline = self._clock.monotonic() + HEARTBEAT_SECONDS
            while count := self._board.slot(shard).topics:
                if self._clock.monotonic() > deadline:
                    raise Paused(f"shard {shard} still has topics: {count}")
                await asyncio.sleep(CHECK_SECONDS)
            if count := self._board.slot(shard).objects_to_delete:
                raise Paused(f"shard {shard} still has to delete objects from the store: {count}")
        if len(self._board) > target:
            self._board.set_slot_count(target)
            # Processes drop what they derived from the old number when they see a new version.
            await self._check(self._writer.rewrite(is_needed=True))
        await self._workers.retire(target)
        try:
            await asyncio.to_thread(self._directories.remove, target)
        except OSError as error:
            raise Paused(f"cannot remove the directories of shards: {error.strerror or error}") from error
        self._directory_count = target
        logger.info("reshard: shards removed", extra=fields(shards=target))
