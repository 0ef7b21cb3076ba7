"""A reshard of a running server that is killed at any disk call ends with the number that was requested."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from random import Random
from typing import cast

import pytest

from shared.contract.errors import Refusal
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import DATA_DIR
from tests.harness.stage.resharding_server import ReshardingServer, new_disk
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.disk.fs import Fs
from topicsd.disk.layout import read_layout
from topicsd.disk.placement_file import read_placement, write_placement

pytestmark = pytest.mark.usefixtures("quiet_log")

TOPICS = [f"t{number}" for number in range(9)]


def serve(
    disk: MemoryDisk,
    topics: dict[str, int],
    counts: tuple[int, ...],
    calls: int = 0,
    kill_after: int | None = None,
) -> tuple[list[int], bool]:
    """Start, request these numbers of shards, and run to the end or the kill.

    The second number is requested after `calls` disk calls.
    Return the numbers that were answered, and whether the server was killed.
    """
    answered: list[int] = []

    async def run() -> bool:
        server = ReshardingServer(disk, topics, kill_after)
        # A killed process does not report the tasks that were under way.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        try:
            server.reshard.start()
            for number, count in enumerate(counts):
                if number:
                    await server.run(calls)
                answer = await server.reshard.request(count)
                assert not isinstance(answer, Refusal), answer
                assert answer["target"] == count
                answered.append(count)
            await server.run()
        except MachineGoneError:
            return True
        finally:
            with contextlib.suppress(MachineGoneError):
                await server.reshard.close()
            server.process.release()
            server.close()
        return False

    return answered, asyncio.run(run())


def check(disk: MemoryDisk, topics: dict[str, int], count: int) -> None:
    fs = cast(Fs, disk)
    layout = read_layout(fs, DATA_DIR)
    assert layout is not None
    placement = read_placement(fs, DATA_DIR, layout.shards)
    assert (layout.shards, placement.shard_count, placement.target) == (count, count, 0)
    assert not layout.directories
    assert not placement.exceptions
    assert topics == {name: placement.owner_of(name) for name in TOPICS}


def outlives(disk: MemoryDisk, by_cut: Random | None) -> MemoryDisk:
    return disk.after_process_kill() if by_cut is None else disk.after_power_cut(by_cut)


@pytest.mark.parametrize("by_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize(
    ("before", "requests", "calls"),
    [
        (2, (5,), 0),
        (5, (2,), 0),
        *((2, (5, 2), calls) for calls in (10, 25, 40, 55)),
        *((2, (4, 3), calls) for calls in (10, 25, 40)),
        *((4, (2, 5), calls) for calls in (10, 25, 40)),
    ],
    ids=str,
)
def test_an_end_at_any_call_reaches_the_number_that_was_answered(
    before: int, requests: tuple[int, ...], calls: int, by_cut: bool
) -> None:
    seen: set[int] = set()
    for kill_after in range(0, 10_000, 1 if DEEP else 4):
        disk = new_disk(before)
        topics = dict.fromkeys(TOPICS, 0)
        answered, is_killed = serve(disk, topics, requests, calls, kill_after)
        if not is_killed:
            check(disk, topics, requests[-1])
            break
        disk = outlives(disk, Random(f"{kill_after}") if by_cut else None)
        # Killed once more while it continues.
        serve(disk, topics, (), kill_after=kill_after % 7)
        disk = outlives(disk, Random(f"{kill_after} again") if by_cut else None)
        _, is_killed = serve(disk, topics, ())
        assert not is_killed
        layout = read_layout(cast(Fs, disk), DATA_DIR)
        assert layout is not None
        check(disk, topics, layout.shards)
        # An answer holds; a request that was not answered may have been accepted.
        expected = {(before, *requests)[len(answered)], *requests[len(answered) : len(answered) + 1]}
        assert layout.shards in expected, (kill_after, answered)
        seen.add(layout.shards)
    else:
        raise AssertionError("the reshard does not end")
    assert kill_after > 20
    assert seen == {before, *requests}


def answers_of(disk: MemoryDisk, *counts: int) -> list[dict[str, object] | Refusal]:
    """Return the state after a start, and the answers to requests for these numbers of shards."""

    async def run() -> list[dict[str, object] | Refusal]:
        server = ReshardingServer(disk, dict.fromkeys(TOPICS, 0))
        try:
            return [server.reshard.answer(), *[await server.reshard.request(count) for count in counts]]
        finally:
            await server.reshard.close()
            server.close()

    return asyncio.run(run())


def test_a_target_above_the_bound_of_a_later_start_is_lowered_to_it() -> None:
    disk = new_disk(2)
    fs = cast(Fs, disk)
    write_placement(fs, DATA_DIR, read_placement(fs, DATA_DIR, 2).with_target(300))
    (state,) = answers_of(disk)
    assert not isinstance(state, Refusal)
    assert state["target"] == 256


def test_a_request_that_cannot_be_recorded_is_refused_and_changes_nothing() -> None:
    disk = new_disk(2)
    disk.fail("create", 1, errno.ENOSPC, forever=True)
    state, refusal = answers_of(disk, 5)
    assert not isinstance(state, Refusal)
    assert (state["target"], state["state"]) == (2, "steady")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "storage_failed"
    assert "PLACEMENT.json cannot be written" in refusal.message
    (state,) = answers_of(disk.after_process_kill())
    assert not isinstance(state, Refusal)
    assert (state["target"], state["count"], state["state"]) == (2, 2, "steady")
