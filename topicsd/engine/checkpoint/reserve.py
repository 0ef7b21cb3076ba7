"""Room on the disk that is kept for a snapshot, for the time when nothing else is left.

It is a file without a name, held open: no tool and no start sees it, and it ends with the process. A crash
between its creation and the removal of its name leaves an empty file, which the next start removes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from topicsd.disk.atomic_replace import recreate_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.snapshot_files import snapshot_numbers

RESERVE_BYTES: Final = 256 << 10
"""Less than a WAL file, so that the log of a full disk does not take what is set free."""


class Reserve:
    """The reserve of one shard; its calls run on a disk thread, one at a time."""

    def __init__(self, fs: Fs, paths: ShardPaths) -> None:
        self._fs = fs
        self._paths = paths
        self._fd = -1
        self._size = 0

    def keep(self) -> None:
        """Take the room for a snapshot and a manifest beside the kept ones; without room keep what it has."""
        size = RESERVE_BYTES + 2 * self._written_bytes()
        if size <= self._size:
            return
        with suppress(OSError):
            if self._fd < 0:
                self._fd = recreate_file(self._fs, self._paths.reserve)
                self._fs.unlink(self._paths.reserve)
            self._fs.allocate(self._fd, size)
            self._size = size

    def release(self) -> None:
        """Set the room free."""
        fd, self._fd, self._size = self._fd, -1, 0
        if fd >= 0:
            self._fs.close(fd)

    def _written_bytes(self) -> int:
        """Return the size of the newest snapshot and of the manifest."""
        numbers = snapshot_numbers(self._fs, self._paths)
        paths = [self._paths.manifest, *(self._paths.snapshot(number) for number in numbers[:1])]
        size = 0
        for path in paths:
            with suppress(FileNotFoundError):
                size += self._fs.stat(path).size
        return size
