"""The log of one shard, read without a lock, also while a server writes to it.

A server may append between any two reads of this module. The place where the walk stops is therefore read a
second time. When a whole batch is there now, the log is not torn: it is being written. A held lock means the
same. All batches before that place are whole.

Bytes after the end of the log are either a torn tail, or remains that an earlier start has already cut off.
In the second case CURRENT says that the log ended cleanly at exactly that place.

With a snapshot, the log begins at the log place of the snapshot. The files before that place are `past`: they
are kept for the older snapshot.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import NamedTuple

from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import FileStat, Fs
from topicsd.disk.layout import ShardPaths, is_leftover_name, names_in, parse_wal_name
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.current_file import Current, read_current
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles
from topicsd.log.reader import WalBatch, WalBatchReader, survey
from topicsd.log.recovery import (
    add_file,
    check_identity,
    ends_as_current_says,
    heads_are_exact,
    is_same_place,
)
from topicsd.log.walk import (
    BatchRefused,
    LogVerdict,
    OnBatch,
    OpenWalFile,
    SnapshotLogState,
    UnreadableLog,
    Walk,
    check_start,
    open_wal_files,
    walk_log,
)
from topicsd.log.writer import Identity

# A start may quarantine files between listing and opening them.
OPEN_TRIES = 3
READ_TRIES = 10


class End(Enum):
    """The ways in which a log can end."""

    HERE = "ends here"
    BEING_WRITTEN = "being written"
    CUT_BEFORE = "ends here; an earlier start cut off the bytes after it"
    TORN = "torn tail"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


class FileTally(NamedTuple):
    """The totals over the batches of one file."""

    batches: int = 0
    frames: int = 0
    """The number of frames, without the BatchEnd frames."""
    end: int = FILE_HEADER_BYTES
    next_ordinal: int = 0
    synced: int = 0
    """The highest synced offset that a batch records."""

    def with_batch(self, batch: WalBatch) -> FileTally:
        return FileTally(
            self.batches + 1,
            self.frames + batch.frame_count,
            batch.offset + batch.closing.length + BATCH_END_BYTES,
            batch.closing.ordinal + 1,
            max(self.synced, batch.closing.synced),
        )


class ShardLog:
    """The log files of one shard, open for reading. Close it after use."""

    def __init__(
        self, fs: Fs, paths: ShardPaths, known: SnapshotLogState | None = None, is_held: bool = False
    ) -> None:
        """Open the files; `known` is the place of the snapshot, `is_held` that we hold the lock."""
        self.fs = fs
        self.paths = paths
        self.known = known
        self.owner = None if is_held else fs.lock_owner(paths.lock)
        # CURRENT is read before the files are listed, so that the list has the file that CURRENT names.
        self.current, self._current_stat = _read_current(fs, paths.current)
        self.has_current_file = self._current_stat is not None
        self.read_again = LogFiles(fs)
        """The files that the walk has reached, by position, from which records are read again."""
        self.files: list[OpenWalFile] = []
        self.past: list[OpenWalFile] = []
        self._is_of_newer_program = False
        self.tallies: dict[str, FileTally] = {}
        self.walked: Walk | None = None
        self.end = End.UNREADABLE
        self.problem = ""
        """Why the log could not be read to its end, as a sentence; empty when it could."""
        self.synced_position = 0
        """The position up to which the log is known to be on the disk itself."""
        try:
            files = _open_files(fs, paths)
            begin = 0 if known is None else known.start.file
            self.past = [file for file in files if file.first_ordinal < begin]
            self.files = files[len(self.past) :]
        except UnreadableLog as error:
            self.problem = str(error)
            self._is_of_newer_program = True
        self._names = {
            file.header.epoch: file.name for file in self.past + self.files if file.header is not None
        }

    def close(self) -> None:
        for file in self.past + self.files:
            self.fs.close(file.fd)

    def name_of(self, batch: WalBatch) -> str:
        """Return the name of the file that holds the batch."""
        return self._names[batch.closing.epoch]

    def file_named(self, name: str) -> OpenWalFile:
        return next(file for file in self.past + self.files if file.name == name)

    def remains_bytes(self, file: OpenWalFile, end: int) -> int:
        """Return the number of bytes from `end` to the last byte of a file that is not zero."""
        if file.header is None:
            return 0
        return survey(self.fs, file.fd, file.header.epoch, end).data_end - end

    @property
    def has_missing_file(self) -> bool:
        """Whether no walk can begin: a file is missing, or was dropped after `known` was read."""
        try:
            check_start(self.files, self.current, self.known)
        except UnreadableLog:
            return True
        return False

    def walk(self, identity: Identity, on_batch: OnBatch) -> None:
        """Call `on_batch` for every batch and judge the end; damage is a verdict, not an exception."""

        def count_batch(batch: WalBatch, position: int) -> None:
            name = self.name_of(batch)
            self.tallies[name] = self.tallies.get(name, FileTally()).with_batch(batch)
            if batch.closing.synced:
                synced = position - batch.offset + batch.closing.synced
                self.synced_position = max(self.synced_position, synced)
            on_batch(batch, position)

        if self.problem:
            return
        try:
            check_identity(self.paths, self.files, identity)
            self.walked = walk = walk_log(
                self.fs, self.files, self.current, count_batch, self.known, partial(add_file, self.read_again)
            )
        except BatchRefused as error:
            self.problem = f"{error.place}: {error}"
            return
        except UnreadableLog as error:
            self.problem = str(error)
            return
        self.end = self._judge(walk)
        if self.end is End.DAMAGED:
            place = f"{walk.place} is damaged at offset {walk.offset}"
            self.problem = f"{place}, before synced data: {walk.reason}"
        self._raise_synced_position(walk)

    @property
    def is_same_place(self) -> bool:
        """Whether the machine has not restarted since the last run and the files are not copies."""
        return is_same_place(self.fs, self.paths, self.current, self.files, self._current_stat)

    @property
    def heads_exact(self) -> bool:
        """Whether a start would now know that nothing is missing from the log."""
        if not heads_are_exact(self.current, bool(self.files), self.is_same_place):
            return False
        walk = self.walked
        if walk is None or walk.is_short:
            return walk is None
        # Only a part of a log that is being written was read, and the end of that part proves nothing.
        return self.end is End.BEING_WRITTEN or ends_as_current_says(self.current, walk)

    def is_foreign(self, identity: Identity) -> bool:
        """Whether a file belongs to another shard or data directory, or to a newer program."""
        if self._is_of_newer_program:
            return True
        try:
            check_identity(self.paths, self.past + self.files, identity)
        except UnreadableLog:
            return True
        return False

    def leftovers(self) -> list[str]:
        return [name for name in names_in(self.fs, self.paths.wal) if is_leftover_name(name)]

    def unknown_names(self) -> list[str]:
        """Return the names in wal/ that are neither CURRENT, log files nor leftovers."""
        return [
            name
            for name in names_in(self.fs, self.paths.wal)
            if not (is_leftover_name(name) or parse_wal_name(name) is not None or name == "CURRENT")
        ]

    def quarantine_file(self) -> list[tuple[str, int]]:
        """Return the names and sizes of the files in quarantine/."""
        return [
            (name, self.fs.stat(self.paths.quarantine_file(name)).size)
            for name in names_in(self.fs, self.paths.quarantine)
        ]

    def _judge(self, walk: Walk) -> End:
        if walk.verdict is LogVerdict.END:
            return End.HERE
        if self._is_still_written(walk):
            return End.BEING_WRITTEN
        if walk.verdict is LogVerdict.REFUSE:
            return End.DAMAGED
        current = self.current
        if current is not None and current.state == "clean" and walk.files:
            last = walk.files[-1]
            if (current.file, current.end) == (last.wal_file.first_ordinal, walk.offset):
                return End.CUT_BEFORE
        # A batch that is being written is the last one: with whole batches after it, the tail is torn.
        return End.TORN if self.owner is None or walk.has_cut_batches else End.BEING_WRITTEN

    def _is_still_written(self, walk: Walk) -> bool:
        """Whether a whole batch is now at the place where the walk stopped."""
        file = self.file_named(walk.place)
        if file.header is None or walk.offset < FILE_HEADER_BYTES:
            return False
        reader = WalBatchReader(self.fs, file.fd, file.header)
        reader.offset, reader.ordinal, reader.chain = walk.offset, walk.ordinal, walk.chain
        return reader.next() is not None

    def _raise_synced_position(self, walk: Walk) -> None:
        """Raise `synced_position` to the position that CURRENT proves to be synced."""
        current = self.current
        if current is None:
            return
        for file in walk.files:
            if file.wal_file.first_ordinal == current.file:
                # The files before it were synced before CURRENT named this one.
                proven = file.start_position
                if current.state == "clean" and current.end <= file.end:
                    proven += current.end - FILE_HEADER_BYTES
                self.synced_position = max(self.synced_position, proven)


def _read_current(fs: Fs, path: str) -> tuple[Current | None, FileStat | None]:
    """Return CURRENT and the stat of the file it was read from, or None where there is none.

    A server replaces CURRENT at every rotation, so the stat is taken before and after and has to match.
    """
    for _ in range(READ_TRIES):
        stat = _stat_of(fs, path)
        current = read_current(fs, path)
        if stat == _stat_of(fs, path):
            break
    return current, stat


def _stat_of(fs: Fs, path: str) -> FileStat | None:
    return fs.stat(path) if exists(fs, path) else None


def _open_files(fs: Fs, paths: ShardPaths) -> list[OpenWalFile]:
    for _ in range(OPEN_TRIES - 1):
        try:
            return open_wal_files(fs, paths)
        except FileNotFoundError:
            continue
    return open_wal_files(fs, paths)
