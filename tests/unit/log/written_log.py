"""A log writer on a disk in memory, and what a walk over its files finds."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import IDENTITY, PATHS
from tests.harness.shard.wal_bytes import append_frame
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.current_file import Current, read_current
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles
from topicsd.log.reader import WalBatch
from topicsd.log.walk import Walk, open_wal_files, walk_log
from topicsd.log.writer import LogEnd, LogWriter, NoFile

FILE_BYTES = 2048
FRAME = append_frame(1, b"x" * 100)
BATCH = len(FRAME) + BATCH_END_BYTES
A_FILE = (FILE_BYTES - FILE_HEADER_BYTES) // BATCH


class Written:
    """A writer on a disk in memory, and what a walk over its files finds."""

    def __init__(self, *, space_bytes: int | None = None, heads_exact: bool = True) -> None:
        self.disk = MemoryDisk(traced=True, space_bytes=space_bytes)
        self.disk.make_dirs(PATHS.wal)
        self.files = LogFiles(self.disk)
        self.writer = LogWriter(
            self.disk, ManualClock(), PATHS, IDENTITY, self.files, LogEnd(0, 1, 0), FILE_BYTES, heads_exact
        )

    def write(self, count: int = 1, frame: bytes = FRAME) -> None:
        for _ in range(count):
            self.write_batch([frame])

    def write_batch(self, parts: list[bytes]) -> None:
        """Write one batch, after making the file that it needs."""
        try:
            self.writer.write(parts, len(parts))
        except NoFile:
            self.writer.add_spare(self.writer.make_spare(sum(map(len, parts)))())
            self.writer.write(parts, len(parts))

    def sync(self) -> None:
        sync = self.writer.prepare_sync()
        sync.run()
        self.writer.synced(sync)

    def walk(self) -> tuple[Walk, list[int]]:
        """The verdict, and how many bytes of frames each batch has."""
        sizes: list[int] = []
        walk = self._walked(lambda batch: sizes.append(batch.end - batch.start))
        return walk, sizes

    def synced_offsets(self) -> list[int]:
        """What each BatchEnd says was synced."""
        offsets: list[int] = []
        self._walked(lambda batch: offsets.append(batch.closing.synced))
        return offsets

    def _walked(self, on_batch: Callable[[WalBatch], None]) -> Walk:
        files = open_wal_files(self.disk, PATHS)
        walk = walk_log(self.disk, files, self.current, lambda batch, position: on_batch(batch))
        for file in files:
            self.disk.close(file.fd)
        return walk

    @property
    def current(self) -> Current | None:
        return read_current(self.disk, PATHS.current)

    def names(self) -> list[str]:
        return self.disk.list_dir(PATHS.wal)

    def calls(self) -> list[str]:
        assert self.disk.trace is not None
        return [f"{name} {arguments.replace(PATHS.wal + '/', '')}" for name, arguments in self.disk.trace]
