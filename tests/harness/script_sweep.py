"""One script, on a new disk each time, that is ended at each of its calls to the disk.

What it must not know: what the script does, what ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from tests.harness.memory_disk import MemoryDisk
from tests.harness.one_shard import DATA_DIR, INSTANCE
from topicsd.disk.layout import create_data_dir


class Script(Protocol):
    @property
    def is_over(self) -> bool:
        """It came to its own end."""
        ...


Played = TypeVar("Played", bound=Script)


def sweep_script(
    play: Callable[[MemoryDisk], Played],
    arm: Callable[[MemoryDisk, int], None],
    judge: Callable[[Played, MemoryDisk], None],
) -> int:
    """How many calls it has; `arm` says what becomes of the disk after so many."""
    for calls in range(1000):
        disk = MemoryDisk()
        create_data_dir(disk, DATA_DIR, 1, INSTANCE)
        disk = disk.after_reboot()
        arm(disk, calls)
        script = play(disk)
        judge(script, disk)
        if script.is_over:
            return calls
    raise AssertionError("the script has no end")
