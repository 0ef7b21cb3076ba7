"""A file system for reading whose files are parts of objects in a store.

With it, code that reads the files of a data directory reads a copy of them that is in a store. A file has its
parts in order, and zeros after them up to its size, as a preallocated WAL file does. Directories follow from
the paths of the files.

A part whose object is missing is no missing file: the reader would look for the file elsewhere or do without.
So it raises `StoreRefused`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from topicsd.disk.fs import FileStat
from topicsd.disk.read_only_fs import Unchangeable
from topicsd.store.object_store import StoreRefused

ObjectRead = Callable[[str, int, int], bytes]
"""Function that reads a key at an offset; fewer bytes than the size only at the end of the object."""


class ObjectPart(NamedTuple):
    """Consecutive bytes of one object."""

    key: str
    offset: int
    size: int


class ObjectFile(NamedTuple):
    """One file: its parts, and the size up to which zeros follow them."""

    size: int
    parts: tuple[ObjectPart, ...]


class ObjectFs(Unchangeable):
    """Files by path, for one thread. It has no locks and no machine of its own."""

    def __init__(self, read: ObjectRead, files: Mapping[str, ObjectFile]) -> None:
        self._read = read
        self.files = files
        self._inodes = {path: number for number, path in enumerate(files, 1)}
        self._names: dict[str, set[str]] = {}
        for path in files:
            self._add_name(path)
        self._open: dict[int, str] = {}
        self._next_fd = 1

    def _add_name(self, path: str) -> None:
        directory, name = os.path.split(path)
        while name:
            names = self._names.setdefault(directory, set())
            if name in names:
                return
            names.add(name)
            directory, name = os.path.split(directory)

    def some_of(self, paths: Iterable[str]) -> dict[str, ObjectFile]:
        """Return those of the paths that are files."""
        return {path: self.files[path] for path in paths if path in self.files}

    def open_read(self, path: str) -> int:
        self._file(path)
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        path = self._open[fd]
        file = self.files[path]
        end = min(offset + size, file.size)
        if offset >= end:
            return b""
        chunks: list[bytes] = []
        begin, at = 0, offset
        for part in file.parts:
            part_end = begin + part.size
            if at < part_end and begin < end:
                length = min(end, part_end) - at
                chunks.append(self._part(path, part, at - begin, length))
                at += length
            begin = part_end
        if at < end:
            chunks.append(bytes(end - at))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _part(self, path: str, part: ObjectPart, offset: int, size: int) -> bytes:
        try:
            data = self._read(part.key, part.offset + offset, size)
        except FileNotFoundError:
            raise StoreRefused(errno.ENOENT, f"the object {part.key} is missing", path) from None
        if len(data) < size:
            raise StoreRefused(errno.EIO, f"the object {part.key} is too short", path)
        return data

    def list_dir(self, path: str) -> list[str]:
        if path not in self._names:
            raise self._missing(path)
        return sorted(self._names[path])

    def stat(self, path: str) -> FileStat:
        if path in self._names:
            return FileStat(0, 0, 0)
        return FileStat(self._file(path).size, 0, self._inodes[path])

    def fstat(self, fd: int) -> FileStat:
        return self.stat(self._open[fd])

    def free_bytes(self, path: str) -> int:
        return 0

    def lock_owner(self, path: str) -> int | None:
        return None

    def boot_id(self) -> str:
        return ""

    def _file(self, path: str) -> ObjectFile:
        file = self.files.get(path)
        if file is None:
            raise self._missing(path)
        return file

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
