"""The lock of a directory: an flock, which the kernel releases when the process ends for any reason.

Taking a lock that is held fails at once. A caller that may wait (a new worker, while the old one drains)
retries on its own schedule.
"""

from __future__ import annotations

from topicsd.disk.fs import Fs


class DirectoryInUse(Exception):
    """A refusal to lock a directory that another process owns."""


class DirLock:
    """The lock file of a directory, held by this process; DirectoryInUse if another holds it."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        try:
            self._fd = fs.lock(path)
        except BlockingIOError:
            raise DirectoryInUse(f"{path}: locked by another process") from None

    @property
    def identity(self) -> str:
        """Device and inode of the lock file, in hex; unique while the lock is held."""
        lock_stat = self._fs.fstat(self._fd)
        return f"{lock_stat.device:x}-{lock_stat.inode:x}"

    def release(self) -> None:
        self._fs.close(self._fd)
