"""Where the next batch goes: the running WAL file, its successor, and what a sync has to cover.

The order is the promise:

W1  A run's first file is synced with its header, then its name (which an older one without a batch may have
    had), then a CURRENT that says `running`, before a batch is written to it. So a power cut cannot make the
    log look as if the run before had ended cleanly.
W2  At a rotation the old file is synced, then the new one, then the name, and only then does CURRENT
    move. A BatchEnd says that its file is synced from here on only when all of that was done.
W3  After a write that failed nothing was written: the next batch goes to the same offset, and its
    chain makes what the failed one left unreadable.
W4  A file that was there when the run began is never appended to.
W5  CURRENT names the boot, from which the next start may conclude that only the process died, not before what
    the run before may have lost is in the log (`vouch`).

WAL files leave the directory in one way only: the checkpointer drops them.

Must not know: requests, topics, when to sync.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from shared.clock import Clock
from topicsd.disk.atomic_replace import create_afresh, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.wal.batch_end import BATCH_END_BYTES, BatchEnd, chain_of, encode_batch_end
from topicsd.wal.current_file import Current, note_sync_failure, write_current
from topicsd.wal.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader, encode_file_header
from topicsd.wal.log_files import LogFile, LogFiles
from topicsd.wal.log_place import LogPlace

logger = logging.getLogger("topicsd.wal")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Identity(NamedTuple):
    """Whose log it is; in every file's header."""

    instance: bytes
    shard: int


class LogEnd(NamedTuple):
    """Where the log ends and how it goes on."""

    position: int
    ordinal: int
    """Of the next frame."""
    chain: int


class Spare(NamedTuple):
    """A file with its room, made ahead of time under a name that is no WAL file's."""

    fd: int
    path: str
    size_bytes: int


class Sync(NamedTuple):
    """What one sync is to cover; `run` is for the disk thread, the rest for the loop."""

    run: Callable[[], None]
    position: int
    file: LogFile
    offset: int
    is_one_file: bool


class LogWriter:
    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        paths: ShardPaths,
        identity: Identity,
        files: LogFiles,
        end: LogEnd,
        file_bytes: int,
        heads_exact: bool = True,
        place: LogPlace | None = None,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._paths = paths
        self._identity = identity
        self._files = files
        self._file_bytes = file_bytes
        self._end = end
        self._found_place = place
        self._vouches = heads_exact
        self._file: LogFile | None = None
        self._offset = 0
        self._synced_offset = 0
        self._unsynced_files: list[LogFile] = []
        self._spare: Spare | None = None
        self._spare_number = 0
        self.rotations = 0
        """How often a file was followed by the next one."""

    @property
    def end(self) -> LogEnd:
        return self._end

    @property
    def place(self) -> LogPlace | None:
        """Where the log ends, in a file; None as long as there was never a batch."""
        if self._file is None:
            return self._found_place
        return LogPlace(self._file.first_ordinal, self._offset, self._end.ordinal, self._end.chain)

    @property
    def has_file(self) -> bool:
        """False until the run's first batch."""
        return self._file is not None

    @property
    def room_bytes(self) -> int:
        """What the running file can still take; 0 before there is one."""
        return self._file.size_bytes - self._offset if self._file else 0

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    def vouch(self) -> None:
        """From here on the log says all that is known about the heads."""
        if not self._vouches:
            self._vouches = True
            if self._file is not None:
                write_current(self._fs, self._paths.current, self._current(self._file, "running", 0))

    def write(self, parts: list[bytes], frame_count: int) -> None:
        """Put one batch behind the log, in one write. OSError: nothing was written (W3)."""
        frames = b"".join(parts)
        file = self._file
        size = len(frames) + BATCH_END_BYTES
        if file is None or self._offset + size > file.size_bytes:
            file = self._next_file(size)
        offset, end = self._offset, self._end
        chain = chain_of(frames, end.chain)
        closing = BatchEnd(
            file.epoch, end.ordinal + frame_count, offset, len(frames), chain, self._synced_offset
        )
        write_all(self._fs, file.fd, frames + encode_batch_end(closing, self._clock.now_ms()), offset)
        self._offset = offset + size
        self._end = LogEnd(end.position + size, closing.ordinal + 1, chain)

    def prepare_sync(self) -> Sync:
        """What it takes to have all that is written on the disk, as a job for the thread."""
        file = self._file
        assert file is not None
        behind = tuple(self._unsynced_files)
        fs, paths = self._fs, self._paths

        def run() -> None:
            try:
                for old in behind:
                    fs.sync_data(old.fd)
                fs.sync_data(file.fd)
                if behind:
                    fs.sync_dir(paths.wal)
                    self._move_current(file)
            except OSError:
                # Here and not when the loop hears of it: a process that dies in between must not leave a
                # CURRENT from which the next one would take the page cache for the truth.
                self.note_sync_failure()
                raise

        return Sync(run, self._end.position, file, self._offset, is_one_file=not behind)

    def synced(self, sync: Sync) -> None:
        """The job of `sync` went well."""
        if sync.file is not self._file:
            # The file was closed meanwhile; it is in the list for the next sync. Those in front of it are
            # done with: a checkpoint may drop them, and a descriptor that is closed must not be synced.
            del self._unsynced_files[: self._unsynced_files.index(sync.file)]
            return
        self._synced_offset = sync.offset
        self._unsynced_files.clear()

    def make_spare(self) -> Callable[[], Spare]:
        """A job that makes the next file ahead of need; what it gives is for `take_spare`."""
        path, size = self._next_spare_path(), self._file_bytes
        return lambda: self._make_file(path, size)

    def take_spare(self, spare: Spare) -> None:
        assert self._spare is None
        self._spare = spare

    @property
    def has_spare(self) -> bool:
        return self._spare is not None

    @property
    def wants_spare(self) -> bool:
        """Half of the running file is used and there is no next one."""
        return self._spare is None and self.room_bytes * 2 < self._file_bytes

    def note_sync_failure(self) -> None:
        try:
            note_sync_failure(self._fs, self._paths.current)
        except OSError as error:
            logger.error("the failure could not be noted in %s: %s", self._paths.current, error)

    def free_bytes(self) -> int:
        """For whoever is told that there is no room; 0 when the disk does not say."""
        try:
            return self._fs.free_bytes(self._paths.wal)
        except OSError:
            return 0

    def end_cleanly(self) -> None:
        """Everything is synced: say so in CURRENT, and leave no file that was only made ahead."""
        if self._spare is not None:
            self._drop_spare(self._spare)
            self._spare = None
        if self._file is not None:
            write_current(self._fs, self._paths.current, self._current(self._file, "clean", self._offset))

    def _next_file(self, batch_bytes: int) -> LogFile:
        """Open the file that takes a batch of this size and all that follow."""
        size = max(self._file_bytes, FILE_HEADER_BYTES + batch_bytes)
        spare = self._spare
        if spare is None or spare.size_bytes < size:
            spare = self._make_file(self._next_spare_path(), size)
        else:
            self._spare = None
        file, header_bytes = self._name_file(spare)
        if self._file is None:
            try:
                self._start_run(file)
            except OSError:
                self._files.drop_last()
                raise
        else:
            self._unsynced_files.append(self._file)
            self.rotations += 1
        self._file = file
        self._offset = header_bytes
        self._synced_offset = 0 if self._unsynced_files else header_bytes
        return file

    def _make_file(self, path: str, size: int) -> Spare:
        fd = create_afresh(self._fs, path)
        try:
            self._fs.allocate(fd, size)
        except OSError:
            self._fs.close(fd)
            self._fs.unlink(path)
            raise
        return Spare(fd, path, size)

    def _drop_spare(self, spare: Spare) -> None:
        self._fs.close(spare.fd)
        self._fs.unlink(spare.path)

    def _name_file(self, spare: Spare) -> tuple[LogFile, int]:
        """Give a prepared file its header and its place in the log."""
        end = self._end
        epoch = os.urandom(EPOCH_BYTES)
        header = encode_file_header(
            FileHeader(
                shard=self._identity.shard,
                instance=self._identity.instance,
                epoch=epoch,
                first_ordinal=end.ordinal,
                chain_seed=end.chain,
                file_bytes=spare.size_bytes,
                ts=self._clock.now_ms(),
            )
        )
        try:
            write_all(self._fs, spare.fd, header, 0)
            if self._file is None:
                self._fs.sync_data(spare.fd)
            self._fs.rename(spare.path, self._paths.wal_file(end.ordinal))
        except OSError:
            self._drop_spare(spare)
            raise
        return self._files.add(spare.fd, end.ordinal, end.position, epoch, spare.size_bytes), len(header)

    def _start_run(self, file: LogFile) -> None:
        """W1. It holds the loop for a few syncs, once in the life of a process."""
        self._fs.sync_dir(self._paths.wal)
        write_current(self._fs, self._paths.current, self._current(file, "running", 0))

    def _move_current(self, file: LogFile) -> None:
        """On the disk thread. No room for CURRENT is no loss: it goes on naming an older file of this run,
        and the next rotation moves it."""
        try:
            write_current(self._fs, self._paths.current, self._current(file, "running", 0))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _current(self, file: LogFile, state: str, end: int) -> Current:
        placed = self._fs.fstat(file.fd)
        return Current(
            state=state,  # type: ignore[arg-type]
            file=file.first_ordinal,
            end=end,
            boot_id=self._fs.boot_id() if self._vouches else "",
            device=placed.device,
            wal_inode=placed.inode,
        )

    def _next_spare_path(self) -> str:
        self._spare_number += 1
        return self._paths.spare_file(self._spare_number)
