"""Append batches to the active WAL file, rotate to the next file, and prepare syncs.

Durability depends on the order of the steps:

W1  A process's first file is synced with its header, then its name (which an older file without a batch may
    have had), then a CURRENT that says `running`, before a batch is written to it. So a power cut cannot make
    the log look as if the previous process had ended cleanly.
W2  At a rotation the old file is synced, then the new file, then the directory, and only then does CURRENT
    move. BatchEnds of the new file record a synced offset only after all of these steps.
W3  A failed write counts as no write: the next batch is written at the same offset, and its chain makes the
    bytes of the failed batch unreadable.
W4  A file that existed when the process started is never appended to.
W5  CURRENT names the boot only after the losses of the previous process are logged. A matching boot id
    then lets the next start conclude that only the process died.
W6  Except at a start and at a clean end, no call that may wait for a sync runs on the event loop: the job of
    `make_spare` makes files, and syncs the first one. `write` raises `NoFile` when no file has room, and then
    nothing has changed.

Only the checkpoint drops WAL files.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import xxhash

from shared.runtime.clock import Clock
from topicsd.disk.atomic_replace import recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.log.batch_end import BATCH_END_BYTES, chain_of, pack_batch_end
from topicsd.log.current_file import Current, State, note_sync_failure, write_current
from topicsd.log.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader, encode_file_header
from topicsd.log.files import LogFile, LogFiles, LogPlace

logger = logging.getLogger("topicsd.log")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

# Larger batches are written in chunks of at most this size, except for single parts that are larger.
WRITE_CHUNK_BYTES = 1 << 20

_size_bytes = attrgetter("size_bytes")


class Identity(NamedTuple):
    """The data directory and the shard that a log belongs to; in every file's header."""

    instance: bytes
    shard: int


class LogEnd(NamedTuple):
    """The end of the log, and the values with which the next batch continues it."""

    position: int
    ordinal: int
    """Ordinal of the next frame."""
    chain: int


class NoFile(Exception):
    """The refusal of a batch for which no file has room; make the next file first."""


class Spare(NamedTuple):
    """A preallocated file: the next one, under a temporary name, or a process's first file."""

    fd: int
    path: str
    size_bytes: int
    file_epoch: bytes = b""
    """Epoch of a process's first file, which already has its header and its name; else empty."""


class Sync(NamedTuple):
    """The range that one sync covers; `run` is for the disk thread, the rest for the event loop."""

    run: Callable[[], None]
    position: int
    file: LogFile
    offset: int
    is_one_file: bool


class LogWriter:
    """The end of a shard's log, where batches are appended."""

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
        self._start_place = place
        self._may_record_boot_id = heads_exact
        self._file: LogFile | None = None
        self._offset = 0
        self._synced_offset = 0
        self._unsynced_files: list[LogFile] = []
        self._spares: list[Spare] = []
        """Spare files, smallest first."""
        self._spare_number = 0
        self.rotations = 0
        """Number of times that a file was followed by the next one."""

    @property
    def end(self) -> LogEnd:
        return self._end

    @property
    def place(self) -> LogPlace | None:
        """Log place of the end; None until the log has its first file."""
        if self._file is None:
            return self._start_place
        return LogPlace(self._file.first_ordinal, self._offset, self._end.ordinal, self._end.chain)

    @property
    def has_file(self) -> bool:
        """Whether this process has a file; False until its first batch."""
        return self._file is not None

    @property
    def room_bytes(self) -> int:
        """Bytes left in the active file; 0 without one."""
        return self._file.size_bytes - self._offset if self._file else 0

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    def record_boot_id(self) -> None:
        """Record the boot id in CURRENT: the losses of the previous process are logged (W5)."""
        if not self._may_record_boot_id:
            self._may_record_boot_id = True
            if self._file is not None:
                file = self._file
                write_current(self._fs, self._paths.current, self._current_of(file.fd, file.first_ordinal))

    def write(self, parts: list[bytes], frame_count: int, size_bytes: int = 0) -> None:
        """Append one batch to the log in one write; after an OSError nothing was written (W3).

        A batch larger than `WRITE_CHUNK_BYTES` is written in chunks: joining it would double the memory of
        the request. Only its BatchEnd makes it a batch.
        """
        if size_bytes > WRITE_CHUNK_BYTES:
            self._write_large(parts, frame_count, size_bytes)
            return
        frames = b"".join(parts)
        file = self._file
        size = len(frames) + BATCH_END_BYTES
        if file is None or self._offset + size > file.size_bytes:
            file = self._rotate(size)
        offset, end = self._offset, self._end
        chain = chain_of(frames, end.chain)
        ordinal = end.ordinal + frame_count
        closing = pack_batch_end(
            self._clock.now_ms(), file.file_epoch, ordinal, offset, len(frames), chain, self._synced_offset
        )
        write_all(self._fs, file.fd, frames + closing, offset)
        self._offset = offset + size
        self._end = LogEnd(end.position + size, ordinal + 1, chain)

    def _write_large(self, parts: list[bytes], frame_count: int, size_bytes: int) -> None:
        size = size_bytes + BATCH_END_BYTES
        file = self._file
        if file is None or self._offset + size > file.size_bytes:
            file = self._rotate(size)
        offset, end = self._offset, self._end
        digest = xxhash.xxh3_64(seed=end.chain)
        at = offset
        for chunk in _chunks_of(parts):
            digest.update(chunk)
            write_all(self._fs, file.fd, chunk, at)
            at += len(chunk)
        assert at == offset + size_bytes
        chain = digest.intdigest()
        ordinal = end.ordinal + frame_count
        closing = pack_batch_end(
            self._clock.now_ms(), file.file_epoch, ordinal, offset, size_bytes, chain, self._synced_offset
        )
        write_all(self._fs, file.fd, closing, at)
        self._offset = offset + size
        self._end = LogEnd(end.position + size, ordinal + 1, chain)

    def prepare_sync(self) -> Sync:
        """Return a job for the disk thread that syncs everything written so far."""
        file = self._file
        assert file is not None
        older_files = tuple(self._unsynced_files)
        fs, paths = self._fs, self._paths

        def run() -> None:
            try:
                for old in older_files:
                    fs.sync_data(old.fd)
                fs.sync_data(file.fd)
                if older_files:
                    fs.sync_dir(paths.wal)
                    self._move_current(file)
            except OSError:
                # Note it here, not on the event loop: a process that dies in between must not leave a CURRENT
                # from which the next start would trust the page cache.
                self.note_sync_failure()
                raise

        return Sync(run, self._end.position, file, self._offset, is_one_file=not older_files)

    def synced(self, sync: Sync) -> None:
        """Record that the job of `sync` succeeded."""
        if sync.file is not self._file:
            # The log rotated meanwhile, so the next sync covers this file again. Files before it are synced:
            # a checkpoint may drop them, and a closed descriptor must not be synced.
            del self._unsynced_files[: self._unsynced_files.index(sync.file)]
            return
        self._synced_offset = sync.offset
        self._unsynced_files.clear()

    def make_spare(self, batch_bytes: int = 0) -> Callable[[], Spare]:
        """Return a job for the disk thread that makes the next file, for `add_spare`.

        The file has room for a batch of `batch_bytes` of frames.
        """
        path = self._next_spare_path()
        size = max(self._file_bytes, FILE_HEADER_BYTES + batch_bytes + BATCH_END_BYTES)
        if self._has_batch:
            return lambda: self._make_file(path, size)
        replaces = self._file is not None
        if replaces:
            # This file was made for the first batch, which has outgrown it. The new file takes its name.
            self._files.drop_last()
            self._file = None
        return lambda: self._make_first_file(path, size, replaces)

    def add_spare(self, spare: Spare) -> None:
        if not spare.file_epoch:
            self._spares.append(spare)
            self._spares.sort(key=_size_bytes)
            return
        end = self._end
        self._file = self._files.add(spare.fd, end.ordinal, end.position, spare.file_epoch, spare.size_bytes)
        self._offset = self._synced_offset = FILE_HEADER_BYTES

    @property
    def has_spare(self) -> bool:
        return bool(self._spares)

    @property
    def needs_spare(self) -> bool:
        """Whether half of the active file is used and no next file is made."""
        return not self._spares and self.room_bytes * 2 < self._file_bytes

    def note_sync_failure(self) -> None:
        try:
            note_sync_failure(self._fs, self._paths.current)
        except OSError as error:
            logger.error("%s: sync failure not recorded: %s", self._paths.current, error)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk, for messages; 0 when they are unknown."""
        try:
            return self._fs.free_bytes(self._paths.wal)
        except OSError:
            return 0

    def write_clean_end(self) -> None:
        """Write a clean end to CURRENT and remove spare files; everything is synced."""
        for spare in self._spares:
            self._drop_spare(spare)
        self._spares.clear()
        if self._file is not None:
            file = self._file
            current = self._current_of(file.fd, file.first_ordinal, "clean", self._offset)
            write_current(self._fs, self._paths.current, current)

    @property
    def _has_batch(self) -> bool:
        """Whether this process has written a batch."""
        return self._file is not None and (self.rotations > 0 or self._offset > FILE_HEADER_BYTES)

    def _rotate(self, batch_bytes: int) -> LogFile:
        """Continue the log in the smallest spare file with room for the batch."""
        file = self._file
        size = FILE_HEADER_BYTES + batch_bytes
        spare = next((spare for spare in self._spares if spare.size_bytes >= size), None)
        if file is None or spare is None:
            raise NoFile
        self._spares.remove(spare)
        end = self._end
        epoch, header = self._new_header(spare.size_bytes)
        try:
            write_all(self._fs, spare.fd, header, 0)
            self._fs.rename(spare.path, self._paths.wal_file(end.ordinal))
        except OSError:
            self._drop_spare(spare)
            raise
        self._unsynced_files.append(file)
        self.rotations += 1
        self._file = self._files.add(spare.fd, end.ordinal, end.position, epoch, spare.size_bytes)
        self._offset = len(header)
        self._synced_offset = 0
        return self._file

    def _new_header(self, size: int) -> tuple[bytes, bytes]:
        """Return a new epoch, and the header for a file that begins at the end of the log."""
        epoch = os.urandom(EPOCH_BYTES)
        header = FileHeader(
            shard=self._identity.shard,
            instance=self._identity.instance,
            epoch=epoch,
            first_ordinal=self._end.ordinal,
            chain_seed=self._end.chain,
            file_bytes=size,
            ts=self._clock.now_ms(),
        )
        return epoch, encode_file_header(header)

    def _make_file(self, path: str, size: int) -> Spare:
        fd = recreate_file(self._fs, path)
        try:
            self._fs.allocate(fd, size)
        except OSError:
            self._fs.close(fd)
            self._fs.unlink(path)
            raise
        return Spare(fd, path, size)

    def _make_first_file(self, path: str, size: int, replaces: bool) -> Spare:
        """Make a process's first file, on the disk thread (W1)."""
        fs = self._fs
        spare = self._make_file(path, size)
        name = self._paths.wal_file(self._end.ordinal)
        epoch, header = self._new_header(size)
        try:
            write_all(fs, spare.fd, header, 0)
            fs.sync_data(spare.fd)
            if replaces and self._may_record_boot_id:
                # CURRENT names the replaced file: after a kill the log would look like a copied directory.
                # This process has written no batch yet: the log still ends where the start left it.
                clean_end = self._current_of(spare.fd, self._end.ordinal, "clean", FILE_HEADER_BYTES)
                write_current(fs, self._paths.current, clean_end)
            fs.rename(path, name)
        except OSError:
            self._drop_spare(spare)
            raise
        try:
            fs.sync_dir(self._paths.wal)
            write_current(fs, self._paths.current, self._current_of(spare.fd, self._end.ordinal))
        except OSError:
            fs.close(spare.fd)
            raise
        return Spare(spare.fd, name, size, epoch)

    def _drop_spare(self, spare: Spare) -> None:
        self._fs.close(spare.fd)
        self._fs.unlink(spare.path)

    def _move_current(self, file: LogFile) -> None:
        """Write the active file to CURRENT, on the disk thread; tolerate a full disk.

        On a full disk CURRENT keeps naming an older file of this process, and the next rotation moves it.
        """
        try:
            write_current(self._fs, self._paths.current, self._current_of(file.fd, file.first_ordinal))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _current_of(self, fd: int, first_ordinal: int, state: State = "running", end: int = 0) -> Current:
        file_stat = self._fs.fstat(fd)
        return Current(
            state=state,
            file=first_ordinal,
            end=end,
            boot_id=self._fs.boot_id() if self._may_record_boot_id else "",
            device=file_stat.device,
            wal_inode=file_stat.inode,
        )

    def _next_spare_path(self) -> str:
        self._spare_number += 1
        return self._paths.spare_file(self._spare_number)


def _chunks_of(parts: list[bytes]) -> Iterator[bytes]:
    """Join small parts, and yield a large one unchanged."""
    small_parts: list[bytes] = []
    size = 0
    for part in parts:
        if small_parts and size + len(part) > WRITE_CHUNK_BYTES:
            yield small_parts[0] if len(small_parts) == 1 else b"".join(small_parts)
            small_parts, size = [], 0
        small_parts.append(part)
        size += len(part)
    if small_parts:
        yield small_parts[0] if len(small_parts) == 1 else b"".join(small_parts)
