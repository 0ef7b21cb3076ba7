"""A group commit over a real writer on a disk in memory, with entries that only note what happens to them."""

from __future__ import annotations

from collections.abc import Callable

from shared.contract.errors import Refusal
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import IDENTITY, PATHS
from tests.harness.shard.wal_bytes import append_frame
from topicsd.log.batch import Bounds
from topicsd.log.files import LogFiles
from topicsd.log.group_commit import GroupCommit
from topicsd.log.walk import open_wal_files, walk_log
from topicsd.log.writer import LogEnd, LogWriter

FRAME = append_frame(1, b"x" * 100)
BOUNDS = Bounds(sync_interval_seconds=0.05, unsynced_bytes_max=100_000, waiting_entries_max=1000)


class Note:
    """An entry that writes to the bench's diary."""

    def __init__(self, name: str, diary: list[str], answer: Callable[[], None] | None = None) -> None:
        self.name = name
        self.diary = diary
        self.answer = answer
        self.refusal: Refusal | None = None

    def publish(self) -> None:
        self.diary.append(f"publish {self.name}")
        if self.answer is not None:
            self.answer()

    def undo(self) -> None:
        self.diary.append(f"undo {self.name}")

    def refuse(self, refusal: Refusal) -> None:
        assert self.refusal is None, f"{self.name} was refused twice"
        self.refusal = refusal
        self.diary.append(f"refuse {self.name}")


class CommitBench:
    def __init__(
        self,
        *,
        bounds: Bounds = BOUNDS,
        file_bytes: int = 1 << 20,
        space_bytes: int | None = None,
        thread_type: type[StepThread] = StepThread,
        has_file: bool = True,
        on_tick: Callable[[], bool] = lambda: False,
    ) -> None:
        """A log with its first file, or without one."""
        self.disk = MemoryDisk(traced=True, space_bytes=space_bytes)
        self.disk.make_dirs(PATHS.wal)
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.thread = thread_type(self.loop)
        self.failures: list[OSError] = []
        self.diary: list[str] = []
        writer = LogWriter(
            self.disk, self.clock, PATHS, IDENTITY, LogFiles(self.disk), LogEnd(0, 1, 0), file_bytes
        )
        if has_file:
            writer.add_spare(writer.make_spare()())
        on_failure = self.failures.append
        self.log = GroupCommit(self.clock, self.loop, self.thread, writer, bounds, on_failure, on_tick)

    def note(self, name: str, answer: Callable[[], None] | None = None) -> Note:
        return Note(name, self.diary, answer)

    def join(
        self,
        name: str,
        *,
        sync: bool,
        frame: bytes = FRAME,
        answer: Callable[[], None] | None = None,
    ) -> Note:
        entry = self.note(name, answer)
        self.log.join([frame], len(frame), 1, entry, wait_for_sync=sync)
        return entry

    def turn(self) -> None:
        """A turn of the loop; the thread stands still."""
        self.loop.run_until_idle()

    def sync(self) -> None:
        """One job of the thread, and its outcome."""
        assert self.thread.run_one(), "there is no job"
        self.loop.run_until_idle()

    def settle(self) -> None:
        self.turn()
        while self.thread.run_one():
            self.turn()

    def pass_time(self, ms: float) -> None:
        """In which the thread does what it is given."""
        end = self.clock.monotonic_ns() + round(ms * 1e6)
        self.settle()
        while (due := self.loop.next_timer_ns()) is not None and due <= end:
            self.loop.advance((due - self.clock.monotonic_ns()) / 1e6)
            self.settle()
        self.clock.advance_ns(end - self.clock.monotonic_ns())

    def batches(self) -> list[int]:
        """How many frames each batch in the log has."""
        sizes: list[int] = []
        files = open_wal_files(self.disk, PATHS)
        walk_log(self.disk, files, None, lambda batch, position: sizes.append(batch.frame_count))
        for file in files:
            self.disk.close(file.fd)
        return sizes

    def syncs(self) -> int:
        assert self.disk.trace is not None
        return sum(name == "sync_data" and "CURRENT" not in arguments for name, arguments in self.disk.trace)
