"""The disk in memory answers like the kernel and fails like machines."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs, RealFs


def _disk_with(path: str, data: bytes) -> tuple[MemoryDisk, int]:
    disk = MemoryDisk()
    disk.write_file(path, data)
    return disk, disk.open_write(path)


def _errno_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def _answers(fs: Fs, root: str) -> list[object]:
    """Run a script of calls, most of them invalid; every disk gives the same answers."""
    wal = f"{root}/wal"
    fs.make_dir(wal)
    fd = fs.create(f"{wal}/a")
    written = fs.pwrite(fd, memoryview(b"hello world"), 3)
    fs.allocate(fd, 4096)
    fs.allocate(fd, 10)
    reading = fs.open_read(f"{wal}/a")
    answers: list[object] = [
        written,
        fs.pread(reading, 8, 0),
        fs.pread(reading, 100, 4090),
        fs.fstat(fd).size,
    ]
    fs.truncate(fd, 6)
    fs.truncate(fd, 9)
    answers += [fs.pread(fd, 100, 0), fs.pread(fd, 10, 9), fs.pread(fd, 10, 100)]
    fs.link(f"{wal}/a", f"{wal}/b")
    answers += [fs.stat(f"{wal}/b").inode == fs.fstat(fd).inode, fs.list_dir(wal)]
    fs.rename(f"{wal}/a", f"{wal}/b")  # Two names of one file: no effect.
    answers.append(fs.list_dir(wal))
    fs.unlink(f"{wal}/a")
    fs.rename(f"{wal}/b", f"{wal}/c")
    fs.make_dir(f"{root}/empty")
    fs.remove_dir(f"{root}/empty")
    answers.append(fs.list_dir(root))
    fs.make_dir(f"{root}/full")
    fs.close(fs.create(f"{root}/full/x"))
    holding = fs.lock(f"{root}/LOCK")
    wrong: list[Callable[[], object]] = [
        lambda: fs.create(f"{wal}/c"),
        lambda: fs.create(f"{root}/no/c"),
        lambda: fs.create(f"{wal}/c/d"),
        lambda: fs.open_write(f"{wal}/gone"),
        lambda: fs.open_write(wal),
        lambda: fs.pwrite(reading, b"x", 0),
        lambda: fs.link(f"{wal}/c", f"{wal}/c"),
        lambda: fs.link(f"{wal}/gone", f"{wal}/d"),
        lambda: fs.link(wal, f"{root}/d"),
        lambda: fs.rename(f"{wal}/gone", f"{wal}/c"),
        lambda: fs.rename(f"{wal}/c", wal),
        lambda: fs.rename(wal, f"{wal}/inner"),
        lambda: fs.rename(wal, f"{wal}/c"),
        lambda: fs.rename(wal, f"{root}/LOCK"),
        lambda: fs.rename(wal, f"{root}/full"),
        lambda: fs.unlink(f"{wal}/gone"),
        lambda: fs.unlink(wal),
        lambda: fs.remove_dir(f"{root}/full"),
        lambda: fs.remove_dir(f"{root}/no"),
        lambda: fs.remove_dir(f"{root}/LOCK"),
        lambda: fs.make_dir(wal),
        lambda: fs.make_dir(f"{root}/no/dir"),
        lambda: fs.list_dir(f"{wal}/c"),
        lambda: fs.list_dir(f"{root}/no"),
        lambda: fs.sync_dir(f"{wal}/c"),
        lambda: fs.stat(f"{wal}/c/d"),
        lambda: fs.lock(f"{root}/LOCK"),
        lambda: fs.allocate(fd, 0),
        lambda: fs.truncate(fd, -1),
    ]
    answers += [_errno_of(call) for call in wrong]
    fs.close(holding)
    fs.close(fs.lock(f"{root}/LOCK"))
    fs.close(fd)
    answers += [_errno_of(lambda: fs.close(fd)), _errno_of(lambda: fs.pread(fd, 1, 0)), fs.list_dir(root)]
    return answers


def test_valid_and_invalid_calls_are_answered_as_by_the_kernel(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    assert _answers(disk, "/data") == _answers(RealFs(), str(tmp_path))


def test_errors_have_the_subclasses_that_python_raises() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/d")
    disk.write_file("/a", b"")
    with pytest.raises(FileExistsError):
        disk.create("/a")
    with pytest.raises(NotADirectoryError):
        disk.list_dir("/a")
    with pytest.raises(IsADirectoryError):
        disk.open_write("/d")
    disk.lock("/L")
    with pytest.raises(BlockingIOError):
        disk.lock("/L")


def test_a_process_kill_keeps_the_page_cache_the_boot_and_the_inodes_and_frees_locks() -> None:
    disk = MemoryDisk()
    fd = disk.create("/a")
    disk.pwrite(fd, b"unsynced", 0)
    disk.lock("/LOCK")
    after = disk.after_process_kill()
    assert after.read_file("/a") == b"unsynced"
    assert after.boot_id() == disk.boot_id()
    assert after.stat("/a") == disk.stat("/a")
    after.lock("/LOCK")
    with pytest.raises(OSError, match="Bad file descriptor"):
        after.pread(fd, 1, 0)
    outcomes = {after.after_power_cut(Random(seed)).tree() == [] for seed in range(20)}
    assert True in outcomes, "unsynced data stays unsynced"


def test_a_planned_reboot_writes_back_everything_and_is_another_boot() -> None:
    disk = MemoryDisk()
    disk.pwrite(disk.create("/a"), b"unsynced", 0)
    after = disk.after_reboot()
    assert after.boot_id() != disk.boot_id()
    assert after.stat("/a").inode == disk.stat("/a").inode
    for seed in range(10):
        assert after.after_power_cut(Random(seed)).read_file("/a") == b"unsynced"


def test_a_copy_has_the_readable_contents_other_inodes_and_the_same_boot() -> None:
    disk = MemoryDisk()
    disk.make_dir("/d")
    disk.pwrite(disk.create("/d/a"), b"unsynced", 0)
    disk.link("/d/a", "/d/b")
    copy = disk.copied()
    assert copy.tree() == disk.tree() == ["/d/", "/d/a", "/d/b"]
    assert copy.boot_id() == disk.boot_id()
    inodes = {disk.stat(path).inode for path in ("/d", "/d/a")}
    assert inodes.isdisjoint({copy.stat(path).inode for path in ("/d", "/d/a")})
    assert copy.after_power_cut(Random(0)).read_file("/d/a") == b"unsynced"
    disk.write_file("/d/a", b"is written alone")
    assert copy.read_file("/d/a") == b"unsynced"


def test_a_new_file_never_gets_an_inode_that_was_used_before() -> None:
    disk = MemoryDisk()
    disk.close(disk.create("/a"))
    inode = disk.stat("/a").inode
    disk.unlink("/a")
    for after in (disk, disk.after_power_cut(Random(1)), disk.after_reboot(), disk.copied()):
        assert after.fstat(after.create("/b")).inode > inode


def test_space_returns_with_the_last_descriptor_of_an_unlinked_file() -> None:
    disk = MemoryDisk(space_bytes=1000)
    first = disk.create("/a")
    disk.allocate(first, 600)
    second = disk.create("/b")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk.allocate(second, 500)
    assert disk.fstat(second).size == 0
    assert disk.pwrite(second, bytes(500), 0) == 400, "data that fits is accepted"
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk.pwrite(second, b"x", 400)
    assert disk.pwrite(first, bytes(600), 0) == 600, "allocated space stays usable"
    disk.unlink("/a")
    assert disk.free_bytes("/") == 0
    disk.close(first)
    assert disk.free_bytes("/") == 600
    disk.allocate(second, 1000)
    assert disk.after_process_kill().free_bytes("/") == 0
    assert disk.after_reboot().free_bytes("/") == 0


def test_flip_changes_one_byte_for_readers_and_for_the_media() -> None:
    disk, fd = _disk_with("/a", b"abc")
    disk.flip("/a", 1, 0x01)
    assert disk.pread(fd, 3, 0) == b"acc"
    assert disk.after_power_cut(Random(0)).read_file("/a") == b"acc"
    disk.pwrite(fd, b"xyz", 0)
    disk.flip("/a", 0, 0xFF)
    disk.sync_data(fd)
    assert disk.read_media("/a") == disk.read_file("/a") == b"\x87yz"


def test_only_mutating_calls_are_counted_and_traced() -> None:
    disk = MemoryDisk(traced=True)
    fd = disk.create("/a")
    disk.pwrite(fd, b"abc", 7)
    disk.pread(fd, 10, 0)
    disk.sync_data(fd)
    assert disk.calls == 3
    assert disk.trace == [("create", "/a"), ("pwrite", "/a 3 bytes 7"), ("sync_data", "/a")]


def test_tree_lists_directories_and_files() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/d/e")
    disk.write_file("/d/e/f", b"1")
    assert disk.tree() == ["/d/", "/d/e/", "/d/e/f"]
    assert disk.all_files() == ["/d/e/f"]


@pytest.mark.parametrize("seed", range(8))
def test_random_writes_match_the_kernel_and_survive_after_a_sync(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    disk, real = MemoryDisk(), RealFs()
    mine, theirs = disk.create("/a"), real.create(str(tmp_path / "a"))
    disk.sync_dir("/")
    for _ in range(60):
        at, size = rng.randrange(4000), rng.randrange(1, 1500)
        action = rng.choice(("pwrite", "pwrite", "pwrite", "truncate", "allocate", "sync", "drop"))
        for fs, fd in ((disk, mine), (real, theirs)):
            if action == "pwrite":
                fs.pwrite(fd, bytes([1 + at % 255]) * size, at)
            elif action == "truncate":
                fs.truncate(fd, at)
            elif action == "allocate":
                fs.allocate(fd, at + 1)
            elif action == "drop":
                fs.drop_cache(fd)
            else:
                fs.sync_data(fd)
        expected = real.pread(theirs, 10_000, 0)
        assert disk.pread(mine, 10_000, 0) == expected
        if action == "sync":
            assert disk.read_media("/a") == expected
            assert disk.after_power_cut(rng).read_file("/a") == expected
        assert disk.after_reboot().read_file("/a") == expected
        assert disk.copied().read_file("/a") == expected
        assert len(disk.after_power_cut(rng).read_file("/a")) <= 5500
    real.close(theirs)
