"""`Fs`, the interface for every disk call, and `RealFs`, which passes the calls to the kernel.

Why an interface: the log's guarantees depend on the order of writes, syncs and renames. The tests replace the
disk by one in memory, cut its power after any call, tear unsynced data, and return EIO or ENOSPC, without a
fault switch in this code.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple, Protocol


class FileStat(NamedTuple):
    """Size, identity and age of a file; a copy has another inode, a renamed file keeps its inode."""

    size: int
    device: int
    inode: int
    modified_ms: int = 0


class Fs(Protocol):
    """The disk calls; those from `create` to `lock` change something, the rest only read."""

    def create(self, path: str) -> int:
        """Make a new file and open it for reading and writing; FileExistsError if the name is taken."""
        ...

    def open_write(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        ...

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write at `offset`; return the number of bytes written, which may be less than all."""
        ...

    def allocate(self, fd: int, size: int) -> None:
        """Allocate `size` bytes of zeros, so that later writes cannot run out of space."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync_data(self, fd: int) -> None:
        """Make the file's bytes and size survive a power cut; `sync_dir` does so for its name."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power cut."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file, replacing the target in one step."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError when the name is taken."""
        ...

    def unlink(self, path: str) -> None: ...

    def make_dir(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; OSError with ENOTEMPTY when it has entries."""
        ...

    def drop_cache(self, fd: int) -> None:
        """Drop the clean pages of a file, so that the next read asks the media."""
        ...

    def lock(self, path: str) -> int:
        """Lock a file for this process while the fd is open; BlockingIOError if it is locked."""
        ...

    def open_read(self, path: str) -> int: ...

    def close(self, fd: int) -> None: ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def stat(self, path: str) -> FileStat: ...

    def fstat(self, fd: int) -> FileStat: ...

    def free_bytes(self, path: str) -> int: ...

    def lock_owner(self, path: str) -> int | None:
        """Return the process that holds the lock file, or None if none is visible; takes no lock."""
        ...

    def boot_id(self) -> str:
        """Return the id of the machine's current boot."""
        ...


class RealFs:
    """The kernel's file system."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def open_write(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_dir(self, path: str) -> None:
        os.mkdir(path, 0o750)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def drop_cache(self, fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        # A signal or the 2 GiB limit of one call can end a read before the end of the file.
        chunks = [data]
        done = len(data)
        while done < size:
            data = os.pread(fd, size - done, offset + done)
            if not data:
                break
            chunks.append(data)
            done += len(data)
        return b"".join(chunks)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def stat(self, path: str) -> FileStat:
        result = os.stat(path, follow_symlinks=False)
        return FileStat(result.st_size, result.st_dev, result.st_ino, result.st_mtime_ns // 1_000_000)

    def fstat(self, fd: int) -> FileStat:
        result = os.fstat(fd)
        return FileStat(result.st_size, result.st_dev, result.st_ino, result.st_mtime_ns // 1_000_000)

    def free_bytes(self, path: str) -> int:
        result = os.statvfs(path)
        return result.f_bavail * result.f_frsize

    def lock_owner(self, path: str) -> int | None:
        try:
            lock_stat = os.stat(path, follow_symlinks=False)
            with open("/proc/locks", encoding="ascii") as file:
                lines = file.readlines()
        except FileNotFoundError:
            return None
        lock_id = f"{os.major(lock_stat.st_dev):02x}:{os.minor(lock_stat.st_dev):02x}:{lock_stat.st_ino}"
        for line in lines:
            # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:9978065 0 EOF"; a lock that waits begins with "->".
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == lock_id:
                return int(fields[4])
        return None

    def boot_id(self) -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
