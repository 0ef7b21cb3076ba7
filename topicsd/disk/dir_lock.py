"""One owner of a directory at a time: an flock, held until the process ends, however it ends.

A lock that is taken is an answer, not a wait: whoever may wait (a new worker behind the one that is
draining) asks again at its own pace.
"""

from __future__ import annotations

from topicsd.disk.fs import Fs


class DirectoryInUse(Exception):
    """Another process owns the directory."""


class DirLock:
    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        try:
            self._fd = fs.lock(path)
        except BlockingIOError:
            raise DirectoryInUse(f"{path} is held by another process") from None

    @property
    def identity(self) -> str:
        """Device and inode of the lock file, in hex: no other directory has it while the lock is held."""
        found = self._fs.fstat(self._fd)
        return f"{found.device:x}-{found.inode:x}"

    def release(self) -> None:
        self._fs.close(self._fd)
