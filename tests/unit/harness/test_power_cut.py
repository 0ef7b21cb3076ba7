"""Unsynced data is kept, lost or torn; synced data survives; a dead disk acks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.harness.machine.faults import MUTATING_CALLS, READING_CALLS, PowerCut, ProcessKilled
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.machine.memory_file import SECTOR_BYTES

SEEDS = range(300)


def _outcomes(disk: MemoryDisk) -> Iterator[MemoryDisk]:
    for seed in SEEDS:
        yield disk.after_power_cut(Random(seed))


def _file(disk: MemoryDisk, data: bytes, path: str = "/a") -> int:
    disk.write_file(path, data)
    return disk.open_write(path)


def _sectors(data: bytes) -> list[bytes]:
    return [data[start : start + SECTOR_BYTES] for start in range(0, len(data), SECTOR_BYTES)]


def test_synced_data_survives_every_cut() -> None:
    disk = MemoryDisk()
    fd = disk.create("/a")
    disk.pwrite(fd, b"s" * 3000, 0)
    disk.sync_data(fd)
    disk.sync_dir("/")
    disk.pwrite(fd, b"u" * 3000, 3000)
    assert all(after.read_file("/a")[:3000] == b"s" * 3000 for after in _outcomes(disk))


def test_unsynced_sectors_are_kept_or_lost_one_by_one() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * SECTOR_BYTES * 4)
    disk.pwrite(fd, b"n" * SECTOR_BYTES * 4, 0)
    whole = {b"o" * SECTOR_BYTES: "o", b"n" * SECTOR_BYTES: "n"}
    seen = {
        "".join(whole.get(sector, "torn") for sector in _sectors(after.read_file("/a")))
        for after in _outcomes(disk)
    }
    assert {"oooo", "nnnn", "nonn", "onoo", "ooon"} <= seen
    assert any("torn" in outcome for outcome in seen)


def test_a_torn_sector_has_new_and_old_bytes_in_either_order() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * SECTOR_BYTES)
    disk.pwrite(fd, b"n" * SECTOR_BYTES, 0)
    torn = [after.read_file("/a") for after in _outcomes(disk) if len(set(after.read_file("/a"))) == 2]
    assert {bytes(sorted(set(data), key=data.index)) for data in torn} == {b"no", b"on"}
    assert all(data.count(b"no") + data.count(b"on") == 1 for data in torn)


def test_a_sector_may_keep_any_version_it_had_since_the_sync() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"0" * SECTOR_BYTES)
    for digit in b"123":
        disk.pwrite(fd, bytes([digit]) * SECTOR_BYTES, 0)
    whole = {bytes(set(after.read_file("/a"))) for after in _outcomes(disk)}
    assert {b"0", b"1", b"2", b"3"} <= whole


def test_the_first_versions_and_the_last_one_are_known_however_often_it_was_written() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"\0" * SECTOR_BYTES)
    for digit in range(1, 200):
        disk.pwrite(fd, bytes([digit]) * SECTOR_BYTES, 0)
    versions = [set(after.read_file("/a")) for after in _outcomes(disk)]
    whole = {next(iter(data)) for data in versions if len(data) == 1}
    assert {0, 1, 199} <= whole <= {0, 1, 2, 3, 199}


def test_an_unsynced_size_is_kept_or_lost_apart_from_the_bytes_in_it() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"")
    disk.allocate(fd, 2048)
    disk.pwrite(fd, b"n" * SECTOR_BYTES, SECTOR_BYTES)
    contents = {after.read_file("/a") for after in _outcomes(disk)}
    assert {b"", bytes(2048)} <= contents
    assert any(data[SECTOR_BYTES : 2 * SECTOR_BYTES] == b"n" * SECTOR_BYTES for data in contents)
    assert {len(data) for data in contents} == {0, 2048}


def test_truncated_bytes_do_not_return_after_a_later_extension() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * 2000)
    disk.pwrite(fd, b"p" * 300, 1200)
    disk.truncate(fd, 700)
    disk.allocate(fd, 3000)
    for after in _outcomes(disk):
        data = after.read_file("/a")
        if len(data) == 3000:
            assert data == b"o" * 700 + bytes(2300)
        elif len(data) == 2000:
            assert set(data) <= set(b"op")
        else:
            assert data == b"o" * 700
    disk.sync_data(fd)
    assert disk.read_media("/a") == b"o" * 700 + bytes(2300)


def test_a_cut_in_a_write_keeps_all_of_it_a_part_or_nothing() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * SECTOR_BYTES * 3)
    disk.cut_power_after(0)
    with pytest.raises(PowerCut):
        disk.pwrite(fd, b"n" * SECTOR_BYTES * 3, 0)
    shares = {after.read_file("/a").count(b"n") // SECTOR_BYTES for after in _outcomes(disk)}
    assert shares == {0, 1, 2, 3}


def test_a_cut_in_a_sync_keeps_or_loses_each_sector() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * SECTOR_BYTES * 3)
    disk.pwrite(fd, b"n" * SECTOR_BYTES * 3, 0)
    disk.cut_power_after(0)
    with pytest.raises(PowerCut):
        disk.sync_data(fd)
    assert len({after.read_file("/a") for after in _outcomes(disk)}) > 8


def test_every_call_after_the_cut_raises_but_a_close() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"abc")
    disk.cut_power_after(1)
    disk.pwrite(fd, b"x", 0)
    assert disk.pread(fd, 3, 0) == b"xbc", "the power fails in the next mutating call"
    with pytest.raises(PowerCut):
        disk.pwrite(fd, b"y", 0)
    arguments: dict[str, tuple[object, ...]] = {
        "pwrite": (fd, b"", 0),
        "allocate": (fd, 9),
        "truncate": (fd, 9),
        "sync_data": (fd,),
        "drop_cache": (fd,),
        "rename": ("/a", "/b"),
        "link": ("/a", "/b"),
        "pread": (fd, 1, 0),
        "fstat": (fd,),
        "boot_id": (),
    }
    for name in MUTATING_CALLS + READING_CALLS:
        if name != "close":
            with pytest.raises(PowerCut):
                getattr(disk, name)(*arguments.get(name, ("/a",)))
    # Finalizers may close descriptors at any later time.
    disk.close(fd)
    assert disk.is_gone


def test_no_error_handler_survives_a_cut() -> None:
    assert not issubclass(PowerCut, Exception)
    assert not issubclass(ProcessKilled, Exception)


def test_every_boundary_of_a_script_is_reached() -> None:
    def script(disk: MemoryDisk) -> Iterator[int]:
        yield 0
        fd = disk.create("/a")
        yield 1
        disk.pwrite(fd, b"x", 0)
        yield 2
        disk.sync_data(fd)
        yield 3

    acked: list[int] = []
    for n in range(4):
        disk = MemoryDisk()
        disk.cut_power_after(n)
        try:
            for step in script(disk):  # noqa: B007 the last one is what counts
                pass
        except PowerCut:
            assert n < 3
        acked.append(step)
    assert acked == [0, 1, 2, 3]


def test_outcomes_repeat_with_the_seed_and_do_not_change_the_disk() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * 4000)
    disk.pwrite(fd, b"n" * 4000, 0)
    first = [disk.after_power_cut(Random(seed)).read_file("/a") for seed in range(20)]
    again = [disk.after_power_cut(Random(seed)).read_file("/a") for seed in range(20)]
    assert first == again
    assert disk.pread(fd, 4000, 0) == b"n" * 4000


def test_after_a_cut_everything_counts_as_synced_in_another_boot_with_the_same_inodes() -> None:
    disk = MemoryDisk()
    fd = _file(disk, b"o" * 4000)
    disk.pwrite(fd, b"n" * 4000, 0)
    after = disk.after_power_cut(Random(3))
    assert after.boot_id() != disk.boot_id()
    assert after.stat("/a").inode == disk.stat("/a").inode
    content = after.read_file("/a")
    assert all(later.read_file("/a") == content for later in _outcomes(after))


def test_a_killed_process_leaves_a_call_undone_or_half_a_write() -> None:
    for torn, expected in ((False, b"abcd"), (True, b"xxcd")):
        disk = MemoryDisk()
        fd = _file(disk, b"abcd")
        disk.kill_process_after(0, torn=torn)
        with pytest.raises(ProcessKilled):
            disk.pwrite(fd, b"xxxx", 0)
        with pytest.raises(ProcessKilled):
            disk.pread(fd, 1, 0)
        assert disk.after_process_kill().read_file("/a") == expected
