"""The log of one shard as it lies there, read without a lock, also while a server writes it.

A server may append between any two reads here. So where the walk stops is looked at once more: what was a
half of a batch a moment ago is a whole one now, and then the log does not end there in disorder, it was
being written. A lock that is held says the same. Everything in front of that place is whole.

What a run left behind an end that was already judged, by the start after it, is told from a torn tail that
nobody has seen yet: CURRENT says then that the log ended cleanly at that very place.

With a snapshot the log is what stands behind its place. The files in front of that are `past`: they are there
for the snapshot before it.
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
from topicsd.log.reader import BatchReader, FoundBatch, survey
from topicsd.log.recovery import (
    add_file,
    check_identity,
    ends_as_current_says,
    heads_are_exact,
    is_same_place,
)
from topicsd.log.walk import (
    BatchRefused,
    Known,
    LogFileFound,
    OnBatch,
    UnreadableLog,
    Verdict,
    Walk,
    check_start,
    open_wal_files,
    walk_log,
)
from topicsd.log.writer import Identity

# A start may put files aside between listing and opening them.
OPEN_TRIES = 3
READ_TRIES = 10


class End(Enum):
    """How the log ends."""

    HERE = "ends here"
    BEING_WRITTEN = "being written"
    CUT_BEFORE = "ends here; what stands behind was cut off by an earlier start"
    TORN = "torn tail"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


class FileTally(NamedTuple):
    """What the batches of one file add up to."""

    batches: int = 0
    frames: int = 0
    """But for the BatchEnds."""
    end: int = FILE_HEADER_BYTES
    next_ordinal: int = 0
    synced: int = 0
    """The highest offset that a batch says was synced."""

    def with_batch(self, batch: FoundBatch) -> FileTally:
        return FileTally(
            self.batches + 1,
            self.frames + batch.frame_count,
            batch.offset + batch.closing.length + BATCH_END_BYTES,
            batch.closing.ordinal + 1,
            max(self.synced, batch.closing.synced),
        )


class ShardLog:
    """The files of one shard, open for reading; close it when done."""

    def __init__(self, fs: Fs, paths: ShardPaths, known: Known | None = None, is_held: bool = False) -> None:
        """`known` is what the snapshot says from which a start goes on. `is_held`: the lock is ours."""
        self.fs = fs
        self.paths = paths
        self.known = known
        self.owner = None if is_held else fs.lock_owner(paths.lock)
        # Before the files are listed: what it names is then among them.
        self.current, self._current_place = _read_current(fs, paths.current)
        self.has_current_file = self._current_place is not None
        self.read_again = LogFiles(fs)
        """Those that the walk has come to, by position."""
        self.files: list[LogFileFound] = []
        self.past: list[LogFileFound] = []
        self._is_of_newer_program = False
        self.tallies: dict[str, FileTally] = {}
        self.walked: Walk | None = None
        self.end = End.UNREADABLE
        self.problem = ""
        """Why the log could not be read to its end, as a sentence."""
        self.synced_position = 0
        """How much of the log is known to be on the disk itself."""
        try:
            found = _open_files(fs, paths)
            begin = 0 if known is None else known.start.file
            self.past = [file for file in found if file.first_ordinal < begin]
            self.files = found[len(self.past) :]
        except UnreadableLog as error:
            self.problem = str(error)
            self._is_of_newer_program = True
        self._names = {
            file.header.epoch: file.name for file in self.past + self.files if file.header is not None
        }

    def close(self) -> None:
        for file in self.past + self.files:
            self.fs.close(file.fd)

    def name_of(self, batch: FoundBatch) -> str:
        """The file that the batch stands in."""
        return self._names[batch.closing.epoch]

    def file_named(self, name: str) -> LogFileFound:
        return next(file for file in self.past + self.files if file.name == name)

    def remains_bytes(self, file: LogFileFound, end: int) -> int:
        """How far what is not zero reaches behind the end of the last batch of a file."""
        if file.header is None:
            return 0
        return survey(self.fs, file.fd, file.header.epoch, end).data_end - end

    @property
    def lacks_a_file(self) -> bool:
        """No walk can begin: a file is missing, or a checkpoint took it since `known` was looked for."""
        try:
            check_start(self.files, self.current, self.known)
        except UnreadableLog:
            return True
        return False

    def walk(self, identity: Identity, on_batch: OnBatch) -> None:
        """Hand out every batch of the log, and judge how it ends. Damage is no exception but a verdict."""

        def counted(batch: FoundBatch, position: int) -> None:
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
                self.fs, self.files, self.current, counted, self.known, partial(add_file, self.read_again)
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
            self.problem = f"{place}, in front of data that was synced: {walk.reason}"
        self._note_what_current_proves(walk)

    @property
    def is_same_place(self) -> bool:
        """The machine has not restarted since, and the files are no copies."""
        return is_same_place(self.fs, self.paths, self.current, self.files, self._current_place)

    @property
    def heads_exact(self) -> bool:
        """A start now would know that nothing is missing from the log."""
        if not heads_are_exact(self.current, bool(self.files), self.is_same_place):
            return False
        walk = self.walked
        if walk is None or walk.is_short:
            return walk is None
        # Of a log that is being written only a part was read, and how that ends says nothing.
        return self.end is End.BEING_WRITTEN or ends_as_current_says(self.current, walk)

    def is_foreign(self, identity: Identity) -> bool:
        """A file is of another shard or directory, or of a newer program."""
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
        """What stands beside the log and is nothing of ours."""
        return [
            name
            for name in names_in(self.fs, self.paths.wal)
            if not (is_leftover_name(name) or parse_wal_name(name) is not None or name == "CURRENT")
        ]

    def quarantined(self) -> list[tuple[str, int]]:
        """Names and sizes of what earlier starts cut off."""
        return [
            (name, self.fs.stat(self.paths.quarantined(name)).size)
            for name in names_in(self.fs, self.paths.quarantine)
        ]

    def _judge(self, walk: Walk) -> End:
        if walk.verdict is Verdict.END:
            return End.HERE
        if self._has_moved_on(walk):
            return End.BEING_WRITTEN
        if walk.verdict is Verdict.REFUSE:
            return End.DAMAGED
        current = self.current
        if current is not None and current.state == "clean" and walk.files:
            last = walk.files[-1]
            if (current.file, current.end) == (last.found.first_ordinal, walk.offset):
                return End.CUT_BEFORE
        # What is on its way stands at the very end; a place with whole batches behind it does not.
        return End.TORN if self.owner is None or walk.cuts_batches else End.BEING_WRITTEN

    def _has_moved_on(self, walk: Walk) -> bool:
        """A batch stands now where there was none."""
        file = self.file_named(walk.place)
        if file.header is None or walk.offset < FILE_HEADER_BYTES:
            return False
        reader = BatchReader(self.fs, file.fd, file.header)
        reader.offset, reader.ordinal, reader.chain = walk.offset, walk.ordinal, walk.chain
        return reader.next() is not None

    def _note_what_current_proves(self, walk: Walk) -> None:
        current = self.current
        if current is None:
            return
        for file in walk.files:
            if file.found.first_ordinal == current.file:
                # Those before it were synced before CURRENT moved.
                proven = file.start_position
                if current.state == "clean" and current.end <= file.end:
                    proven += current.end - FILE_HEADER_BYTES
                self.synced_position = max(self.synced_position, proven)


def _read_current(fs: Fs, path: str) -> tuple[Current | None, FileStat | None]:
    """CURRENT and the very file that it was read from: a server replaces it at every rotation."""
    for _ in range(READ_TRIES):
        place = _place_of(fs, path)
        current = read_current(fs, path)
        if place == _place_of(fs, path):
            break
    return current, place


def _place_of(fs: Fs, path: str) -> FileStat | None:
    return fs.stat(path) if exists(fs, path) else None


def _open_files(fs: Fs, paths: ShardPaths) -> list[LogFileFound]:
    for _ in range(OPEN_TRIES - 1):
        try:
            return open_wal_files(fs, paths)
        except FileNotFoundError:
            continue
    return open_wal_files(fs, paths)
