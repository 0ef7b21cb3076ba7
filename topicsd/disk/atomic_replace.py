"""Complete writes and atomic file replacement."""

from __future__ import annotations

import errno
import os

from topicsd.disk.fs import Fs

TEMPORARY_SUFFIX = ".tmp"


def write_all(fs: Fs, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`, in as many calls as needed; a call that writes nothing is an error."""
    done = fs.pwrite(fd, data, offset)
    while done < len(data):
        more = fs.pwrite(fd, memoryview(data)[done:], offset + done)
        if more == 0:
            raise OSError(errno.EIO, f"short write: {done} of {len(data)} bytes")
        done += more


def read_all(fs: Fs, path: str, size_max: int) -> bytes:
    """Read a small file; at most `size_max` + 1 bytes, which shows that it is too large."""
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
    """Replace the file at `path` durably; a crash leaves the whole old or the whole new file.

    The bytes are synced before the rename, and the directory is synced before the function returns.
    """
    temporary = path + TEMPORARY_SUFFIX
    fd = recreate_file(fs, temporary)
    try:
        write_all(fs, fd, data, 0)
        fs.sync_data(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path))


def recreate_file(fs: Fs, path: str) -> int:
    """Create and open a file; remove a leftover of that name first."""

    if exists(fs, path):
        fs.unlink(path)
    return fs.create(path)
