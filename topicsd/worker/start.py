"""The start of a worker's shard: wait for its lock, replay its log, and report progress.

N1  A replay blocks the loop for as long as the log is long. So the log reader calls back every MiB, and
    the worker then updates its heartbeat, reports its progress, and checks for a shutdown request. The
    supervisor does not kill a worker that waits for the disk without a heartbeat: the kernel says that it
    waits.
N2  A worker of the previous generation may still drain and hold the lock. The wait for it has no timeout:
    a start that gave up would leave a shard refused for ever only because the start was too early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shared.ipc.board import Slot, WorkerState
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import start_threads
from shared.runtime.log_setup import fields
from topicsd.catalog.node_lock import lock_node, node_lock_path
from topicsd.disk.access import os_error_sentence
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import make_dirs, make_shard_dirs, shard_paths, shards_path
from topicsd.disk.memory_fs import MemoryFs
from topicsd.engine.shard import Shard
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog
from topicsd.log.writer import Identity
from topicsd.store.object_store import StoreRefused
from topicsd.worker.catalog_node import catalog_node
from topicsd.worker.spec import Spec

logger = logging.getLogger("topicsd.worker")

LOCK_RETRY_SECONDS = 0.1


class StartEnded(Exception):
    """A start that ended because a shutdown was requested."""


class StartRefused(Exception):
    """A start that fails because of the disk or the settings, and would fail again, with the reason.

    `advice` is what the operator can do, for the log.
    """

    def __init__(self, error: Exception, data_dir: str, advice: str = "") -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PermissionError):
            cause = cause.__cause__
        is_denied = isinstance(cause, PermissionError)
        super().__init__(os_error_sentence(error) if isinstance(error, OSError) else str(error))
        if advice:
            self.advice = advice
        elif isinstance(error, StoreRefused):
            self.advice = "correct TOPICS_STORE_URL or the environment of the store"
        else:
            self.advice = "correct owner and mode" if is_denied else f"run `topicsd doctor {data_dir}`"
        self.advice += ", then restart the server"


class ShardStart:
    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        slot: Slot,
        beat: Callable[[], None],
        is_shutdown_requested: Callable[[], bool],
        owns_id: Callable[[int], bool] = lambda topic_id: True,
    ) -> None:
        """Prepare a start; `owns_id` returns whether the placement has the topic of an id here."""
        self._spec = spec
        self._owns_id = owns_id
        self._clock = clock
        self._slot = slot
        self._beat = beat
        self._is_shutdown_requested = is_shutdown_requested
        self._node_lock: DirLock | None = None
        """Held until the process ends."""

    async def open(self, on_failure: Callable[[OSError], None]) -> Shard:
        """Open the shard. Raises `StartEnded` and `StartRefused`."""
        loop = asyncio.get_running_loop()
        spec = self._spec
        threads = start_threads(loop, spec.shard, self._beat)
        identity = Identity(bytes.fromhex(spec.instance), spec.shard)
        paths = shard_paths(spec.data_dir, spec.shard)
        fs: Fs = memory_disk(spec) if spec.settings.memory else RealFs()
        lock_path = paths.lock
        try:
            while True:
                try:
                    if self._node_lock is None:
                        lock_path = self._node_lock_path()
                        self._node_lock = lock_node(fs, lock_path)
                    lock_path = paths.lock
                    return Shard(
                        fs,
                        self._clock,
                        loop,
                        threads,
                        paths,
                        identity,
                        spec.settings,
                        on_failure,
                        self.progress,
                        node=catalog_node(spec, self._clock, self._owns_id),
                    )
                except DirectoryInUse:
                    self._report_wait(fs.lock_owner(lock_path))
                await asyncio.sleep(LOCK_RETRY_SECONDS)
                self._check_shutdown()
        except (RecoveryRefused, UnreadableLog, PermissionError, StoreRefused) as error:
            raise StartRefused(error, spec.data_dir) from error

    def _node_lock_path(self) -> str:
        spec, settings = self._spec, self._spec.settings
        if settings.memory:
            return ""
        return node_lock_path(
            settings.catalog_url, settings.store_url, spec.data_dir, spec.instance, spec.shard
        )

    def progress(self, done: int, total: int) -> None:
        """Report replay progress. Called while the log is read (N1)."""
        slot = self._slot
        if slot.state is not WorkerState.REPLAYING:
            slot.reason = ""
            slot.state = WorkerState.REPLAYING
        slot.replay_done, slot.replay_total = done, total
        self._beat()
        self._check_shutdown()

    def _report_wait(self, owner: int | None) -> None:
        process = "another process" if owner is None else f"process {owner}"
        reason = f"waits for the shard lock, which {process} holds"
        if self._slot.reason != reason:
            logger.info(
                "shard: start delayed: %s holds its lock", process, extra=fields(shard=self._spec.shard)
            )
            self._slot.reason = reason

    def _check_shutdown(self) -> None:
        """Raise `StartEnded` if a shutdown was requested."""
        if self._is_shutdown_requested():
            raise StartEnded


def memory_disk(spec: Spec) -> Fs:
    """Create a file system in memory, with the directories of an empty shard."""
    fs = MemoryFs()
    make_dirs(fs, shards_path(spec.data_dir))
    make_shard_dirs(fs, shard_paths(spec.data_dir, spec.shard))
    return fs
