"""The n-th call fails once or always, and a failed sync behaves as on ext4."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.machine.memory_file import SECTOR_BYTES


def _file(data: bytes) -> tuple[MemoryDisk, int]:
    disk = MemoryDisk()
    disk.write_file("/a", data)
    return disk, disk.open_write("/a")


def test_a_failed_sync_marks_pages_clean_and_the_next_one_lies() -> None:
    disk, fd = _file(b"o" * 2000)
    disk.pwrite(fd, b"n" * 2000, 0)
    disk.fail("sync_data")
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync_data(fd)
    assert disk.pread(fd, 2000, 0) == b"n" * 2000, "the page cache still has it"
    disk.sync_data(fd)
    assert disk.read_media("/a") == b"o" * 2000, "the successful sync wrote nothing"
    for seed in range(10):
        assert disk.after_power_cut(Random(seed)).read_file("/a") == b"o" * 2000
    assert disk.after_reboot().read_file("/a") == b"o" * 2000
    restarted = disk.after_process_kill()
    assert restarted.read_file("/a") == b"n" * 2000
    reading = restarted.open_read("/a")
    restarted.drop_cache(reading)
    assert restarted.pread(reading, 2000, 0) == b"o" * 2000


def test_a_sector_written_again_after_a_failed_sync_reaches_the_media_alone() -> None:
    disk, fd = _file(b"o" * 4 * SECTOR_BYTES)
    disk.pwrite(fd, b"n" * 4 * SECTOR_BYTES, 0)
    disk.fail("sync_data")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_data(fd)
    disk.pwrite(fd, b"m", SECTOR_BYTES)
    disk.drop_cache(fd)
    kept = b"o" * SECTOR_BYTES + b"m" + b"n" * (SECTOR_BYTES - 1) + b"o" * 2 * SECTOR_BYTES
    assert disk.pread(fd, 4 * SECTOR_BYTES, 0) == kept
    disk.sync_data(fd)
    assert disk.read_media("/a") == kept


def test_some_sectors_may_have_reached_the_media_before_the_sync_failed() -> None:
    shares = set()
    for seed in range(20):
        disk, fd = _file(b"o" * 8 * SECTOR_BYTES)
        disk.pwrite(fd, b"n" * 8 * SECTOR_BYTES, 0)
        disk.fail("sync_data", seed=seed)
        with pytest.raises(OSError, match="Input/output"):
            disk.sync_data(fd)
        shares.add(disk.read_media("/a").count(b"n") // SECTOR_BYTES)
    assert 0 in shares
    assert len(shares) > 3


def test_the_size_of_a_failed_sync_comes_with_the_next_one_and_its_bytes_do_not() -> None:
    disk, fd = _file(b"")
    disk.pwrite(fd, b"n" * 1000, 0)
    disk.fail("sync_data")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_data(fd)
    assert {after.read_file("/a") for after in map(disk.after_power_cut, map(Random, range(40)))} == {
        b"",
        bytes(1000),
    }
    disk.sync_data(fd)
    assert disk.after_power_cut(Random(0)).read_file("/a") == bytes(1000)


def test_the_nth_call_of_a_name_fails_once_or_always() -> None:
    disk, fd = _file(b"")
    once = disk.fail("pwrite", nth=2)
    assert disk.pwrite(fd, b"1", 0) == 1
    with pytest.raises(OSError, match="Input/output"):
        disk.pwrite(fd, b"2", 1)
    assert disk.pwrite(fd, b"3", 1) == 1
    assert once.fired == 1
    assert disk.read_file("/a") == b"13"
    disk.clear_faults()
    disk.fail("pwrite", nth=2, error=errno.ENOSPC, forever=True)
    assert disk.pwrite(fd, b"4", 2) == 1
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            disk.pwrite(fd, b"5", 3)
    disk.sync_data(fd)


def test_the_nth_mutating_call_fails_and_changes_nothing() -> None:
    disk = MemoryDisk()
    disk.fail(nth=2, error=errno.ENOSPC)
    fd = disk.create("/a")
    disk.pread(fd, 1, 0)
    with pytest.raises(OSError, match="No space"):
        disk.allocate(fd, 4096)
    assert disk.fstat(fd).size == 0
    disk.rename("/a", "/b")


def test_a_read_fails_by_its_name() -> None:
    disk, fd = _file(b"abc")
    disk.fail("pread", nth=2, forever=True)
    assert disk.pread(fd, 3, 0) == b"abc"
    with pytest.raises(OSError, match="Input/output"):
        disk.pread(fd, 3, 0)


def test_a_short_write_writes_half_the_given_size_or_nothing() -> None:
    disk, fd = _file(b"")
    disk.fail(nth=1, short=True)
    disk.sync_data(fd)
    assert disk.pwrite(fd, b"abcdef", 0) == 3
    disk.fail("pwrite", short=True, short_bytes=5)
    assert disk.pwrite(fd, b"ABCDEF", 0) == 5
    disk.fail("pwrite", short=True, short_bytes=0)
    assert disk.pwrite(fd, b"xxxxxx", 0) == 0
    assert disk.read_file("/a") == b"ABCDE"


def test_names_stay_pending_when_the_sync_of_their_directory_failed() -> None:
    disk = MemoryDisk()
    disk.create("/a")
    disk.fail("sync_dir")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_dir("/")
    assert {tuple(disk.after_power_cut(Random(seed)).tree()) for seed in range(20)} == {(), ("/a",)}
    disk.sync_dir("/")
    assert {tuple(disk.after_power_cut(Random(seed)).tree()) for seed in range(20)} == {("/a",)}
