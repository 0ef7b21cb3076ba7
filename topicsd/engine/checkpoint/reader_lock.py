"""The lock with which a reader from outside keeps dropped files in trash/, and how the server asks for it.

A reader holds a file of its own in meta/readers/ with a flock, as long as it needs. The kernel lets go of it
when the reader dies, so nothing a reader does or forgets can hold the trash for ever; a file that nobody
holds is left over, and the server unlinks it.

How the server asks: it takes the lock for a moment. That is the one question that the kernel answers truly
for every holder, shared or exclusive, in another container or not; /proc/locks shows only processes of the
own one. And while it has the lock nobody else gets it, so what it unlinks is held by nobody.

How a reader takes it, so that none believes in a lock on a file that has just been unlinked:

1.  make a file of a new name and lock it without waiting; held already is the server asking, try another;
2.  look whether the path still leads to the file that is locked; if not, try another;
3.  only then read MANIFEST.json. What it names stays until the lock goes.
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

# The directory is open to others: a file that we may not open, a directory, a link, a socket. What cannot be
# tried is not unlinked either, and it must not keep the trash for ever.
_NOT_TO_BE_TRIED = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO)


class ReaderLock:
    """Holds what a shard drops while the block runs. PermissionError for who may not write in meta/readers:
    such a reader has the grace time only. A process that is forked inside the block holds on too."""

    def __init__(self, readers_dir: str, reader_id: str, fs: Fs | None = None) -> None:
        """`reader_id` is for a person to see who it is; many readers may have the same."""
        if _READER_ID.fullmatch(reader_id) is None:
            raise ValueError(f"a reader's id is letters, digits, dots, dashes and underscores: {reader_id!r}")
        self._fs = RealFs() if fs is None else fs
        self._readers_dir = readers_dir
        self._reader_id = reader_id
        self._path = ""
        self._fd = -1

    def __enter__(self) -> ReaderLock:
        assert self._fd < 0, "a lock is taken once"
        for _ in range(_ATTEMPTS):
            self._path = os.path.join(self._readers_dir, f"{self._reader_id}-{os.urandom(4).hex()}")
            try:
                fd = self._fs.lock(self._path)
            except BlockingIOError:
                continue
            if self._is_there(fd):
                self._fd = fd
                return self
            self._fs.close(fd)
        raise TimeoutError(f"no lock in {self._readers_dir} outlived {_ATTEMPTS} attempts to take one")

    def _is_there(self, fd: int) -> bool:
        try:
            return self._fs.stat(self._path).inode == self._fs.fstat(fd).inode
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unlinked while it is held, so that no other file can have come under the name.
        try:
            with suppress(FileNotFoundError):
                self._fs.unlink(self._path)
        finally:
            self._fs.close(self._fd)
            self._fd = -1


def readers_held(fs: Fs, paths: ShardPaths) -> bool:
    """Whether a reader holds what the shard drops. Files that nobody holds are unlinked on the way."""
    try:
        names = fs.list_dir(paths.readers)
    except FileNotFoundError:
        return False
    # All of them are asked, also behind one that is held: the others are left over.
    held = [name for name in names if _is_held(fs, os.path.join(paths.readers, name))]
    return bool(held)


def _is_held(fs: Fs, path: str) -> bool:
    try:
        fd = fs.lock(path)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NOT_TO_BE_TRIED:
            raise
        return fs.lock_owner(path) is not None
    try:
        with suppress(FileNotFoundError):
            fs.unlink(path)
    finally:
        fs.close(fd)
    return False
