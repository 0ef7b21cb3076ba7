"""Whole writes and whole files: a short write is continued, a file is replaced in one step or not at all."""

from __future__ import annotations

import errno
import os

from topicsd.disk.fs import Fs

TEMPORARY_SUFFIX = ".tmp"


def write_all(fs: Fs, fd: int, data: bytes, offset: int) -> None:
    """Write everything, however little one call takes; no progress at all is an error."""
    taken = fs.pwrite(fd, data, offset)
    while taken < len(data):
        more = fs.pwrite(fd, memoryview(data)[taken:], offset + taken)
        if more == 0:
            raise OSError(errno.EIO, f"the disk took {taken} of {len(data)} bytes and no more")
        taken += more


def read_all(fs: Fs, path: str, size_max: int) -> bytes:
    """The bytes of a small file. Of one larger than it may be, only enough to see that."""
    fd = fs.open_read(path)
    try:
        return fs.pread(fd, size_max + 1, 0)
    finally:
        fs.close(fd)


def exists(fs: Fs, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def replace_file(fs: Fs, path: str, data: bytes) -> None:
    """Put `data` at `path` so that a crash leaves the old file or the new one, whole.

    The order is the promise: the bytes are on the disk before the name moves to them, and the name is on
    the disk before anybody is told.
    """
    temporary = path + TEMPORARY_SUFFIX
    fd = create_afresh(fs, temporary)
    try:
        write_all(fs, fd, data, 0)
        fs.sync_data(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path))


def create_afresh(fs: Fs, path: str) -> int:
    """A new file under a temporary name; what a crash left there goes first."""
    if exists(fs, path):
        fs.unlink(path)
    return fs.create(path)
