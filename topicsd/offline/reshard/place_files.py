"""Files in a second place: by a hard link, or by a copy where the file system has no links.

A link is safe for every file of a shard that is not being written: sealed files are only ever replaced by a
rename, and an active segment grows only while its shard is open. No call here syncs a directory: the caller
does so once for all files in it.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from topicsd.disk.atomic_replace import exists, recreate_file, write_all
from topicsd.disk.fs import Fs

COPY_BYTES: Final = 1 << 20
# The file system has no hard links, the two directories are on different ones, or the file has too many.
_NO_LINK: Final = frozenset(
    (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
)


class FilePlacer:
    """Places files, and counts them."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self.links = 0
        self.linked_bytes = 0
        self.copies = 0
        self.copied_bytes = 0

    def can_link(self, source: str, target: str) -> bool:
        """Return whether the file system has hard links, after making one to a target that does not exist."""
        try:
            self._fs.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        self._fs.unlink(target)
        return True

    def place(self, source: str, target: str) -> None:
        """Place a file; replace a leftover of an interrupted run. FileNotFoundError without a source."""
        fs = self._fs
        source_stat = fs.stat(source)
        if exists(fs, target):
            if fs.stat(target).inode == source_stat.inode:
                return
            fs.unlink(target)
        try:
            fs.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._copy(source, target, source_stat.size)
            self.copies += 1
            self.copied_bytes += source_stat.size
        else:
            self.links += 1
            self.linked_bytes += source_stat.size

    def place_tree(self, source: str, target: str) -> None:
        """Place a file, or a directory with everything in it; sync the directories that this makes."""
        fs = self._fs
        try:
            names = fs.list_dir(source)
        except NotADirectoryError:
            self.place(source, target)
            return
        if not exists(fs, target):
            fs.make_dir(target)
        for name in names:
            self.place_tree(os.path.join(source, name), os.path.join(target, name))
        fs.sync_dir(target)

    def _copy(self, source: str, target: str, size: int) -> None:
        fs = self._fs
        source_fd = fs.open_read(source)
        try:
            target_fd = recreate_file(fs, target)
            try:
                for offset in range(0, size, COPY_BYTES):
                    data = fs.pread(source_fd, min(COPY_BYTES, size - offset), offset)
                    write_all(fs, target_fd, data, offset)
                fs.sync_data(target_fd)
            finally:
                fs.close(target_fd)
        finally:
            fs.close(source_fd)
