"""The lock by which an outside reader keeps dropped files in trash/, and how the server tests for it.

A reader holds a file of its own in meta/readers/ with a flock, as long as it needs. The kernel releases it
when the reader dies, so a faulty reader cannot hold the trash for ever; a file without a lock is a leftover,
which the server unlinks.

To test a file, the server takes its lock for a moment. Only that works for every holder, shared or exclusive,
in another container or not; /proc/locks lists only processes of its own container. While the server has the
lock no reader can take it, so a file that it unlinks is not held.

A reader takes the lock in these steps, so that it never relies on a lock on an unlinked file:

1.  create a file with a new name and lock it without waiting; if it is locked already, the server is testing
    it: try another name;
2.  check that the path still leads to the locked file; if not, try another name;
3.  only then read MANIFEST.json. The files that it names stay until the lock is released.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from types import TracebackType

from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import ShardPaths

_READER_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}", re.ASCII)
_ATTEMPTS = 100

# Other users may write to the directory: it may contain a file that we may not open, a directory, a link, a
# socket. A file that cannot be locked is not unlinked, and must not keep the trash for ever.
_UNLOCKABLE = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO)


class ReaderLock:
    """A lock that keeps a shard's dropped files while its block runs.

    PermissionError if the reader may not write to meta/readers: such a reader has only the grace time. A
    process forked inside the block holds the lock too.
    """

    def __init__(self, readers_dir: str, reader_id: str, fs: Fs | None = None) -> None:
        """Prepare a lock; `reader_id` is a label for people, and need not be unique."""
        if _READER_ID.fullmatch(reader_id) is None:
            raise ValueError(
                f"reader_id: must be letters, digits, dots, dashes and underscores, got {reader_id!r}"
            )
        self._fs = RealFs() if fs is None else fs
        self._readers_dir = readers_dir
        self._reader_id = reader_id
        self._path = ""
        self._fd = -1

    def __enter__(self) -> ReaderLock:
        assert self._fd < 0, "a reader lock cannot be entered twice"
        for _ in range(_ATTEMPTS):
            self._path = os.path.join(self._readers_dir, f"{self._reader_id}-{os.urandom(4).hex()}")
            try:
                fd = self._fs.lock(self._path)
            except BlockingIOError:
                continue
            if self._is_linked(fd):
                self._fd = fd
                return self
            self._fs.close(fd)
        raise TimeoutError(f"no lock acquired in {self._readers_dir} after {_ATTEMPTS} attempts")

    def _is_linked(self, fd: int) -> bool:
        try:
            return self._fs.stat(self._path).inode == self._fs.fstat(fd).inode
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unlinked while held, so that the name cannot belong to another file.
        try:
            with suppress(FileNotFoundError):
                self._fs.unlink(self._path)
        finally:
            self._fs.close(self._fd)
            self._fd = -1


def readers_held(fs: Fs, paths: ShardPaths) -> bool:
    """Return whether a reader holds the dropped files; unlink files without a lock."""
    try:
        names = fs.list_dir(paths.readers)
    except FileNotFoundError:
        return False
    # All are tested, even after a held one: the others are leftovers to unlink.
    locked_names = [name for name in names if _is_locked(fs, os.path.join(paths.readers, name))]
    return bool(locked_names)


def _is_locked(fs: Fs, path: str) -> bool:
    try:
        fd = fs.lock(path)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _UNLOCKABLE:
            raise
        return fs.lock_owner(path) is not None
    try:
        with suppress(FileNotFoundError):
            fs.unlink(path)
    finally:
        fs.close(fd)
    return False
