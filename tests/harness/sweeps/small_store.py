"""Small stores with their books, for tests that damage bytes or bound the reads of a start.

Promises: a store has topics of class disk and fsync, a delete, a key, tags, and a deleted topic. It ended by
a clean stop, by SIGKILL after the log had noted that everything is synced, or the same with several WAL
files. All data is in the log: no checkpoint was completed.
"""

from __future__ import annotations

from typing import Any

from shared.settings.settings import Settings
from tests.harness.books.shard_book import ShardBook
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS, empty_disk
from tests.harness.shard.shard_run import SMALL_FILES, ShardRun

ENDS = ("clean stop", "kill after an idle mark", "kill with several files")


class SmallStore:
    def __init__(self, end: str) -> None:
        assert end in ENDS
        self.disk = empty_disk()
        self.book = ShardBook()
        self.clock = ManualClock()
        has_several = end == "kill with several files"
        settings = Settings(wal_file_bytes=1200) if has_several else SMALL_FILES
        run = ShardRun(self.disk, self.book, self.clock, manner="prompt/by hand", settings=settings)
        _write(run, 400 if has_several else 8)
        if end == "clean stop":
            run.close(checkpoint=False)
        run.end_answered()
        self.book.ledger.new_generation(machine_failed=False)
        self.disk = self.disk.after_process_kill()
        self.shown = self._shown()

    def _shown(self) -> dict[str, Any]:
        run = ShardRun(self.disk.after_process_kill(), self.book.copied(), self.clock)
        run.check(exact=True)
        return run.all_contents()

    @property
    def wal_files(self) -> list[str]:
        return [path for path in self.disk.all_files() if path.startswith(f"{PATHS.wal}/wal-")]

    def data_end(self, path: str) -> int:
        """Return the offset after the last byte that is not zero."""
        return len(self.disk.read_file(path).rstrip(b"\0"))


def _write(run: ShardRun, filler: int) -> None:
    run.append("f", 10, 20, tags=("a", "b"), durability="fsync")
    run.append("d", 15, key="k")
    run.append("gone", 5)
    run.turn()
    run.append("f", filler, 12)
    run.append("d", filler, 9)
    run.turn()
    run.delete("f", tag="a")
    run.drop("gone")
    run.turn()
    run.append("d", 11, filler)
    run.append("f", 13, filler)
    run.turn()
    # The log notes that everything is synced, the ceilings are lowered, and that is noted too.
    for _ in range(3):
        run.advance(1200)


class BoundedReads:
    """An `Fs` that records the size of the largest requested read."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.largest = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.largest = max(self.largest, size)
        return self._disk.pread(fd, size, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)
