"""A synced name survives a cut; an unsynced name may survive."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk


def _trees(disk: MemoryDisk) -> set[tuple[str, ...]]:
    return {tuple(after.tree()) for after in _outcomes(disk)}


def _outcomes(disk: MemoryDisk) -> Iterator[MemoryDisk]:
    for seed in range(100):
        yield disk.after_power_cut(Random(seed))


def _made(disk: MemoryDisk, path: str, data: bytes) -> None:
    """Create a file with synced bytes and an unsynced name."""
    fd = disk.create(path)
    disk.pwrite(fd, data, 0)
    disk.sync_data(fd)
    disk.close(fd)


def test_an_unsynced_name_may_be_lost() -> None:
    disk = MemoryDisk()
    _made(disk, "/a", b"1")
    assert _trees(disk) == {(), ("/a",)}
    disk.sync_dir("/")
    assert _trees(disk) == {("/a",)}


def test_names_are_kept_or_lost_one_by_one() -> None:
    disk = MemoryDisk()
    _made(disk, "/a", b"1")
    _made(disk, "/b", b"2")
    assert _trees(disk) == {(), ("/a",), ("/b",), ("/a", "/b")}


def test_a_name_that_survives_has_only_the_bytes_that_were_synced() -> None:
    disk = MemoryDisk()
    fd = disk.create("/a")
    disk.pwrite(fd, b"x" * 100, 0)
    disk.sync_dir("/")
    assert b"" in {after.read_file("/a") for after in _outcomes(disk)}


def test_a_rename_is_atomic() -> None:
    disk = MemoryDisk()
    disk.write_file("/CURRENT", b"old")
    disk.write_file("/tmp", b"new")
    disk.rename("/tmp", "/CURRENT")
    outcomes = {(tuple(after.tree()), after.read_file("/CURRENT")) for after in _outcomes(disk)}
    assert outcomes == {(("/CURRENT", "/tmp"), b"old"), (("/CURRENT",), b"new")}


def test_a_kept_rename_has_its_file_even_when_its_first_name_was_never_synced() -> None:
    disk = MemoryDisk()
    disk.write_file("/CURRENT", b"old")
    _made(disk, "/tmp", b"new")
    disk.rename("/tmp", "/CURRENT")
    outcomes = {(tuple(after.tree()), after.read_file("/CURRENT")) for after in _outcomes(disk)}
    assert outcomes == {(("/CURRENT",), b"old"), (("/CURRENT", "/tmp"), b"old"), (("/CURRENT",), b"new")}


def test_a_rename_over_two_directories_waits_for_both() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/wal")
    disk.make_dirs("/trash")
    disk.write_file("/wal/a", b"1")
    disk.rename("/wal/a", "/trash/a")
    both = {("/trash/", "/trash/a", "/wal/"), ("/trash/", "/wal/", "/wal/a")}
    assert _trees(disk) == both
    disk.sync_dir("/wal")
    assert _trees(disk) == both
    disk.sync_dir("/trash")
    assert _trees(disk) == {("/trash/", "/trash/a", "/wal/")}


def test_a_pending_rename_does_not_replace_a_later_name() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/wal")
    disk.make_dirs("/trash")
    disk.write_file("/wal/a", b"1")
    disk.rename("/wal/a", "/trash/a")
    _made(disk, "/wal/a", b"2")
    disk.sync_dir("/wal")
    assert {after.read_file("/wal/a") for after in _outcomes(disk)} == {b"2"}


def test_a_chain_of_renames_never_leaves_two_names() -> None:
    disk = MemoryDisk()
    disk.write_file("/a", b"1")
    disk.rename("/a", "/b")
    disk.rename("/b", "/c")
    assert _trees(disk) == {("/a",), ("/b",), ("/c",)}


def test_an_unlink_may_be_lost_and_the_file_comes_back_with_its_synced_bytes() -> None:
    disk = MemoryDisk()
    disk.write_file("/a", b"1")
    disk.unlink("/a")
    assert _trees(disk) == {(), ("/a",)}
    assert {after.read_file("/a") for after in _outcomes(disk) if after.tree()} == {b"1"}


def test_an_unlink_may_overtake_a_creation_that_was_not_synced() -> None:
    disk = MemoryDisk()
    disk.write_file("/old", b"1")
    _made(disk, "/new", b"2")
    disk.unlink("/old")
    assert () in _trees(disk)


def test_files_are_lost_with_their_unsynced_directory() -> None:
    disk = MemoryDisk()
    disk.make_dir("/d")
    _made(disk, "/d/a", b"1")
    disk.sync_dir("/d")
    assert _trees(disk) == {(), ("/d/", "/d/a")}


def test_a_removed_directory_may_come_back_until_its_parent_is_synced() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/d/e")
    disk.remove_dir("/d/e")
    assert _trees(disk) == {("/d/",), ("/d/", "/d/e/")}
    disk.sync_dir("/d")
    assert _trees(disk) == {("/d/",)}


def test_a_directory_is_renamed_with_its_contents() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/d/e")
    disk.write_file("/d/e/a", b"1")
    disk.rename("/d", "/x")
    assert disk.tree() == ["/x/", "/x/e/", "/x/e/a"]
    assert _trees(disk) == {("/d/", "/d/e/", "/d/e/a"), ("/x/", "/x/e/", "/x/e/a")}


def test_a_hard_link_has_the_same_bytes_and_outlives_the_first_name() -> None:
    disk = MemoryDisk()
    disk.write_file("/a", b"1")
    disk.link("/a", "/b")
    disk.sync_dir("/")
    disk.unlink("/a")
    disk.sync_dir("/")
    assert _trees(disk) == {("/b",)}
    assert disk.after_power_cut(Random(0)).read_file("/b") == b"1"


def test_a_cut_in_a_rename_or_its_sync_leaves_either_name() -> None:
    for calls in (0, 1):
        disk = MemoryDisk()
        disk.write_file("/a", b"1")
        disk.cut_power_after(calls)
        with pytest.raises(PowerCut):
            _rename_durably(disk)
        assert _trees(disk) == {("/a",), ("/b",)}


def _rename_durably(disk: MemoryDisk) -> None:
    disk.rename("/a", "/b")
    disk.sync_dir("/")


def test_pending_names_stay_pending_after_a_process_kill() -> None:
    disk = MemoryDisk()
    disk.write_file("/a", b"1")
    disk.rename("/a", "/b")
    disk.rename("/b", "/c")
    assert _trees(disk.after_process_kill()) == {("/a",), ("/b",), ("/c",)}
