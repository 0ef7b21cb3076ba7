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
W6  Except at a start and at a clean end, no call that may wait for a sync runs on the loop: the job of
    `make_spare` makes files, and syncs the run's first one. `write` raises `NoFile` without a file that has
    room, and then nothing has changed.

WAL files leave the directory in one way only: the checkpointer drops them.
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
from topicsd.disk.atomic_replace import create_afresh, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.log.batch_end import BATCH_END_BYTES, chain_of, pack_batch_end
from topicsd.log.current_file import Current, State, note_sync_failure, write_current
from topicsd.log.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader, encode_file_header
from topicsd.log.files import LogFile, LogFiles, LogPlace

logger = logging.getLogger("topicsd.log")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

# Batches from here on are written in pieces of at most this size, but for single parts that are larger.
PIECE_BYTES = 1 << 20

_size_bytes = attrgetter("size_bytes")


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


class NoFile(Exception):
    """No file has room for the batch; the next one has to be made first."""


class Spare(NamedTuple):
    """A preallocated file under a temporary name, or the first file of a run, ready for its first batch."""

    fd: int
    path: str
    size_bytes: int
    epoch: bytes = b""
    """Of the first file of a run, which has its header and its name already; else empty."""


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
        self._spares: list[Spare] = []
        """The smallest first."""
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
                file = self._file
                write_current(self._fs, self._paths.current, self._current_of(file.fd, file.first_ordinal))

    def write(self, parts: list[bytes], frame_count: int, size_bytes: int = 0) -> None:
        """Append one batch to the log, in one write. OSError: nothing was written (W3).

        A batch of more than `PIECE_BYTES` is not joined but written in pieces: a copy of it would double what
        the request takes. Only its end makes it a batch.
        """
        if size_bytes > PIECE_BYTES:
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
            self._clock.now_ms(), file.epoch, ordinal, offset, len(frames), chain, self._synced_offset
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
        for piece in _pieces_of(parts):
            digest.update(piece)
            write_all(self._fs, file.fd, piece, at)
            at += len(piece)
        assert at == offset + size_bytes
        chain = digest.intdigest()
        ordinal = end.ordinal + frame_count
        closing = pack_batch_end(
            self._clock.now_ms(), file.epoch, ordinal, offset, size_bytes, chain, self._synced_offset
        )
        write_all(self._fs, file.fd, closing, at)
        self._offset = offset + size
        self._end = LogEnd(end.position + size, ordinal + 1, chain)

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

    def make_spare(self, batch_bytes: int = 0) -> Callable[[], Spare]:
        """Return a job for the disk thread that makes the next file; its result is for `take_spare`.

        It has room for a batch with so many bytes of frames.
        """
        path = self._next_spare_path()
        size = max(self._file_bytes, FILE_HEADER_BYTES + batch_bytes + BATCH_END_BYTES)
        if self._has_batch:
            return lambda: self._make_file(path, size)
        replaces = self._file is not None
        if replaces:
            # Made for the first batch, and too small for what joined it since. The new one takes its name.
            self._files.drop_last()
            self._file = None
        return lambda: self._make_first_file(path, size, replaces)

    def take_spare(self, spare: Spare) -> None:
        if not spare.epoch:
            self._spares.append(spare)
            self._spares.sort(key=_size_bytes)
            return
        end = self._end
        self._file = self._files.add(spare.fd, end.ordinal, end.position, spare.epoch, spare.size_bytes)
        self._offset = self._synced_offset = FILE_HEADER_BYTES

    @property
    def has_spare(self) -> bool:
        return bool(self._spares)

    @property
    def wants_spare(self) -> bool:
        """Half of the running file is used and there is no next one."""
        return not self._spares and self.room_bytes * 2 < self._file_bytes

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
        for spare in self._spares:
            self._drop_spare(spare)
        self._spares.clear()
        if self._file is not None:
            file = self._file
            current = self._current_of(file.fd, file.first_ordinal, "clean", self._offset)
            write_current(self._fs, self._paths.current, current)

    @property
    def _has_batch(self) -> bool:
        """This run has written a batch."""
        return self._file is not None and (self.rotations > 0 or self._offset > FILE_HEADER_BYTES)

    def _rotate(self, batch_bytes: int) -> LogFile:
        """Go on with the smallest spare that takes a batch of this size and all that follow."""
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
        """A new epoch, and the header of a file of it that begins where the log ends."""
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
        fd = create_afresh(self._fs, path)
        try:
            self._fs.allocate(fd, size)
        except OSError:
            self._fs.close(fd)
            self._fs.unlink(path)
            raise
        return Spare(fd, path, size)

    def _make_first_file(self, path: str, size: int, replaces: bool) -> Spare:
        """On the disk thread (W1)."""
        fs = self._fs
        spare = self._make_file(path, size)
        name = self._paths.wal_file(self._end.ordinal)
        epoch, header = self._new_header(size)
        try:
            write_all(fs, spare.fd, header, 0)
            fs.sync_data(spare.fd)
            if replaces and self._vouches:
                # CURRENT names the file that is replaced: after a kill it would look as if the log had been
                # moved. This run has written nothing yet: the log ends as the start left it.
                ended = self._current_of(spare.fd, self._end.ordinal, "clean", FILE_HEADER_BYTES)
                write_current(fs, self._paths.current, ended)
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
        """On the disk thread. No room for CURRENT is no loss: it goes on naming an older file of this run,
        and the next rotation moves it."""
        try:
            write_current(self._fs, self._paths.current, self._current_of(file.fd, file.first_ordinal))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _current_of(self, fd: int, first_ordinal: int, state: State = "running", end: int = 0) -> Current:
        placed = self._fs.fstat(fd)
        return Current(
            state=state,
            file=first_ordinal,
            end=end,
            boot_id=self._fs.boot_id() if self._vouches else "",
            device=placed.device,
            wal_inode=placed.inode,
        )

    def _next_spare_path(self) -> str:
        self._spare_number += 1
        return self._paths.spare_file(self._spare_number)


def _pieces_of(parts: list[bytes]) -> Iterator[bytes]:
    """Join small parts, and pass a large one on as it is."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        if gathered and size + len(part) > PIECE_BYTES:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, size = [], 0
        gathered.append(part)
        size += len(part)
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
