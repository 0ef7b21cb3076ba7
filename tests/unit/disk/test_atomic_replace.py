from __future__ import annotations

import errno
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.atomic_replace import exists, read_all, recreate_file, replace_file, write_all

OLD, NEW = b"old " * 400, b"new!" * 700


def disk_with_old() -> MemoryDisk:
    disk = MemoryDisk(traced=True)
    disk.make_dirs("/d")
    disk.write_file("/d/file", OLD)
    return disk


def test_a_short_write_is_continued_where_it_stopped() -> None:
    disk = disk_with_old()
    fd = disk.open_write("/d/file")
    fault = disk.fail("pwrite", nth=1, short=True, short_bytes=7)
    write_all(disk, fd, NEW, 100)
    assert fault.fired == 1
    assert disk.read_file("/d/file") == OLD[:100] + NEW


def test_a_write_of_one_byte_at_a_time_still_comes_to_its_end() -> None:
    disk = disk_with_old()
    fd = disk.open_write("/d/file")
    disk.fail("pwrite", short=True, short_bytes=1, forever=True)
    write_all(disk, fd, b"piecemeal", 3)
    assert disk.read_file("/d/file")[3:12] == b"piecemeal"


def test_a_disk_that_takes_nothing_is_an_error_and_not_a_loop() -> None:
    disk = disk_with_old()
    fd = disk.open_write("/d/file")
    disk.fail("pwrite", nth=2, short=True, short_bytes=0, forever=True)
    disk.fail("pwrite", nth=1, short=True, short_bytes=5)
    with pytest.raises(OSError, match=f"short write: 5 of {len(NEW)} bytes") as caught:
        write_all(disk, fd, NEW, 0)
    assert caught.value.errno == errno.EIO


def test_a_disk_that_is_full_in_the_middle_says_so() -> None:
    disk = MemoryDisk(space_bytes=1000)
    disk.make_dirs("/d")
    fd = disk.create("/d/file")
    with pytest.raises(OSError, match="No space left") as caught:
        write_all(disk, fd, b"x" * 2000, 0)
    assert caught.value.errno == errno.ENOSPC


def test_nothing_is_written_with_no_bytes() -> None:
    disk = disk_with_old()
    write_all(disk, disk.open_write("/d/file"), b"", 0)
    assert disk.read_file("/d/file") == OLD


def test_a_file_larger_than_it_may_be_is_read_only_so_far_that_it_shows() -> None:
    disk = disk_with_old()
    assert read_all(disk, "/d/file", len(OLD)) == OLD
    assert read_all(disk, "/d/file", 10) == OLD[:11]


def test_reading_a_file_leaves_no_descriptor_open() -> None:
    disk = disk_with_old()
    disk.fail("pread")
    with pytest.raises(OSError, match="Input/output"):
        read_all(disk, "/d/file", 10)
    assert not disk.open_files


@pytest.mark.parametrize(("path", "there"), [("/d/file", True), ("/d", True), ("/d/no", False)])
def test_existing_paths_are_distinguished_from_missing_ones(path: str, there: bool) -> None:
    assert exists(disk_with_old(), path) is there


def test_only_a_missing_file_counts_as_not_there() -> None:
    disk = disk_with_old()
    disk.fail("stat", error=errno.EACCES)
    with pytest.raises(PermissionError):
        exists(disk, "/d/file")


def test_a_replaced_file_has_the_new_bytes_and_no_temporary_is_left() -> None:
    disk = disk_with_old()
    replace_file(disk, "/d/file", NEW)
    assert disk.read_file("/d/file") == NEW
    assert disk.list_dir("/d") == ["file"]
    assert not disk.open_files


def test_the_bytes_are_synced_before_the_rename_and_the_name_before_the_call_returns() -> None:
    disk = disk_with_old()
    replace_file(disk, "/d/file", NEW)
    assert disk.trace is not None
    assert [call for call, _ in disk.trace] == ["create", "pwrite", "sync_data", "rename", "sync_dir"]


def test_a_temporary_that_a_crash_left_is_not_written_over() -> None:
    disk = disk_with_old()
    disk.write_file("/d/file.tmp", b"from a crash, and much longer than what comes now" * 100)
    inode = disk.stat("/d/file.tmp").inode
    replace_file(disk, "/d/file", NEW)
    assert disk.read_file("/d/file") == NEW
    assert disk.stat("/d/file").inode != inode


def test_a_failed_replacement_leaves_the_old_file() -> None:
    for nth in range(1, 5):
        disk = disk_with_old()
        disk.fail(nth=nth)
        with pytest.raises(OSError, match="Input/output"):
            replace_file(disk, "/d/file", NEW)
        assert disk.read_file("/d/file") == OLD
        assert not disk.open_files


def test_a_new_file_takes_the_place_of_a_leftover() -> None:
    disk = disk_with_old()
    disk.write_file("/d/spare", b"leftover")
    fd = recreate_file(disk, "/d/spare")
    assert disk.fstat(fd).size == 0


def test_a_crash_leaves_the_old_file_or_the_new_one_whole() -> None:
    calls = 5
    seen = set()
    for cut_after in range(calls + 1):
        for seed in range(40):
            disk = disk_with_old()
            disk.cut_power_after(cut_after)
            if cut_after < calls:
                with pytest.raises(PowerCut):
                    replace_file(disk, "/d/file", NEW)
            else:
                replace_file(disk, "/d/file", NEW)
            content = disk.after_power_cut(Random(seed)).read_file("/d/file")
            assert content in (OLD, NEW), f"torn after {cut_after} calls, seed {seed}"
            assert content == NEW or cut_after < calls, f"a reported replacement is lost, seed {seed}"
            seen.add((cut_after, content == NEW))
    # The rename in flight may have reached the disk; what came before it never shows.
    assert {cut for cut, is_new in seen if is_new} == {3, 4, 5}
