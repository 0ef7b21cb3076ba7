"""One process of a shard under the control of a test, with a fake clock, loop and threads.

Promises: nothing happens until the test asks for it. The disk is any `Fs`; a process that ended starts again
by `start` on the disk that it left, with the same clock.
"""

from __future__ import annotations

from typing import Any

from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, create_data_dir, shard_paths
from topicsd.engine.shard import Shard
from topicsd.log.writer import Identity

DATA_DIR = "/data"
INSTANCE = b"one-shard-------"
PATHS = shard_paths(DATA_DIR, 0)
IDENTITY = Identity(INSTANCE, 0)


def empty_disk(**options: Any) -> MemoryDisk:
    """Return a disk with a data directory of one shard, all of it on the media."""
    disk = MemoryDisk(**options)
    create_data_dir(disk, DATA_DIR, 1, INSTANCE)
    return disk.after_reboot()


class ShardDriver:
    def __init__(
        self,
        clock: ManualClock,
        settings: Settings,
        paths: ShardPaths = PATHS,
        identity: Identity = IDENTITY,
    ) -> None:
        """Start nothing yet: `start` does."""
        self.clock = clock
        self.settings = settings
        self.paths = paths
        self.identity = identity
        self.failures: list[OSError] = []
        """The failures of the log, in any process."""

    def start(self, fs: Fs) -> None:
        """Open the shard on this disk, as another process would."""
        self.loop = ManualLoop(self.clock)
        self.thread = StepThread(self.loop)
        self.copy_thread = StepThread(self.loop)
        self.shard = Shard(
            fs,
            self.clock,
            self.loop,
            Threads(self.thread, *[self.copy_thread] * 4),
            self.paths,
            self.identity,
            self.settings,
            self.failures.append,
        )

    def settle(self) -> None:
        """Run until every request is answered; no time passes."""
        self.loop.run_until_idle()
        self.run_threads(self.thread, self.copy_thread)

    def run_threads(self, *threads: StepThread) -> None:
        """Run all jobs of these threads, one of each thread between two runs of the loop."""
        while sum(thread.run_one() for thread in threads):
            self.loop.run_until_idle()

    def close(self, checkpoint: bool = True) -> None:
        self.shard.close(checkpoint)
