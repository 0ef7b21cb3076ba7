"""A file system in the memory of one process: an `Fs` for a server that writes nothing to a disk.

A file is an anonymous memory file (memfd), so that its descriptors work with the calls of `RealFs`; this
module keeps only the names. Everything is lost when the process ends.

M1  An open file stays readable after its name is removed, as on a disk.
M2  Preallocation reserves nothing: only written bytes use memory.
"""

from __future__ import annotations

import errno
import os
import threading

from topicsd.disk.fs import FileStat, RealFs


class MemoryFs(RealFs):
    """A file system of memfds; paths are absolute, and a file's directory must exist first."""

    def __init__(self) -> None:
        # Disk threads and the event loop use the object concurrently.
        self._mutex = threading.Lock()
        self._files: dict[str, int] = {}
        """Descriptor that keeps each file alive, by path."""
        self._directories: set[str] = {os.sep}
        self._locks: dict[int, str] = {}

    def create(self, path: str) -> int:
        with self._mutex:
            return self._create(path)

    def open_write(self, path: str) -> int:
        with self._mutex:
            return os.dup(self._file(path))

    def open_read(self, path: str) -> int:
        return self.open_write(path)

    def allocate(self, fd: int, size: int) -> None:
        if os.fstat(fd).st_size < size:
            self.truncate(fd, size)

    def sync_data(self, fd: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass

    def drop_cache(self, fd: int) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._parent(target)
            if source in self._files:
                self._drop(target)
                self._move(source, target)
                return
            if source not in self._directories:
                raise _error(errno.ENOENT, source)
            prefix = source + os.sep
            for path in [path for path in (*self._files, *self._directories) if path.startswith(prefix)]:
                self._move(path, target + path.removeprefix(source))
            self._move(source, target)

    def link(self, source: str, target: str) -> None:
        with self._mutex:
            if target in self._files or target in self._directories:
                raise _error(errno.EEXIST, target)
            self._parent(target)
            self._files[target] = os.dup(self._file(source))

    def unlink(self, path: str) -> None:
        with self._mutex:
            self._file(path)
            self._drop(path)

    def make_dir(self, path: str) -> None:
        with self._mutex:
            if path in self._files or path in self._directories:
                raise _error(errno.EEXIST, path)
            self._parent(path)
            self._directories.add(path)

    def remove_dir(self, path: str) -> None:
        with self._mutex:
            if self._names(path):
                raise _error(errno.ENOTEMPTY, path)
            self._directories.discard(path)

    def lock(self, path: str) -> int:
        with self._mutex:
            if path in self._locks.values():
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
            fd = os.dup(self._file(path)) if path in self._files else self._create(path)
            self._locks[fd] = path
            return fd

    def close(self, fd: int) -> None:
        with self._mutex:
            self._locks.pop(fd, None)
        super().close(fd)

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            return self._names(path)

    def stat(self, path: str) -> FileStat:
        with self._mutex:
            if path in self._directories:
                return FileStat(0, 0, 0)
            return self.fstat(self._file(path))

    def free_bytes(self, path: str) -> int:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return 0

    def lock_owner(self, path: str) -> int | None:
        with self._mutex:
            return os.getpid() if path in self._locks.values() else None

    def release(self) -> None:
        """Remove all files."""
        with self._mutex:
            for path in list(self._files):
                self._drop(path)

    def _create(self, path: str) -> int:
        if path in self._files or path in self._directories:
            raise _error(errno.EEXIST, path)
        self._parent(path)
        fd = os.memfd_create("topicsd", os.MFD_CLOEXEC)
        self._files[path] = fd
        return os.dup(fd)

    def _file(self, path: str) -> int:
        if path in self._directories:
            raise _error(errno.EISDIR, path)
        fd = self._files.get(path)
        if fd is None:
            self._parent(path)
            raise _error(errno.ENOENT, path)
        return fd

    def _parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent in self._files:
            raise _error(errno.ENOTDIR, path)
        if parent not in self._directories:
            raise _error(errno.ENOENT, path)

    def _names(self, path: str) -> list[str]:
        if path in self._files:
            raise _error(errno.ENOTDIR, path)
        if path not in self._directories:
            raise _error(errno.ENOENT, path)
        return sorted(
            os.path.basename(one)
            for one in (*self._files, *self._directories)
            if os.path.dirname(one) == path and one != path
        )

    def _drop(self, path: str) -> None:
        fd = self._files.pop(path, None)
        if fd is not None:
            RealFs.close(self, fd)

    def _move(self, source: str, target: str) -> None:
        if source in self._files:
            self._files[target] = self._files.pop(source)
        else:
            self._directories.discard(source)
            self._directories.add(target)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
