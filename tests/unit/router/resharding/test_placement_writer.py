"""Changes of the placement: those that wait share a replacement, and a new rule moves no topic."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.resharding.placement_writer import PlacementWriter, SurveyResult
from shared.contract.errors import Refusal
from shared.ipc.board import NEXT_RULE, Board
from shared.ipc.placement import ID_END, Placement, encode_placement
from shared.ipc.placement_change import PlacementChange
from shared.ipc.shared_placement import SharedPlacement

PIDS = {0: 100, 1: 101}
HOME = Placement(2).owner_of("orders")


class Writing:
    """A writer of a placement of two shards, and the placements that it wrote."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "PLACEMENT.json"
        self.board = Board.create(2)
        for shard, pid in PIDS.items():
            self.board.slot(shard).pid = pid
        self.placement = SharedPlacement(self.board.head, str(self._path))
        self.written: list[Placement] = []
        self.writer = PlacementWriter(
            self.board, self.placement, self._write, contextlib.nullcontext, self._on_failure
        )

    def _write(self, placement: Placement) -> None:
        self._path.write_bytes(encode_placement(placement))
        self.written.append(placement)

    def _on_failure(self) -> None:
        raise AssertionError("no write fails")


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Writing]:
    one = Writing(tmp_path)
    yield one
    one.board.close()
    os.close(one.board.fd)


def test_changes_that_arrive_together_share_replacements(writing: Writing) -> None:
    async def run() -> list[Refusal | None]:
        changes = [PlacementChange({f"t{number}": number % 2}, PIDS) for number in range(20)]
        ended = PlacementChange({"ended": 1}, {0: 100, 1: 99})
        return await asyncio.gather(*map(writing.writer.change, [*changes, ended]))

    *answers, refusal = asyncio.run(run())
    assert answers == [None] * 20
    assert refusal is not None
    # The first change did not wait; all others share one replacement.
    assert len(writing.written) == 2
    assert writing.placement.owner_of("t7") == 1
    assert "ended" not in writing.placement.current.exceptions


def test_an_entry_of_a_topic_that_moves_again_is_not_removed(writing: Writing) -> None:
    away = {"orders": 1 - HOME}

    async def run() -> None:
        await writing.writer.change(PlacementChange(away, PIDS))
        await writing.writer.change(PlacementChange({"orders": HOME}, PIDS))
        over = PlacementChange({"orders": HOME}, PIDS, is_over=True)
        await asyncio.gather(writing.writer.change(PlacementChange(away, PIDS)), writing.writer.change(over))

    asyncio.run(run())
    assert writing.placement.owner_of("orders") == 1 - HOME


def test_a_new_rule_has_the_topics_of_the_survey_and_no_other(writing: Writing) -> None:
    async def survey() -> SurveyResult:
        assert writing.board.head[NEXT_RULE] == 5
        return SurveyResult(PIDS, {"orders.eu": 0}, {}, set(), 7)

    writing.board.allocate(5)
    writing.board.set_slot_count(5)
    assert asyncio.run(writing.writer.change_rule(5, ID_END, survey)) is None
    assert writing.board.head[NEXT_RULE] == 0
    assert writing.placement.owner_of("orders.eu") == 0
    current = writing.placement.current
    assert (current.shard_count, current.unmoved, current.epoch_floor) == (5, {"orders.eu"}, 7)


def test_a_failed_survey_changes_nothing(writing: Writing) -> None:
    async def survey() -> Refusal:
        return Refusal("not_ready", "shard 1 is restarting")

    refusal = asyncio.run(writing.writer.change_rule(1, ID_END, survey))
    assert refusal is not None
    assert writing.written == []
    assert writing.board.head[NEXT_RULE] == 0


def test_no_topic_is_moved_to_a_shard_that_is_being_removed(writing: Writing) -> None:
    async def survey() -> SurveyResult:
        return SurveyResult(PIDS, {"a": 1}, {}, set(), 0)

    async def run() -> list[Refusal | None]:
        await writing.writer.change_rule(1, ID_END, survey)
        changes = [PlacementChange({name: 1}, PIDS) for name in ("a", "orders")]
        return [await writing.writer.change(change) for change in changes]

    stays, refusal = asyncio.run(run())
    assert stays is None
    assert refusal is not None
    assert refusal.message.startswith("shard: must be 0 to 0")
