"""An `Fs` that cannot change anything, for commands that only read a data directory.

Such commands must be safe to run beside a server at any time. So every call that changes something raises an
AssertionError here before it reaches the disk.

A read error names the file and the offset, which the kernel's error does not, and `on_read` is called after
every read with the number of bytes, for progress reports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from topicsd.disk.fs import FileStat, Fs


def _ignore(size: int) -> None:
    pass


class Unchangeable:
    """The changing calls of an `Fs`, each of which raises AssertionError."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise AssertionError("a read-only command tried to change the disk")

    create = open_write = pwrite = allocate = truncate = sync_data = sync_dir = _refuse
    rename = link = unlink = make_dir = remove_dir = drop_cache = lock = _refuse


class ReadOnlyFs(Unchangeable):
    """An `Fs` whose changing calls raise AssertionError."""

    def __init__(self, fs: Fs, on_read: Callable[[int], None] = _ignore) -> None:
        self._fs = fs
        self._on_read = on_read
        self._paths: dict[int, str] = {}

    def open_read(self, path: str) -> int:
        fd = self._fs.open_read(path)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._fs.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        try:
            data = self._fs.pread(fd, size, offset)
        except OSError as error:
            where = f"{self._paths.get(fd, 'a file')} at offset {offset}"
            raise OSError(error.errno, error.strerror, where) from error
        self._on_read(len(data))
        return data

    def list_dir(self, path: str) -> list[str]:
        return self._fs.list_dir(path)

    def stat(self, path: str) -> FileStat:
        return self._fs.stat(path)

    def fstat(self, fd: int) -> FileStat:
        return self._fs.fstat(fd)

    def free_bytes(self, path: str) -> int:
        return self._fs.free_bytes(path)

    def lock_owner(self, path: str) -> int | None:
        return self._fs.lock_owner(path)

    def boot_id(self) -> str:
        return self._fs.boot_id()
