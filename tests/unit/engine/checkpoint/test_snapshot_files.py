from __future__ import annotations

import errno
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.checkpoint.sample import PATHS, bytes_of, calls_of, parts_of, sample, shard_disk
from topicsd.engine.checkpoint.snapshot_files import (
    DamagedSnapshot,
    choose_snapshot,
    drop_leftovers,
    drop_old_snapshots,
    read_snapshot,
    read_snapshots,
    snapshot_numbers,
    write_snapshot,
)
from topicsd.engine.checkpoint.snapshot_format import SnapshotDamage, decode_snapshot
from topicsd.log.file_header import UnknownVersion

WRITE_CALLS = 5


def write(disk: MemoryDisk, number: int) -> None:
    write_snapshot(disk, PATHS, number, parts_of(sample(number)))


def disk_with(*numbers: int) -> MemoryDisk:
    disk = shard_disk()
    for number in numbers:
        disk.write_file(PATHS.snapshot(number), bytes_of(sample(number)))
    return disk


def test_a_written_snapshot_is_read_back() -> None:
    disk = shard_disk()
    write(disk, 7)
    assert read_snapshot(disk, PATHS, 7) == sample(7)
    assert not disk.open_files


def test_the_bytes_are_synced_before_the_name_and_the_name_before_the_reply() -> None:
    disk = shard_disk()
    write(disk, 7)
    assert calls_of(disk) == ["create", "pwrite", "sync_data", "rename", "sync_dir"]


def test_small_parts_are_written_together_and_a_large_one_separately() -> None:
    disk = shard_disk()
    parts = [b"a" * 1000] * 3000 + [b"b" * (3 << 20)] + [b"c"] * 10
    write_snapshot(disk, PATHS, 7, parts)
    assert disk.read_file(PATHS.snapshot(7)) == b"".join(parts)
    assert calls_of(disk).count("pwrite") == 4


def test_what_a_crash_left_of_a_snapshot_is_not_written_over() -> None:
    disk = shard_disk()
    disk.write_file(PATHS.snapshot(7) + ".tmp", b"x" * 100_000)
    write(disk, 7)
    assert disk.read_file(PATHS.snapshot(7)) == bytes_of(sample(7))


def test_the_newest_is_chosen_and_the_others_are_not_read() -> None:
    disk = disk_with(6, 7, 9, 10)
    fault = disk.fail("open_read", nth=2)
    assert choose_snapshot(disk, PATHS) == (sample(10), [])
    assert not fault.fired
    assert snapshot_numbers(disk, PATHS) == [10, 9, 7, 6]


def test_a_damaged_one_is_skipped_for_the_one_before_it_and_named() -> None:
    disk = disk_with(6, 7)
    disk.flip(PATHS.snapshot(7), 100)
    chosen, complaints = choose_snapshot(disk, PATHS)
    assert chosen == sample(6)
    assert complaints == [
        "/shards/00/meta/snapshot.00000007.bin is damaged and skipped: its checksum does not match"
    ]


@pytest.mark.parametrize("error", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_one_that_the_disk_cannot_read_is_skipped_too(error: int) -> None:
    disk = disk_with(6, 7)
    disk.fail("pread", error=error)
    chosen, complaints = choose_snapshot(disk, PATHS)
    assert chosen == sample(6)
    assert "the disk cannot read it" in complaints[0]
    assert not disk.open_files


def test_a_failure_that_is_not_of_the_file_is_no_damage() -> None:
    disk = disk_with(6, 7)
    disk.fail("open_read", error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        choose_snapshot(disk, PATHS)
    disk.fail("pread", error=errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate"):
        choose_snapshot(disk, PATHS)


def test_no_snapshot_differs_from_no_good_snapshot() -> None:
    assert choose_snapshot(shard_disk(), PATHS) == (None, [])
    assert choose_snapshot(MemoryDisk(), PATHS) == (None, [])
    disk = disk_with(6, 7)
    disk.write_file(PATHS.snapshot(7), b"")
    disk.flip(PATHS.snapshot(6), 0)
    chosen, complaints = choose_snapshot(disk, PATHS)
    assert chosen is None
    assert len(complaints) == 2


def test_one_of_a_newer_program_is_refused_and_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = disk_with(6)
    monkeypatch.setattr("topicsd.engine.checkpoint.snapshot_format.VERSION", 2)
    newer = bytes_of(sample(7))
    monkeypatch.undo()
    disk.write_file(PATHS.snapshot(7), newer)
    with pytest.raises(UnknownVersion):
        choose_snapshot(disk, PATHS)


def test_one_under_another_name_is_damaged() -> None:
    disk = disk_with(6)
    disk.write_file(PATHS.snapshot(7), bytes_of(sample(5)))
    assert list(read_snapshots(disk, PATHS)) == [
        DamagedSnapshot(7, "it holds snapshot 5 under the name of snapshot 7"),
        sample(6),
    ]


def test_one_that_is_dropped_while_we_look_is_none() -> None:
    disk = disk_with(6, 7)
    snapshots = read_snapshots(disk, PATHS)
    assert next(snapshots) == sample(7)
    disk.unlink(PATHS.snapshot(6))
    assert list(snapshots) == []


def test_other_names_are_not_looked_at() -> None:
    disk = disk_with(7)
    for name in ("snapshot.00000008.bin.tmp", "snapshot.9.bin", "MANIFEST.json", "snapshot.00000010.bin~"):
        disk.write_file(f"{PATHS.meta}/{name}", b"x")
    assert snapshot_numbers(disk, PATHS) == [7]


def test_the_newest_two_are_kept() -> None:
    disk = disk_with(3, 4, 6, 7)
    assert drop_old_snapshots(disk, PATHS) == [7, 6]
    assert snapshot_numbers(disk, PATHS) == [7, 6]
    assert calls_of(disk) == ["unlink", "unlink"]
    assert drop_old_snapshots(disk, PATHS) == [7, 6]


def test_a_damaged_one_takes_no_good_ones_place_and_stays() -> None:
    disk = disk_with(3, 4, 6, 7)
    assert drop_old_snapshots(disk, PATHS, damaged=[6]) == [7, 4]
    assert snapshot_numbers(disk, PATHS) == [7, 6, 4]


def test_a_number_is_used_once() -> None:
    disk = disk_with(7)
    with pytest.raises(AssertionError):
        write(disk, 7)
    assert read_snapshot(disk, PATHS, 7) == sample(7)


def test_leftovers_go_and_nothing_else() -> None:
    disk = disk_with(7)
    disk.write_file(PATHS.snapshot(8) + ".tmp", b"x")
    disk.write_file(PATHS.manifest + ".tmp", b"x")
    disk.write_file(PATHS.manifest, b"x")
    assert drop_leftovers(disk, PATHS) == ["MANIFEST.json.tmp", "snapshot.00000008.bin.tmp"]
    assert disk.list_dir(PATHS.meta) == ["MANIFEST.json", "readers", "snapshot.00000007.bin"]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_leaves_the_snapshot_before_and_no_temporary(error: int) -> None:
    for nth in range(1, WRITE_CALLS + 1):
        disk = disk_with(6)
        disk.fail(nth=nth, error=error)
        with pytest.raises(OSError) as caught:  # noqa: PT011, the errno says which
            write(disk, 7)
        assert caught.value.errno == error
        assert not disk.open_files
        assert disk.list_dir(PATHS.meta) == ["readers", "snapshot.00000006.bin"]
        # And the next attempt is a good one.
        write(disk, 7)
        assert choose_snapshot(disk, PATHS) == (sample(7), [])


def test_a_full_disk_has_its_room_back_and_says_what_was_wrong() -> None:
    disk = shard_disk(space_bytes=600)
    free = disk.free_bytes(PATHS.meta)
    with pytest.raises(OSError, match="No space left"):
        write(disk, 7)
    assert disk.free_bytes(PATHS.meta) == free


def test_the_first_failure_is_reported_when_the_disk_fails_for_good() -> None:
    disk = disk_with(6)
    disk.fail(nth=2, error=errno.ENOSPC)
    disk.fail(nth=3, error=errno.EIO, forever=True)
    with pytest.raises(OSError, match="No space left"):
        write(disk, 7)


def test_a_power_cut_leaves_the_snapshot_before_or_the_new_one() -> None:
    for cut_after in range(WRITE_CALLS + 1):
        for seed in range(30):
            disk = disk_with(6)
            disk.cut_power_after(cut_after)
            if cut_after < WRITE_CALLS:
                with pytest.raises(PowerCut):
                    write(disk, 7)
            else:
                write(disk, 7)
            after = disk.after_power_cut(Random(seed))
            chosen, complaints = choose_snapshot(after, PATHS)
            assert chosen in (sample(6), sample(7))
            assert complaints == [], "whole or not there"
            assert chosen == sample(7) or cut_after < WRITE_CALLS
            drop_leftovers(after, PATHS)
            assert all(not name.endswith(".tmp") for name in after.list_dir(PATHS.meta))


def test_a_changed_byte_never_changes_what_is_chosen_but_to_the_one_before() -> None:
    whole = bytes_of(sample(7))
    disk = disk_with(6, 7)
    for offset in range(len(whole)):
        disk.flip(PATHS.snapshot(7), offset, 1 << offset % 8)
        chosen, complaints = choose_snapshot(disk, PATHS)
        assert chosen == sample(6)
        assert len(complaints) == 1
        with pytest.raises(SnapshotDamage):
            decode_snapshot(disk.read_file(PATHS.snapshot(7)))
        disk.write_file(PATHS.snapshot(7), whole)
