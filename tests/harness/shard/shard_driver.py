"""One process of a shard under the control of a test, with a fake clock, loop and threads.

Promises: nothing happens until the test asks for it. The disk is any `Fs`; a process that ended starts again
by `start` on the disk that it left, with the same clock.
"""

from __future__ import annotations

from typing import Any

from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from shared.settings.store_url import store_folder, store_url_of
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, create_data_dir, make_dirs, shard_paths
from topicsd.engine.ownership.catalog_work import Node
from topicsd.engine.shard import Shard
from topicsd.log.writer import Identity
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import ObjectStore

DATA_DIR = "/data"
INSTANCE = b"one-shard-------"
PATHS = shard_paths(DATA_DIR, 0)
IDENTITY = Identity(INSTANCE, 0)


COLD_DIR = "/cold"
"""The folder of a store that the disks of tests have."""


def make_store_folder(fs: Fs, settings: Settings) -> None:
    """Make the folder of the store of these settings, as an operator does before the first start."""
    folder = store_folder(store_url_of(settings))
    if folder:
        make_dirs(fs, folder)


def empty_disk(**options: Any) -> MemoryDisk:
    """Return a disk with a data directory of one shard and the folder of a store, all of it on the media."""
    disk = MemoryDisk(**options)
    create_data_dir(disk, DATA_DIR, 1, INSTANCE)
    make_dirs(disk, COLD_DIR)
    return disk.after_reboot()


class ShardDriver:
    def __init__(
        self,
        clock: ManualClock,
        settings: Settings,
        paths: ShardPaths = PATHS,
        identity: Identity = IDENTITY,
        node: Node | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        """Start nothing yet: `start` does."""
        self.clock = clock
        self.settings = settings
        self.paths = paths
        self.identity = identity
        self.node = node
        self.store = store
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
            Threads(self.thread, *[self.copy_thread] * (len(Threads._fields) - 1)),
            self.paths,
            self.identity,
            self.settings,
            self.failures.append,
            node=self.node,
            store=None if self.store is None else MeteredStore(self.store),
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
