from __future__ import annotations

import errno
import inspect
from typing import Any

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs
from topicsd.disk.read_only_fs import ReadOnlyFs

# The calls of `Fs` behind which the disk is as it was.
LOOKS = {"open_read", "close", "pread", "list_dir", "stat", "fstat", "free_bytes", "lock_owner", "boot_id"}


def disk_with(content: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    fd = disk.create("/file")
    disk.pwrite(fd, content, 0)
    disk.close(fd)
    return disk


@pytest.mark.parametrize("name", sorted(name for name in vars(Fs) if not name.startswith("_")))
def test_every_call_looks_or_is_refused(name: str) -> None:
    disk = disk_with(b"content")
    fs: Any = ReadOnlyFs(disk)
    count = len(inspect.signature(getattr(Fs, name)).parameters) - 1
    calls = disk.calls
    if name in LOOKS:
        fd = fs.open_read("/file")
        arguments = {"pread": (fd, 7, 0), "close": (fd,), "fstat": (fd,), "boot_id": (), "list_dir": ("/",)}
        getattr(fs, name)(*arguments.get(name, ("/file",)))
    else:
        with pytest.raises(AssertionError, match="read-only command"):
            getattr(fs, name)(*["/file"] * count)
    assert disk.calls == calls


def test_reads_are_reported() -> None:
    reads: list[int] = []
    fs = ReadOnlyFs(disk_with(b"content"), reads.append)
    fd = fs.open_read("/file")
    assert fs.pread(fd, 4, 0) + fs.pread(fd, 100, 4) == b"content"
    assert reads == [4, 3]


def test_an_error_names_the_file_and_the_offset() -> None:
    disk = disk_with(b"content")
    fs = ReadOnlyFs(disk)
    fd = fs.open_read("/file")
    disk.fail("pread", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as failed:
        fs.pread(fd, 4, 3)
    assert (failed.value.errno, failed.value.filename) == (errno.EIO, "/file at offset 3")
