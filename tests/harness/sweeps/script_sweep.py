"""A sweep that runs one script on a new disk each time and ends it at each of its disk calls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol, TypeVar

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import DATA_DIR, INSTANCE
from topicsd.disk.layout import create_data_dir


class Script(Protocol):
    @property
    def is_over(self) -> bool:
        """Whether the script ran to its own end."""
        ...


class JudgedScript(Script, Protocol):
    def judge(self, disk: MemoryDisk, *, is_kept: bool) -> None:
        """Judge the disk. `is_kept`: no acknowledged data may be missing."""
        ...


Played = TypeVar("Played", bound=Script)
Judged = TypeVar("Judged", bound=JudgedScript)


def sweep_script(
    play: Callable[[MemoryDisk], Played],
    arm: Callable[[MemoryDisk, int], None],
    judge: Callable[[Played, MemoryDisk], None],
) -> int:
    """End the script at each call through `arm`; return the number of its calls."""
    for calls in range(1000):
        disk = MemoryDisk()
        create_data_dir(disk, DATA_DIR, 1, INSTANCE)
        disk = disk.after_reboot()
        arm(disk, calls)
        script = play(disk)
        judge(script, disk)
        if script.is_over:
            return calls
    raise AssertionError("the script does not end")


def sweep_power_cuts(play: Callable[[MemoryDisk], Judged], seeds: int, *, is_kept: bool) -> int:
    """Cut the power in each call; unsynced data has `seeds` outcomes each time."""

    def judge(script: Judged, disk: MemoryDisk) -> None:
        for seed in range(seeds):
            script.judge(disk.after_power_cut(Random(seed)), is_kept=is_kept)

    return sweep_script(play, lambda disk, calls: disk.cut_power_after(calls), judge)


def sweep_kills(play: Callable[[MemoryDisk], Judged], *, torn: bool) -> int:
    """Kill the process in each call, which may be half done."""

    def judge(script: Judged, disk: MemoryDisk) -> None:
        script.judge(disk.after_process_kill(), is_kept=True)

    return sweep_script(play, lambda disk, calls: disk.kill_process_after(calls, torn=torn), judge)
