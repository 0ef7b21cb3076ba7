"""Files in memory: the same calls and the same errors as on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.memory_fs import MemoryFs


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Fs, str]]:
    """An empty directory; each test runs on both, and neither may differ."""
    if request.param == "disk":
        yield RealFs(), str(tmp_path)
        return
    fs = MemoryFs()
    fs.make_dir("/d")
    before = len(os.listdir("/proc/self/fd"))
    yield fs, "/d"
    for name in fs.list_dir("/d"):
        if not name.startswith("dir"):
            fs.unlink(f"/d/{name}")
    assert len(os.listdir("/proc/self/fd")) <= before


def written(fs: Fs, path: str, data: bytes) -> None:
    fd = fs.create(path)
    fs.pwrite(fd, data, 0)
    fs.close(fd)


def content(fs: Fs, path: str) -> bytes:
    fd = fs.open_read(path)
    try:
        return fs.pread(fd, 100, 0)
    finally:
        fs.close(fd)


def test_a_file_is_written_and_read(place: tuple[Fs, str]) -> None:
    fs, d = place
    written(fs, f"{d}/a", b"abc")
    assert content(fs, f"{d}/a") == b"abc"
    fd = fs.open_write(f"{d}/a")
    fs.allocate(fd, 10)
    assert fs.fstat(fd).size == fs.stat(f"{d}/a").size == 10
    fs.truncate(fd, 2)
    fs.sync_data(fd)
    fs.drop_cache(fd)
    fs.close(fd)
    fs.sync_dir(d)
    assert content(fs, f"{d}/a") == b"ab"
    assert fs.free_bytes(d) > 0


def test_names_move_and_go(place: tuple[Fs, str]) -> None:
    fs, d = place
    written(fs, f"{d}/a", b"a")
    written(fs, f"{d}/b", b"b")
    inode = fs.stat(f"{d}/a").inode
    fs.rename(f"{d}/a", f"{d}/b")
    assert fs.list_dir(d) == ["b"]
    assert (content(fs, f"{d}/b"), fs.stat(f"{d}/b").inode) == (b"a", inode)
    fs.link(f"{d}/b", f"{d}/c")
    assert fs.stat(f"{d}/c").inode == inode
    fd = fs.open_read(f"{d}/c")
    fs.unlink(f"{d}/b")
    fs.unlink(f"{d}/c")
    assert fs.pread(fd, 10, 0) == b"a"
    fs.close(fd)
    assert fs.list_dir(d) == []


def test_a_directory_moves_with_what_is_in_it(place: tuple[Fs, str]) -> None:
    fs, d = place
    fs.make_dir(f"{d}/dir")
    fs.make_dir(f"{d}/dir/below")
    written(fs, f"{d}/dir/below/a", b"a")
    fs.rename(f"{d}/dir", f"{d}/dir2")
    assert fs.list_dir(d) == ["dir2"]
    assert content(fs, f"{d}/dir2/below/a") == b"a"
    with pytest.raises(OSError, match="not empty"):
        fs.remove_dir(f"{d}/dir2")
    fs.unlink(f"{d}/dir2/below/a")
    fs.remove_dir(f"{d}/dir2/below")
    fs.remove_dir(f"{d}/dir2")
    assert fs.list_dir(d) == []


def test_what_cannot_be_is_the_error_of_a_disk(place: tuple[Fs, str]) -> None:
    fs, d = place
    written(fs, f"{d}/a", b"a")
    fs.make_dir(f"{d}/dir")
    for error, call, path in (
        (FileExistsError, fs.create, f"{d}/a"),
        (FileExistsError, fs.make_dir, f"{d}/dir"),
        (FileNotFoundError, fs.create, f"{d}/none/a"),
        (FileNotFoundError, fs.open_read, f"{d}/none"),
        (FileNotFoundError, fs.open_write, f"{d}/none"),
        (FileNotFoundError, fs.unlink, f"{d}/none"),
        (FileNotFoundError, fs.stat, f"{d}/none"),
        (FileNotFoundError, fs.list_dir, f"{d}/none"),
        (NotADirectoryError, fs.list_dir, f"{d}/a"),
        (NotADirectoryError, fs.create, f"{d}/a/b"),
        (IsADirectoryError, fs.open_write, f"{d}/dir"),
    ):
        with pytest.raises(error):
            call(path)
    with pytest.raises(FileExistsError):
        fs.link(f"{d}/a", f"{d}/dir")
    with pytest.raises(FileNotFoundError):
        fs.rename(f"{d}/none", f"{d}/b")


def test_a_lock_is_held_until_it_is_closed(place: tuple[Fs, str]) -> None:
    fs, d = place
    fd = fs.lock(f"{d}/LOCK")
    with pytest.raises(BlockingIOError):
        fs.lock(f"{d}/LOCK")
    assert fs.lock_owner(f"{d}/LOCK") == os.getpid()
    fs.close(fd)
    assert fs.lock_owner(f"{d}/LOCK") is None
    fs.close(fs.lock(f"{d}/LOCK"))
