"""The files of the in-memory disk under their paths, without descriptors and faults.

Promises: paths lead to inodes as in the kernel, with its errno for each failure; every change of a name is
passed to `Names` as one operation; links and used space are counted. `write_file`, `read_file`, `flip` and
`tree` are for tests: they make no calls and work on a disk whose power is gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tests.harness.machine.memory_file import MemoryFile
from tests.harness.machine.memory_names import ROOT, Entry, Names, Tree

_ROOM_UNLIMITED = 1 << 62


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class MemoryTree:
    def __init__(self, space_bytes: int | None) -> None:
        self.space_bytes = space_bytes
        self.used_bytes = 0
        self.names = Names()
        self.files: dict[int, MemoryFile] = {}
        self.inode_next = ROOT + 1

    def adopt(self, tree: Tree, file_of: Callable[[int], MemoryFile]) -> None:
        """Take over these names, all durable, and create the file of each inode they lead to."""
        self.names = Names({directory: dict(names) for directory, names in tree.items()})
        for names in tree.values():
            for inode in names.values():
                if inode in tree:
                    continue
                if inode not in self.files:
                    self.files[inode] = file_of(inode)
                    self.used_bytes += self.files[inode].size
                self.files[inode].links += 1

    # Direct access for tests.

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file, name and bytes durable, replacing an existing one."""
        try:
            file = self.file_at(path)
        except FileNotFoundError:
            file = self.new_file(path, 0, durable=True)
        self.used_bytes += len(data) - file.size
        file.resize(0, 0)
        file.write(data, 0, 0)
        file.sync()

    def read_file(self, path: str) -> bytes:
        """Return the bytes that reads see."""
        file = self.file_at(path)
        return file.read(file.size, 0)

    def read_media(self, path: str) -> bytes:
        """Return the bytes that were surely synced; a power cut may leave more."""
        file = self.file_at(path)
        return bytes(file.media[: file.media_size]).ljust(file.media_size, b"\0")

    def make_dirs(self, path: str) -> None:
        """Create missing directories, durable."""
        made = ""
        for part in _parts(path):
            made += "/" + part
            try:
                self.directory_at(made)
            except FileNotFoundError:
                self.new_directory(made, 0, durable=True)

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte."""
        self.file_at(path).flip(offset, mask)

    def tree(self) -> list[str]:
        """Return every path, sorted; a directory ends with a slash."""
        paths: list[str] = []
        todo = [(ROOT, "")]
        while todo:
            directory, above = todo.pop()
            for name, inode in self.names.seen[directory].items():
                is_directory = inode in self.names.seen
                paths.append(f"{above}/{name}" + "/" * is_directory)
                if is_directory:
                    todo.append((inode, f"{above}/{name}"))
        return sorted(paths)

    def all_files(self) -> list[str]:
        return [path for path in self.tree() if not path.endswith("/")]

    # Paths.

    def inode_at(self, path: str) -> int:
        seen = self.names.seen
        inode = ROOT
        for part in _parts(path):
            names = seen.get(inode)
            if names is None:
                raise _error(errno.ENOTDIR, path)
            child = names.get(part)
            if child is None:
                raise _error(errno.ENOENT, path)
            inode = child
        return inode

    def file_at(self, path: str) -> MemoryFile:
        file = self.files.get(self.inode_at(path))
        if file is None:
            raise _error(errno.EISDIR, path)
        return file

    def directory_at(self, path: str) -> int:
        inode = self.inode_at(path)
        if inode not in self.names.seen:
            raise _error(errno.ENOTDIR, path)
        return inode

    def _entry(self, path: str) -> Entry:
        above, _, name = path.rstrip("/").rpartition("/")
        if not name:
            raise _error(errno.EBUSY, path)
        return self.directory_at(above), name

    # Names.

    def new_file(self, path: str, stamp: int, *, durable: bool = False) -> MemoryFile:
        entry = self._free_entry(path)
        file = self.files[self.inode_next] = MemoryFile(self.inode_next)
        self.inode_next += 1
        file.links = 1
        self.names.apply(stamp, {entry: file.inode}, durable=durable)
        return file

    def new_directory(self, path: str, stamp: int, *, durable: bool = False) -> None:
        entry = self._free_entry(path)
        self.names.add_directory(self.inode_next)
        self.names.apply(stamp, {entry: self.inode_next}, durable=durable)
        self.inode_next += 1

    def add_name(self, source: str, target: str, stamp: int) -> None:
        inode = self.inode_at(source)
        if inode in self.names.seen:
            raise _error(errno.EPERM, source)
        entry = self._free_entry(target)
        self.files[inode].links += 1
        self.names.apply(stamp, {entry: inode}, [self._entry(source)])

    def take_name(self, path: str, stamp: int) -> None:
        file = self.file_at(path)
        entry = self._entry(path)
        self.names.apply(stamp, {entry: None}, [entry])
        file.links -= 1
        self.release(file)

    def take_directory(self, path: str, stamp: int) -> None:
        if self.names.seen[self.directory_at(path)]:
            raise _error(errno.ENOTEMPTY, path)
        entry = self._entry(path)
        self.names.apply(stamp, {entry: None}, [entry])

    def move(self, source: str, target: str, stamp: int) -> None:
        inode = self.inode_at(source)
        origin, entry = self._entry(source), self._entry(target)
        seen = self.names.seen
        replaced = seen[entry[0]].get(entry[1])
        if replaced == inode:
            return
        if inode in seen and f"{target}/".startswith(source.rstrip("/") + "/"):
            raise _error(errno.EINVAL, target)
        if f"{source}/".startswith(target.rstrip("/") + "/"):
            raise _error(errno.ENOTEMPTY, target)
        if replaced is not None:
            if replaced in seen and inode not in seen:
                raise _error(errno.EISDIR, target)
            if replaced not in seen and inode in seen:
                raise _error(errno.ENOTDIR, target)
            if seen.get(replaced):
                raise _error(errno.ENOTEMPTY, target)
        self.names.apply(stamp, {origin: None, entry: inode}, [origin])
        if replaced in self.files:
            self.files[replaced].links -= 1
            self.release(self.files[replaced])

    def _free_entry(self, path: str) -> Entry:
        directory, name = self._entry(path)
        if name in self.names.seen[directory]:
            raise _error(errno.EEXIST, path)
        return directory, name

    # Space.

    def room_bytes(self) -> int:
        return _ROOM_UNLIMITED if self.space_bytes is None else self.space_bytes - self.used_bytes

    def release(self, file: MemoryFile) -> None:
        """Free the space of a file that is unreachable. A power cut may still restore the file."""
        if not file.links and not file.opens:
            self.used_bytes -= file.size


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != "."]
    assert ".." not in parts, f"paths with .. are not supported: {path}"
    return parts
