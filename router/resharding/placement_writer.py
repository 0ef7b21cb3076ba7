"""The changes of the placement, which only the supervisor makes.

W1  One change runs at a time: the file is replaced and synced, then its version is stored on the board. The
    replacement is the commit point of a relocation.
W2  A change names the workers that agreed on it. It is refused when one of them has ended, and while it runs
    no worker is started. So the worker that prepared a topic still has it at the commit point, or its
    successor reads the new file: none finds the old placement and drops a topic that is then placed there.
W3  A relocation that is over removes the entry of its topic if the rule says the same. The topic must have
    had no other change since: a later relocation may have made a second copy already.
W4  When it is unknown whether the file was replaced, the server ends, and the next start reads the file.
W5  Changes that arrive while one is written are written together, in the next replacement. So the cost of a
    replacement, which grows with the number of exceptions, is shared by the topics that move at one time.
W6  A change of the rule needs to know all topics. The board has the next rule first, which keeps every shard
    from creating topics that it would not own. Then each shard is asked. No other change runs meanwhile, so
    no topic moves between two answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from shared.contract.errors import STORAGE_FAILED, Refusal, invalid, no_answer, reason_without_path
from shared.ipc.board import NEXT_RULE, PLACEMENT_VERSION, Board
from shared.ipc.placement import Placement
from shared.ipc.placement_change import PlacementChange
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.log_setup import fields

logger = logging.getLogger(__name__)

WritePlacement = Callable[[Placement], None]
"""Replaces the file durably. Blocks for a sync."""


class SurveyResult(NamedTuple):
    """The topics of all shards that are not where the next rule places them, by name."""

    pids: dict[int, int]
    """The workers that answered, by shard."""
    locations: dict[str, int]
    departed: dict[str, int]
    """The shards that know topics to be on another node."""
    hidden: set[str]
    """Topics of which a shard has a copy that it does not serve."""
    epoch_floor: int


SurveyShards = Callable[[], Awaitable[SurveyResult | Refusal]]
"""Asks all shards for topics that the next rule places elsewhere."""


class _Waiting(NamedTuple):
    """A change that waits for the next replacement of the file."""

    request: PlacementChange
    answer: asyncio.Future[Refusal | None]


class PlacementWriter:
    """`hold_starts` keeps workers from being started; `on_failure` ends the server (W4)."""

    def __init__(
        self,
        board: Board,
        placement: SharedPlacement,
        write: WritePlacement | None,
        hold_starts: Callable[[], AbstractContextManager[None]],
        on_failure: Callable[[], object],
    ) -> None:
        self._board = board
        self._placement = placement
        self._write = write
        self._hold_starts = hold_starts
        self._on_failure = on_failure
        self._lock = asyncio.Lock()
        self._waiting: list[_Waiting] = []
        self._changes: dict[str, PlacementChange] = {}
        """The last change of each topic until its relocation is over (W3)."""

    async def change(self, request: PlacementChange) -> Refusal | None:
        """Record the change; return None once it is durable and on the board, else the refusal.

        A change of no topic only waits for the one in progress.
        """
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        async with self._lock:
            if not waiting.answer.done():
                with self._hold_starts():
                    await self._change_together()
        return waiting.answer.result()

    async def _change_together(self) -> None:
        """Record all changes that wait, in one replacement (W5)."""
        together, self._waiting = self._waiting, []
        self._placement.refresh()
        refusals = [self._refuse(waiting.request) for waiting in together]
        accepted = [
            waiting.request
            for waiting, refusal in zip(together, refusals, strict=True)
            if refusal is None and waiting.request.shards
        ]
        failure: Refusal | None = None
        try:
            if accepted:
                failure = await self._record(accepted)
        except BaseException as error:
            for waiting in together:
                waiting.answer.set_exception(error)
            raise
        for waiting, refusal in zip(together, refusals, strict=True):
            waiting.answer.set_result(refusal or (failure if waiting.request.shards else None))

    async def _record(self, requests: Sequence[PlacementChange]) -> Refusal | None:
        current = self._placement.current
        shards: dict[str, int] = {}
        over: set[str] = set()
        for request in requests:
            if request.is_over:
                over.update(name for name in request.shards if self._is_last(name, request))
            else:
                shards.update(request.shards)
        placement = current.changed(shards).without_entries(over - shards.keys())
        if placement.exceptions != current.exceptions:
            failure = await self._replace(placement, len(requests))
            if failure is not None:
                return failure
        for request in requests:
            self._note(request)
        return None

    def _refuse(self, request: PlacementChange) -> Refusal | None:
        refusal = self._refuse_ended(request.pids)
        if refusal is not None:
            return refusal
        current = self._placement.current
        for name, shard in request.shards.items():
            if shard >= current.shard_count and current.owner_of(name) != shard:
                message = (
                    f"must be 0 to {current.shard_count - 1} while shards are added or removed, got {shard}"
                )
                return invalid("shard", message)
        return None

    def _refuse_ended(self, pids: Mapping[int, int]) -> Refusal | None:
        """Return a refusal when one of these workers has ended (W2)."""
        for shard, pid in pids.items():
            if self._board.slot(shard).pid != pid:
                return no_answer(shard)
        return None

    async def change_rule(self, rule: int, first_id: int, survey: SurveyShards) -> Refusal | None:
        """Give the rule `rule` shards for topic ids below `first_id`; return why that failed (W6).

        Every topic stays where it is. With the present rule, exceptions that say the same as the rule are
        removed.
        """
        async with self._lock:
            head = self._board.head
            head[NEXT_RULE] = rule
            try:
                with self._hold_starts():
                    result = await survey()
                    if isinstance(result, Refusal):
                        return result
                    refusal = self._refuse_ended(result.pids)
                    return refusal or await self._resharded(rule, first_id, result)
            finally:
                # The version on the board is the new one by now: a creation that sees no next rule sees it.
                head[NEXT_RULE] = 0

    async def _resharded(self, rule: int, first_id: int, result: SurveyResult) -> Refusal | None:
        self._placement.refresh()
        current = self._placement.current
        # A topic that is being relocated may get a second copy after the survey.
        moving = {name for name, change in self._changes.items() if not self._refuse_ended(change.pids)}
        hidden = result.hidden | moving
        placement = current.resharded(
            rule, first_id, result.locations, result.departed, hidden, result.epoch_floor
        )
        if _content(current) == _content(placement):
            return None
        return await self._replace(placement, len(placement.unmoved))

    async def set_target(self, shard_count: int) -> Refusal | None:
        """Record how many shards a reshard is to reach; return None once that is durable."""
        async with self._lock:
            self._placement.refresh()
            current = self._placement.current
            placement = current.with_target(shard_count)
            return None if placement.target == current.target else await self._replace(placement, 0)

    async def rewrite(self, is_needed: bool) -> Refusal | None:
        """Replace the file by one that says the same, so that there is one, or that all processes read it."""
        if not is_needed:
            return None
        async with self._lock:
            self._placement.refresh()
            return await self._replace(self._placement.current.changed({}), 0)

    async def _replace(self, placement: Placement, topic_count: int) -> Refusal | None:
        assert self._write is not None, "a server without a directory changes no placement"
        try:
            await asyncio.to_thread(self._write, placement)
        except OSError as error:
            return self._on_write_failed(placement, error)
        self._board.head[PLACEMENT_VERSION] = placement.version
        # A reshard logs its own progress.
        logger.log(
            logging.DEBUG if placement.unmoved else logging.INFO,
            "placement: changed",
            extra=fields(version=placement.version, topics=topic_count),
        )
        return None

    def _note(self, request: PlacementChange) -> None:
        for name in request.shards:
            if not request.is_over:
                self._changes[name] = request
            elif self._is_last(name, request):
                del self._changes[name]

    def _is_last(self, name: str, request: PlacementChange) -> bool:
        """Return whether the topic had no change since the one of this relocation."""
        last = self._changes.get(name)
        return last is not None and (last.shards, last.pids) == (request.shards, request.pids)

    def _on_write_failed(self, placement: Placement, error: OSError) -> Refusal | None:
        try:
            is_replaced = self._placement.read().version == placement.version
        except Exception:
            is_replaced = True
        if is_replaced:
            logger.error("placement: replaced, but not synced, the server ends: %s", error)
            self._on_failure()
        else:
            logger.error("placement: not changed: %s", error)
        reason = f"PLACEMENT.json cannot be written: {reason_without_path(error)}"
        return Refusal(STORAGE_FAILED, reason)


def _content(placement: Placement) -> tuple[object, ...]:
    return placement.shard_count, placement.former, placement.exceptions, placement.unmoved
