"""Recovery of the log: read the files of the last process, set damage aside, and find the end of the log.

The steps run in this order, so that a crash during any of them leads to the same recovery and result:

R1  Recovery reads the bytes of the media. If a sync has failed, or CURRENT is missing, the page cache is
    dropped before the files are read. Otherwise the unsynced files of the last process are synced, since a
    process crash leaves data in the page cache only, and read again without the cache: a difference means
    that a sync failed unnoticed.
R2  The log is read to its end (`walk.py`). Damage before synced data refuses the start here, with nothing
    changed.
R3  The log that was read is made durable: files whose sync has failed are replaced by a rescue copy
    (`rescue_copy.py`). Then the directory is synced.
R4  Bytes that were cut off are put into quarantine: a torn tail as a copy, later files whole. Recovery never
    writes into a WAL file; the bytes after the cut stay unread, because the next file begins with the ordinal
    and chain of the cut.

`heads_are_exact` and `ends_as_current_says` decide whether heads are exact, from CURRENT, the inodes and the
end of the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import xxhash

from topicsd.disk.atomic_replace import exists, recreate_file, write_all
from topicsd.disk.fs import FileStat, Fs
from topicsd.disk.layout import ShardPaths, is_leftover_name, parse_wal_name
from topicsd.log.current_file import Current, note_sync_failure, read_current, write_current
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles, LogPlace
from topicsd.log.reader import WalBatch, used_bytes
from topicsd.log.rescue_copy import make_rescue_copy
from topicsd.log.walk import (
    LogVerdict,
    OnBatch,
    OpenWalFile,
    SnapshotLogState,
    UnreadableLog,
    Walk,
    open_wal_files,
    walk_log,
)
from topicsd.log.writer import NO_SPACE, Identity, LogEnd

logger = logging.getLogger("topicsd.log")

COPY_BYTES = 1 << 20
PROGRESS_BYTES = 1 << 20

OnProgress = Callable[[int, int], None]
"""Callback while files are read, with the bytes replayed and the maximum of bytes to replay.

It may raise an exception to stop the start: all files are closed then.
"""


def noop(done: int, total: int) -> None:
    del done, total


class RecoveryRefused(Exception):
    """Damage before synced data, with file and offset; the shard does not start."""


class RecoveryResult(NamedTuple):
    """The result of a recovery."""

    end: LogEnd
    heads_exact: bool
    """Whether no tail can have been lost, so that the log's heads are exact."""
    is_finished: bool
    """Whether CURRENT already records that the log ends here."""
    place: LogPlace | None
    """Log place of the end; None when there is no file."""


class Recovery:
    """The recovery of one shard's log: `run` reads and repairs it, `finish` updates CURRENT."""

    def __init__(
        self,
        fs: Fs,
        paths: ShardPaths,
        identity: Identity,
        files: LogFiles,
        known: SnapshotLogState | None = None,
        on_progress: OnProgress = noop,
    ) -> None:
        self._on_progress = on_progress
        self._fs = fs
        self._known = known
        self._paths = paths
        self._identity = identity
        self._files = files
        self._current: Current | None = None
        self._is_distrusted = False
        self._walk: Walk | None = None
        self._wal_files: list[OpenWalFile] = []

    def run(self, on_batch: OnBatch) -> RecoveryResult:
        fs, paths = self._fs, self._paths
        self._drop_leftovers()
        self._current = current = read_current(fs, paths.current)
        is_distrusted = current is None or current.state == "sync_failed" or self._media_differs()
        self._is_distrusted = is_distrusted
        wal_files = open_wal_files(fs, paths, self._is_unsafe if is_distrusted else None)
        if current is None and wal_files:
            logger.warning(
                "%s: %s: the log is read from the disk itself, and heads resume at their ceilings",
                paths.current,
                "damaged" if exists(fs, paths.current) else "missing",
            )
        try:
            # On a full disk CURRENT may still name a file that the snapshot does not need.
            is_unmoved = is_same_place(fs, paths, current, wal_files)
            self._wal_files = wal_files = self._close_past_files(wal_files)
            check_identity(paths, wal_files, self._identity)
            heads_exact = heads_are_exact(current, bool(wal_files), is_unmoved)
            heads_exact = heads_exact and not is_distrusted
            walk = self._walk_log(on_batch)
        except Exception:
            for file in wal_files:  # A refused start leaves no file open.
                fs.close(file.fd)
            raise
        heads_exact = heads_exact and not walk.is_short and ends_as_current_says(current, walk)
        if is_distrusted:
            self._make_rescue_copies(walk)
        if wal_files:
            fs.sync_dir(paths.wal)
        self._quarantine(walk)
        self._open_files(walk)
        if walk.is_short:
            logger.error(
                "%s: WAL file is shorter than its header says: another program truncated it", paths.wal
            )
        is_finished = not walk.files or (
            current is not None and current.state == "clean" and not self._ends_elsewhere(walk)
        )
        return RecoveryResult(
            LogEnd(walk.position, walk.ordinal, walk.chain), heads_exact, is_finished, self._place(walk)
        )

    def finish(self) -> None:
        """Write to CURRENT that the log ends here, is synced, and has exact heads."""
        assert self._walk is not None
        assert self._walk.files
        last = self._walk.files[-1]
        file_stat = self._fs.stat(os.path.join(self._paths.wal, last.wal_file.name))
        current = Current(
            state="clean",
            file=last.wal_file.first_ordinal,
            end=last.end,
            boot_id=self._fs.boot_id(),
            device=file_stat.device,
            wal_inode=file_stat.inode,
        )
        try:
            write_current(self._fs, self._paths.current, current)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            logger.warning(
                "%s: CURRENT not updated: disk full, the next start rescans the log", self._paths.wal
            )

    def _close_past_files(self, wal_files: list[OpenWalFile]) -> list[OpenWalFile]:
        """Close the files before the snapshot's place, which are kept for the older snapshot."""
        if self._known is None:
            return wal_files
        past = [file for file in wal_files if file.first_ordinal < self._known.start.file]
        for file in past:
            self._fs.close(file.fd)
        return wal_files[len(past) :]

    def _place(self, walk: Walk) -> LogPlace | None:
        if not walk.files:
            return None
        last = walk.files[-1]
        return LogPlace(last.wal_file.first_ordinal, last.end, walk.ordinal, walk.chain)

    def _drop_leftovers(self) -> None:
        for name in self._fs.list_dir(self._paths.wal):
            if is_leftover_name(name):
                self._fs.unlink(os.path.join(self._paths.wal, name))

    def _is_unsafe(self, first_ordinal: int) -> bool:
        """Return whether the last process may have left unsynced bytes in the file."""
        current = self._current
        if current is None or first_ordinal > current.file:
            return True
        return first_ordinal == current.file and current.state != "clean"

    def _walk_log(self, on_batch: OnBatch) -> Walk:
        """Read the log to its end, and refuse damage before synced data (R2)."""
        try:
            counted = self._counted(on_batch)
            # Later frames may refer to bytes of earlier files.
            on_file = partial(add_file, self._files)
            walk = self._walk = walk_log(
                self._fs, self._wal_files, self._current, counted, self._known, on_file
            )
        except UnreadableLog as error:
            raise UnreadableLog(f"{self._paths.wal}: {error}") from None
        finally:
            self._files.clear()
        if walk.verdict is LogVerdict.REFUSE:
            raise RecoveryRefused(
                f"{self._paths.wal}/{walk.place}: damaged at offset {walk.offset}, before synced data: "
                f"{walk.reason}"
            )
        return walk

    def _counted(self, on_batch: OnBatch) -> OnBatch:
        """Wrap `on_batch` so that it also reports progress, once per `PROGRESS_BYTES`."""
        total = sum(file.size_bytes for file in self._wal_files)
        next_report = 0

        def take(batch: WalBatch, position: int) -> None:
            nonlocal next_report
            on_batch(batch, position)
            if position >= next_report:
                next_report = position + PROGRESS_BYTES
                self._on_progress(position, total)

        return take

    def _media_differs(self) -> bool:
        """Return whether the media differs from the page cache (R1).

        Called when no sync is known to have failed. A difference, or a sync that fails now, is noted in
        CURRENT for the next start.
        """
        fs, wal = self._fs, self._paths.wal
        for name in fs.list_dir(wal):
            ordinal = parse_wal_name(name)
            if ordinal is None or not self._is_unsafe(ordinal):
                continue
            fd = fs.open_read(os.path.join(wal, name))
            try:
                cached, size = self._digest(fd)
                self._sync(fd, name)
                fs.drop_cache(fd)
                if self._digest(fd, size) != (cached, size):
                    logger.error("%s/%s: lost write: the media differs from the page cache", wal, name)
                    note_sync_failure(fs, self._paths.current)
                    return True
            finally:
                fs.close(fd)
        return False

    def _digest(self, fd: int, size: int | None = None) -> tuple[int, int]:
        """Return the digest of the first `size` bytes, and the number of bytes read.

        Without `size` it ends with the first chunk of zeros: the log has no gap, and most of a preallocated
        file was never written.
        """
        digest = xxhash.xxh3_64()
        at = 0
        while chunk := self._fs.pread(fd, COPY_BYTES if size is None else min(COPY_BYTES, size - at), at):
            digest.update(chunk)
            at += len(chunk)
            self._on_progress(0, 0)
            if size is None and not used_bytes(chunk):
                break
        return digest.intdigest(), at

    def _sync(self, fd: int, name: str) -> None:
        try:
            self._fs.sync_data(fd)
        except OSError as error:
            note_sync_failure(self._fs, self._paths.current)
            raise RecoveryRefused(
                f"{self._paths.wal}/{name}: sync failed during recovery, the next start trusts only the "
                f"media: {error}"
            ) from error

    def _make_rescue_copies(self, walk: Walk) -> None:
        """Replace the unsafe files by rescue copies, when a sync may have failed (R3)."""
        for file in walk.files:
            if self._is_unsafe(file.wal_file.first_ordinal):
                make_rescue_copy(self._fs, self._paths, file)

    def _quarantine(self, walk: Walk) -> None:
        """Copy a torn tail, and move later files, into quarantine (R4)."""
        if walk.verdict is not LogVerdict.CUT:
            return
        fs, paths = self._fs, self._paths
        kept_names = {file.wal_file.name for file in walk.files}
        cut = next((file for file in walk.files if file.wal_file.name == walk.place), None)
        if cut is not None and walk.remains_end > walk.offset:
            self._quarantine_tail(cut.wal_file, walk.offset, walk.remains_end)
        later_files = [file for file in self._wal_files if file.name not in kept_names]
        for file in later_files:
            fs.rename(os.path.join(paths.wal, file.name), paths.quarantine_file(self._free_name(file.name)))
        if later_files:
            fs.sync_dir(paths.quarantine)
            fs.sync_dir(paths.wal)
        logger.warning(
            "%s/%s: torn tail: cut at offset %d, copied to %s",
            paths.wal,
            walk.place,
            walk.offset,
            paths.quarantine,
        )

    def _quarantine_tail(self, file: OpenWalFile, offset: int, end: int) -> None:
        fs = self._fs
        digest = xxhash.xxh3_64()
        for at in range(offset, end, COPY_BYTES):
            digest.update(fs.pread(file.fd, min(COPY_BYTES, end - at), at))
        target = self._paths.quarantine_file(f"{file.name}.at-{offset}.{digest.hexdigest()[:8]}")
        if exists(fs, target):
            return  # An earlier start has copied it.
        temporary = target + ".tmp"
        fd = recreate_file(fs, temporary)
        try:
            for at in range(offset, end, COPY_BYTES):
                write_all(fs, fd, fs.pread(file.fd, min(COPY_BYTES, end - at), at), at - offset)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, target)
        fs.sync_dir(self._paths.quarantine)

    def _free_name(self, name: str) -> str:
        taken = set(self._fs.list_dir(self._paths.quarantine))
        number = 1
        while f"{name}.{number}" in taken:
            number += 1
        return f"{name}.{number}"

    def _open_files(self, walk: Walk) -> None:
        """Add the files of the log to `LogFiles`, for reads of records, and close the others."""
        part_of_log = {file.wal_file.fd: file for file in walk.files}
        for wal_file in self._wal_files:
            walked = part_of_log.get(wal_file.fd)
            if walked is None:
                self._fs.close(wal_file.fd)
                continue
            if self._is_distrusted:
                # Open the rescue copy, where there is one, in place of the original.
                self._fs.close(wal_file.fd)
                wal_file = wal_file._replace(
                    fd=self._fs.open_read(os.path.join(self._paths.wal, wal_file.name))
                )
            add_file(self._files, wal_file, walked.start_position)

    def _ends_elsewhere(self, walk: Walk) -> bool:
        """Return whether the log ends at another place than CURRENT says."""
        assert self._current is not None
        last = walk.files[-1]
        return (self._current.file, self._current.end) != (last.wal_file.first_ordinal, last.end)


def add_file(files: LogFiles, wal_file: OpenWalFile, start: int) -> None:
    """Add a file whose first byte after the header is at position `start`."""
    epoch = b"" if wal_file.header is None else wal_file.header.epoch
    files.add(wal_file.fd, wal_file.first_ordinal, start, epoch, wal_file.size_bytes)


def check_identity(paths: ShardPaths, wal_files: list[OpenWalFile], identity: Identity) -> None:
    """Raise UnreadableLog when a file belongs to another data directory or another shard."""
    for file in wal_files:
        if file.header is not None and (file.header.instance, file.header.shard) != identity:
            raise UnreadableLog(
                f"{paths.wal}/{file.name} belongs to shard {file.header.shard} of instance "
                f"{file.header.instance.hex()}, not to shard {identity.shard} of {identity.instance.hex()}"
            )


def is_same_place(
    fs: Fs,
    paths: ShardPaths,
    current: Current | None,
    wal_files: list[OpenWalFile],
    current_stat: FileStat | None = None,
) -> bool:
    """Return whether CURRENT and its file are the inodes last written, on the same boot.

    Outside readers pass `place`, the stat of CURRENT when it was read: a server may replace it meanwhile.
    """
    for file in wal_files:
        if current is not None and file.first_ordinal == current.file:
            here = current_stat or fs.stat(paths.current)
            return current.is_same_place(here, fs.fstat(file.fd), fs.boot_id())
    return False


def ends_as_current_says(current: Current | None, walk: Walk) -> bool:
    """Return whether the log ends where CURRENT allows it.

    After a clean end the log may have no batch, at most a file without one. A process that was killed leaves
    at most a batch without its BatchEnd: a whole batch may have been acknowledged.
    """
    if current is None or current.state != "clean":
        return not walk.has_cut_batches
    return all(
        file.end == (current.end if file.wal_file.first_ordinal == current.file else FILE_HEADER_BYTES)
        for file in walk.files
        if file.wal_file.first_ordinal >= current.file
    )


def heads_are_exact(current: Current | None, has_files: bool, is_same_place: bool) -> bool:
    """Return whether the log holds every write ever acknowledged, in any durability class.

    It does when the last process ended cleanly, or when only the process died: then the page cache kept
    its writes. A shard without a file has never acknowledged a write.
    """
    if not has_files:
        return True
    if current is None:
        return False
    return current.state == "clean" or (current.state == "running" and is_same_place)
