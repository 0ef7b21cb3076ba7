"""An in-memory disk with the interface `Fs` that distinguishes written from synced bytes.

Promises: it answers as the kernel does (short reads at the end, errno for errno), and keeps two images: the
page cache that calls see and the media that a power cut leaves. `cut_power_after(n)` allows n more mutating
calls. The next one is in flight when the power fails: it raises `PowerCut` and its effect is pending like
everything unsynced, so an outcome may have all, a part or nothing of it. After it every call raises except
`close`, which changes nothing and is called during cleanup. Calls that only read still answer before it, so a
script that acknowledges after its n-th call has acknowledged everything it could. With n = 0 the first call
is in flight; with n = all calls of the script nothing raises, and the outcome is taken after the last one.

The complete model: sectors and sizes are in `memory_file`, names in `memory_names`, outcomes in `power_cut`,
faults in `faults`, endings in `memory_machine`. Space is counted by file sizes (an extension takes its space
at once); a file without a name frees its space with its last descriptor. A failed `sync_dir` leaves names
pending. Symbolic links, permissions, other mounts and `..` do not exist here.
"""

from __future__ import annotations

import errno

from tests.harness.machine.memory_file import MemoryFile
from tests.harness.machine.memory_machine import MemoryMachine, looking, mutating, posix_error
from topicsd.disk.fs import FileStat

_DEVICE = 0x801
_PROCESS = 4711
_DIRECTORY_BYTES = 4096
_FREE_UNLIMITED = 1 << 40


class MemoryDisk(MemoryMachine):
    """An `Fs` in memory."""

    # Mutating calls of Fs.

    @mutating
    def create(self, path: str) -> int:
        return self._opened(self.new_file(path, self.calls), path, writable=True)

    @mutating
    def open_write(self, path: str) -> int:
        return self._opened(self.file_at(path), path, writable=True)

    @mutating
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        file = self._of(fd, writing=True).file
        if offset < 0:
            raise posix_error(errno.EINVAL)
        room = self.room_bytes() + file.size - offset
        if data and room <= 0 and offset + len(data) > file.size:
            raise posix_error(errno.ENOSPC)
        taken = data[:room] if len(data) > room and offset + len(data) > file.size else data
        before = file.size
        file.write(taken, offset, self.calls)
        self.used_bytes += file.size - before
        return len(taken)

    @mutating
    def allocate(self, fd: int, size: int) -> None:
        file = self._of(fd, writing=True).file
        if size <= 0:
            raise posix_error(errno.EINVAL)
        if size > file.size:
            self._resize(file, size)

    @mutating
    def truncate(self, fd: int, size: int) -> None:
        file = self._of(fd, writing=True).file
        if size < 0:
            raise posix_error(errno.EINVAL)
        self._resize(file, size)

    def _resize(self, file: MemoryFile, size: int) -> None:
        if size - file.size > self.room_bytes():
            raise posix_error(errno.ENOSPC)
        self.used_bytes += size - file.size
        file.resize(size, self.calls)

    @mutating
    def sync_data(self, fd: int) -> None:
        self._of(fd).file.sync()

    @mutating
    def sync_dir(self, path: str) -> None:
        self.names.sync(self.directory_at(path))

    @mutating
    def rename(self, source: str, target: str) -> None:
        self.move(source, target, self.calls)

    @mutating
    def link(self, source: str, target: str) -> None:
        self.add_name(source, target, self.calls)

    @mutating
    def unlink(self, path: str) -> None:
        self.take_name(path, self.calls)

    @mutating
    def make_dir(self, path: str) -> None:
        self.new_directory(path, self.calls)

    @mutating
    def remove_dir(self, path: str) -> None:
        self.take_directory(path, self.calls)

    @mutating
    def drop_cache(self, fd: int) -> None:
        self._of(fd).file.drop_cache()

    @mutating
    def lock(self, path: str) -> int:
        try:
            file = self.file_at(path)
        except FileNotFoundError:
            file = self.new_file(path, self.calls)
        if file.inode in self._locks:
            raise posix_error(errno.EWOULDBLOCK)
        fd = self._opened(file, path, writable=True)
        self._locks[file.inode] = fd
        return fd

    # Read-only calls of Fs.

    @looking
    def open_read(self, path: str) -> int:
        return self._opened(self.file_at(path), path, writable=False)

    @looking
    def close(self, fd: int) -> None:
        file = self._of(fd).file
        del self.open_files[fd]
        if self._locks.get(file.inode) == fd:
            del self._locks[file.inode]
        file.opens -= 1
        self.release(file)

    @looking
    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._of(fd).file.read(size, offset)

    @looking
    def list_dir(self, path: str) -> list[str]:
        return sorted(self.names.seen[self.directory_at(path)])

    @looking
    def stat(self, path: str) -> FileStat:
        inode = self.inode_at(path)
        file = self.files.get(inode)
        return FileStat(_DIRECTORY_BYTES if file is None else file.size, _DEVICE, inode)

    @looking
    def fstat(self, fd: int) -> FileStat:
        file = self._of(fd).file
        return FileStat(file.size, _DEVICE, file.inode)

    @looking
    def free_bytes(self, path: str) -> int:
        self.inode_at(path)
        return _FREE_UNLIMITED if self.space_bytes is None else max(0, self.room_bytes())

    @looking
    def lock_owner(self, path: str) -> int | None:
        try:
            return _PROCESS if self.file_at(path).inode in self._locks else None
        except FileNotFoundError:
            return None

    @looking
    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boot:012d}"
