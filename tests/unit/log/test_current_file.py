from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import msgspec
import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import FileStat
from topicsd.log.current_file import CURRENT_BYTES, Current, note_sync_failure, read_current, write_current

PATH = "/wal/CURRENT"
RUNNING = Current(state="running", file=1, boot_id="boot", device=7, wal_inode=9)


def written(current: Current = RUNNING) -> MemoryDisk:
    disk = MemoryDisk(traced=True)
    disk.make_dirs("/wal")
    write_current(disk, PATH, current)
    return disk


@pytest.mark.parametrize("state", ["clean", "running", "sync_failed"])
def test_what_is_written_is_read_back_with_the_inode_it_got(state: str) -> None:
    current = Current(
        state=state,  # type: ignore[arg-type]
        file=9_999_999_999_999_999,
        end=1 << 62,
        boot_id="01234567-89ab-4cde-8f01-23456789abcd",
        device=(1 << 64) - 1,
        wal_inode=(1 << 64) - 1,
    )
    disk = written(current)
    stored = read_current(disk, PATH)
    assert stored is not None
    assert stored.current_inode == disk.stat(PATH).inode
    unplaced = msgspec.structs.replace(stored, current_inode=0, checksum="")
    assert unplaced == current


def test_it_is_one_sector_that_a_person_can_read() -> None:
    text = written().read_file(PATH)
    assert len(text) == CURRENT_BYTES
    assert text.endswith(b" \n")
    assert text.count(b"\n") == 1
    assert b'"state":"running"' in text


def test_it_is_on_the_disk_before_its_name_moves_to_it() -> None:
    disk = written()
    assert disk.trace is not None
    assert [call for call, _ in disk.trace] == ["create", "pwrite", "sync_data", "rename", "sync_dir"]


def test_a_missing_one_says_nothing() -> None:
    assert read_current(MemoryDisk(), PATH) is None


def test_one_changed_byte_leaves_nothing_to_believe() -> None:
    whole = written().read_file(PATH)
    for offset in range(len(whole)):
        disk = written()
        disk.flip(PATH, offset, 0x01)
        assert read_current(disk, PATH) is None, f"after a change at {offset}"


def test_one_cut_at_any_byte_leaves_nothing_to_believe() -> None:
    whole = written().read_file(PATH)
    for kept in range(len(whole)):
        disk = written()
        disk.write_file(PATH, whole[:kept])
        assert read_current(disk, PATH) is None
    disk.write_file(PATH, whole + b" ")
    assert read_current(disk, PATH) is None


@pytest.mark.parametrize("text", [b"", bytes(512), b"null", b"{}", b"\xff" * 512, b"[" * 512])
def test_a_text_that_is_none_leaves_nothing_to_believe(text: bytes) -> None:
    disk = written()
    disk.write_file(PATH, text)
    assert read_current(disk, PATH) is None


def test_one_of_another_format_is_not_believed() -> None:
    disk = written(msgspec.structs.replace(RUNNING, format=2))
    assert read_current(disk, PATH) is None


def test_a_crash_while_it_is_written_leaves_the_old_one_or_the_new_one() -> None:
    newer = msgspec.structs.replace(RUNNING, state="clean", end=4000)
    for cut_after in range(6):
        for seed in range(30):
            disk = written()
            disk.cut_power_after(cut_after)
            with suppress(PowerCut):
                write_current(disk, PATH, newer)
            current = read_current(disk.after_power_cut(Random(seed)), PATH)
            assert current is not None
            assert (current.state, current.end) in (("running", 0), ("clean", 4000))


def test_a_sync_failure_is_noted_in_place() -> None:
    disk = written()
    inode = disk.stat(PATH).inode
    disk.trace = []
    note_sync_failure(disk, PATH)
    current = read_current(disk, PATH)
    assert current is not None
    assert (current.state, current.file, current.current_inode) == ("sync_failed", 1, inode)
    assert disk.stat(PATH).inode == inode
    assert [call for call, _ in disk.trace] == ["open_write", "pwrite"]
    assert not disk.open_files


def test_the_note_of_a_sync_failure_reaches_another_process_on_the_same_machine() -> None:
    disk = written()
    note_sync_failure(disk, PATH)
    current = read_current(disk.after_process_kill(), PATH)
    assert current is not None
    assert current.state == "sync_failed"


def test_a_torn_note_leaves_what_was_there_or_nothing_to_believe() -> None:
    for seed in range(50):
        disk = written()
        note_sync_failure(disk, PATH)
        current = read_current(disk.after_power_cut(Random(seed)), PATH)
        assert current is None or current.state in ("running", "sync_failed")


def test_a_note_where_there_is_nothing_to_note_in_changes_nothing() -> None:
    disk = MemoryDisk()
    note_sync_failure(disk, PATH)
    assert disk.all_files() == []
    disk.make_dirs("/wal")
    disk.write_file(PATH, b"damaged")
    note_sync_failure(disk, PATH)
    assert disk.read_file(PATH) == b"damaged"


def test_a_note_that_cannot_be_written_is_the_error_of_the_disk() -> None:
    disk = written()
    disk.fail("pwrite", error=errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        note_sync_failure(disk, PATH)
    assert not disk.open_files


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"boot_id": "another"}, False),
        ({"device": 8}, False),
        ({"current_inode": 6}, False),
        ({"wal_inode": 10}, False),
    ],
)
def test_the_same_place_is_the_same_boot_device_and_inodes(changes: dict[str, object], is_same: bool) -> None:
    current = msgspec.structs.replace(RUNNING, **{"current_inode": 5, **changes})
    assert current.is_same_place(FileStat(512, 7, 5), FileStat(4096, 7, 9), "boot") is is_same


def test_a_copied_directory_is_another_place() -> None:
    disk = written()
    disk.write_file("/wal/file", b"log")
    placed = disk.stat("/wal/file")
    write_current(
        disk,
        PATH,
        Current(
            state="running", file=1, boot_id=disk.boot_id(), device=placed.device, wal_inode=placed.inode
        ),
    )
    for found_on, is_same in (
        (disk, True),
        (disk.after_process_kill(), True),
        (disk.copied(), False),
        (disk.after_reboot(), False),
    ):
        current = read_current(found_on, PATH)
        assert current is not None
        here = found_on.stat(PATH), found_on.stat("/wal/file"), found_on.boot_id()
        assert current.is_same_place(*here) is is_same
