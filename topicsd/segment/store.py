"""The store of segment files: six calls by key, which a local folder and an object store can both serve.

Two further calls (`forget`, `close`) concern open descriptors, not the stored bytes.

A key is a path below the root with "/" between its parts. A missing key raises `FileNotFoundError`. An object
exists whole or not at all, and does not change until it is deleted or replaced.

`LocalStore` keeps the descriptors that it used last. Several threads call it at once: a descriptor is closed
only when no thread reads from it, since the kernel reuses its number for another file at once.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.key_tree import KeyTree

OPEN_FILES_MAX = 64
COPY_BYTES = 1 << 20

SourceRead = Callable[[int, int], bytes]
"""Function that returns the bytes at an offset, of a size; fewer only at the end."""

# The method `list` hides the type `list` inside the classes.
KeyList = list[str]
Descriptors = list[int]


class SegmentStore(Protocol):
    """The interface of a store of segment files."""

    def put(self, key: str, source_read: SourceRead, size: int) -> None:
        """Store `size` bytes durably under `key`, replacing an earlier object."""
        ...

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; after a power cut it may exist again."""
        ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int: ...

    def forget(self, key: str) -> None:
        """Release the open descriptor of a key; the stored bytes do not change."""
        ...

    def close(self) -> None:
        """Release all open descriptors."""
        ...

    def list(self, prefix: str) -> KeyList:
        """Return the keys that begin with `prefix`, sorted."""
        ...


class _OpenFile:
    __slots__ = ("fd", "is_dropped", "reader_count")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.reader_count = 1
        self.is_dropped = False


class LocalStore:
    """A store in a folder, with one file per key, accessed through `Fs`."""

    def __init__(self, fs: Fs, root: str, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._fs = fs
        self._tree = KeyTree(fs, root)
        self._open_files_max = open_files_max
        self._lock = threading.Lock()
        # Number of calls of `forget`; a descriptor opened before the latest one is not kept.
        self._changes = 0
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()

    def path_of(self, key: str) -> str:
        return self._tree.path_of(key)

    def put(self, key: str, source_read: SourceRead, size: int) -> None:
        path = self.path_of(key)
        directory = os.path.dirname(path)
        self._tree.make_directory(directory)
        temporary = path + TEMPORARY_SUFFIX
        try:
            self._write(temporary, source_read, size)
        except Exception:
            # The disk may be full: do not leave half a copy on it.
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        self._fs.rename(temporary, path)
        self._fs.sync_dir(directory)
        self.forget(key)

    def _write(self, path: str, source_read: SourceRead, size: int) -> None:
        fd = recreate_file(self._fs, path)
        try:
            offset = 0
            while offset < size:
                chunk = source_read(offset, min(COPY_BYTES, size - offset))
                if not chunk:
                    raise OSError(errno.EIO, f"the source ends at {offset} of {size} bytes")
                write_all(self._fs, fd, chunk, offset)
                offset += len(chunk)
            self._fs.sync_data(fd)
        finally:
            self._fs.close(fd)

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        file = self._acquire(key)
        try:
            return self._fs.pread(file.fd, size, offset)
        finally:
            self._release(file)

    def delete(self, key: str) -> None:
        self._fs.unlink(self.path_of(key))
        self.forget(key)

    def exists(self, key: str) -> bool:
        return exists(self._fs, self.path_of(key))

    def size(self, key: str) -> int:
        return self._fs.stat(self.path_of(key)).size

    def forget(self, key: str) -> None:
        """Close the descriptor of a key whose file was renamed, cut or deleted."""
        with self._lock:
            self._changes += 1
            file = self._open.pop(key, None)
            idle = [] if file is None else self._drop(file)
        self._close_all(idle)

    def close(self) -> None:
        with self._lock:
            idle = [fd for file in self._open.values() for fd in self._drop(file)]
            self._open.clear()
        self._close_all(idle)

    def list(self, prefix: str) -> KeyList:
        return self._tree.keys(prefix)

    def _acquire(self, key: str) -> _OpenFile:
        with self._lock:
            file = self._open.get(key)
            if file is not None:
                file.reader_count += 1
                self._open.move_to_end(key)
                return file
            changes = self._changes
        # Opened without the lock: this may wait for the disk, and other threads read open files.
        opened = _OpenFile(self._fs.open_read(self.path_of(key)))
        unused: Descriptors = []
        with self._lock:
            file = self._open.get(key)
            if file is not None:
                file.reader_count += 1
                unused.append(opened.fd)
            elif changes != self._changes:
                file = opened
                file.is_dropped = True
            else:
                file = self._open[key] = opened
                while len(self._open) > self._open_files_max:
                    unused += self._drop(self._open.popitem(last=False)[1])
        self._close_all(unused)
        return file

    def _release(self, file: _OpenFile) -> None:
        with self._lock:
            file.reader_count -= 1
            is_unused = file.is_dropped and file.reader_count == 0
        if is_unused:
            self._fs.close(file.fd)

    def _drop(self, file: _OpenFile) -> Descriptors:
        """Return the descriptors to close; a file that is being read is closed by its last reader.

        The caller holds the lock and has removed the file from the table.
        """
        file.is_dropped = True
        return [] if file.reader_count else [file.fd]

    def _close_all(self, fds: Descriptors) -> None:
        for fd in fds:
            self._fs.close(fd)
