"""One open shard on the real disk under the control of a test; otherwise like `OneShard`.

Promises: the directory is as a server leaves it, file for file, with times of the manual clock. `kill`
releases it as a SIGKILL would, without a note in CURRENT.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.harness.manual_clock import ManualClock
from tests.harness.manual_loop import ManualLoop, StepThread
from tests.harness.one_shard import INSTANCE, OneShard
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import LAYOUT_NAME, create_data_dir, shard_paths
from topicsd.engine.shard import Shard
from topicsd.log.writer import Identity

SMALL = {"wal_file_bytes": 1 << 16}


class RealShard(OneShard):
    def __init__(
        self,
        data_dir: Path,
        *,
        shard: int = 0,
        shards: int = 1,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.settings = Settings(**{**SMALL, **settings})
        self.failures: list[OSError] = []
        self.fs = RealFs()
        if not os.path.exists(data_dir / LAYOUT_NAME):
            create_data_dir(self.fs, str(data_dir), shards, INSTANCE)
        self.paths = shard_paths(str(data_dir), shard)
        self.identity = Identity(INSTANCE, shard)
        self.reopen()

    def reopen(self) -> None:
        """Start on the existing directory, as another process would."""
        self.loop = ManualLoop(self.clock)
        self.thread = StepThread(self.loop)
        self.copy_thread = StepThread(self.loop)
        self.shard = Shard(
            self.fs,
            self.clock,
            self.loop,
            Threads(self.thread, *[self.copy_thread] * 4),
            self.paths,
            self.identity,
            self.settings,
            self.failures.append,
        )

    def restart(self) -> None:
        self.shard.close()
        self.reopen()

    def stop_dead(self) -> None:
        """End as by SIGKILL: write nothing more and free the lock."""
        self.shard._files.close()
        self.shard._lock.release()

    def kill(self) -> None:
        self.stop_dead()
        self.reopen()

    def wal_files(self) -> list[str]:
        names = sorted(os.listdir(self.paths.wal))
        return [os.path.join(self.paths.wal, name) for name in names if name.startswith("wal-")]
