"""An `Fs` that cannot change anything, for whoever only looks at a data directory.

A command that inspects must be safe to run beside a server, by anybody, at any hour. So that is no matter of
care: every call that changes something fails an assert here before it reaches the disk.

An error of a read names the file and the offset, which the kernel's does not, and every read is told to
`on_read`, so that a person can see how far it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from topicsd.disk.fs import FileStat, Fs


def _ignored(size: int) -> None:
    pass


class ReadOnlyFs:
    def __init__(self, fs: Fs, on_read: Callable[[int], None] = _ignored) -> None:
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
            place = f"{self._paths.get(fd, 'a file')} at offset {offset}"
            raise OSError(error.errno, error.strerror, place) from error
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

    def _refuse(self, *_: Any) -> NoReturn:
        raise AssertionError("a command that only looks was about to change the disk")

    create = open_write = pwrite = allocate = truncate = sync_data = sync_dir = _refuse
    rename = link = unlink = make_dir = remove_dir = drop_cache = lock = _refuse
