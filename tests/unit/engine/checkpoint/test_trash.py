from __future__ import annotations

import errno
import os
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.checkpoint.sample import PATHS, calls_of, shard_disk
from topicsd.disk.layout import parse_trash_name
from topicsd.engine.checkpoint.trash import (
    empty_deleted,
    is_due,
    mark_deleted,
    move_to_trash,
    purge,
    trash_bytes,
)

TOPIC = PATHS.topic_dir(0xABC, 12)
OTHER = PATHS.topic_dir(0xDEF, 13)
DATA = f"{TOPIC}/seg-0000000000000001.data"
INDEX = f"{TOPIC}/seg-0000000000000001.idx"
WAL = PATHS.wal_file(1)
GRACE_MS = 600_000


def disk_with_files() -> MemoryDisk:
    disk = shard_disk()
    for directory in (TOPIC, OTHER):
        disk.make_dirs(directory)
    disk.write_file(DATA, b"d" * 1000)
    disk.write_file(INDEX, b"i" * 100)
    disk.write_file(f"{OTHER}/seg-0000000000000001.data", b"o" * 10)
    disk.write_file(WAL, b"w" * 5000)
    return disk


def in_trash(disk: MemoryDisk) -> list[str]:
    return disk.list_dir(PATHS.trash)


def purge_all(disk: MemoryDisk, now_ms: int, *, is_locked: bool = False, short: bool = False) -> int:
    return purge(disk, PATHS, now_ms, GRACE_MS, is_locked, short)


def test_a_dropped_file_keeps_its_bytes_and_says_when_it_was_dropped_and_whose_it_was() -> None:
    disk = disk_with_files()
    assert move_to_trash(disk, PATHS, [DATA, WAL], 1000) == 2
    assert in_trash(disk) == [
        "0000000000001000-0-0000000000000abc-12.seg-0000000000000001.data",
        "0000000000001000-0-wal-0000000000000001.log",
    ]
    assert disk.read_file(f"{PATHS.trash}/{in_trash(disk)[0]}") == b"d" * 1000
    assert disk.list_dir(TOPIC) == ["seg-0000000000000001.idx"]
    assert parse_trash_name(in_trash(disk)[1]) == (1000, 0, "wal-0000000000000001.log")


def test_the_new_names_are_synced_before_the_old_directories() -> None:
    disk = disk_with_files()
    move_to_trash(disk, PATHS, [DATA, INDEX, WAL], 1000)
    assert calls_of(disk) == ["rename"] * 3 + ["sync_dir"] * 3
    assert disk.trace is not None
    assert [path for call, path in disk.trace if call == "sync_dir"] == [PATHS.trash, TOPIC, PATHS.wal]


def test_a_file_of_the_same_name_takes_no_ones_place() -> None:
    disk = disk_with_files()
    for content in (b"first", b"second", b"third"):
        disk.write_file(DATA, content)
        move_to_trash(disk, PATHS, [DATA], 1000)
    assert [disk.read_file(f"{PATHS.trash}/{name}") for name in in_trash(disk)] == [
        b"first",
        b"second",
        b"third",
    ]


def test_what_is_not_there_any_more_is_passed_over() -> None:
    disk = disk_with_files()
    gone = f"{PATHS.topics}/00000000000000aa-1/seg-0000000000000001.data"
    assert move_to_trash(disk, PATHS, [f"{TOPIC}/none", gone, DATA], 1000) == 1
    assert move_to_trash(disk, PATHS, [], 1000) == 0


def test_a_foreign_file_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        move_to_trash(disk_with_files(), PATHS, ["/shards/001/file"], 1000)


def test_a_file_stays_for_the_grace_time_and_not_longer() -> None:
    disk = disk_with_files()
    move_to_trash(disk, PATHS, [DATA], 1000)
    move_to_trash(disk, PATHS, [INDEX], 2000)
    assert trash_bytes(disk, PATHS) == 1100
    assert purge_all(disk, 1000 + GRACE_MS - 1) == 0
    assert purge_all(disk, 1000 + GRACE_MS) == 1000
    assert trash_bytes(disk, PATHS) == 100
    assert purge_all(disk, 2000 + GRACE_MS) == 100
    assert in_trash(disk) == []


@pytest.mark.parametrize("short", [False, True])
def test_nothing_goes_while_a_reader_holds(short: bool) -> None:
    disk = disk_with_files()
    move_to_trash(disk, PATHS, [DATA], 1000)
    assert purge_all(disk, 1000 + 9 * GRACE_MS, is_locked=True, short=short) == 0
    assert len(in_trash(disk)) == 1


def test_without_room_all_of_it_goes_early() -> None:
    disk = disk_with_files()
    move_to_trash(disk, PATHS, [DATA, INDEX, WAL], 1000)
    assert purge_all(disk, 1001, short=True) == 6100
    assert in_trash(disk) == []


def test_one_call_unlinks_a_bounded_number_the_oldest_first() -> None:
    disk = shard_disk()
    for number in range(10):
        disk.write_file(f"{PATHS.wal}/{number}", b"x" * (number + 1))
        move_to_trash(disk, PATHS, [f"{PATHS.wal}/{number}"], 100 - number)
    freed = []
    while in_trash(disk):
        freed.append(purge(disk, PATHS, 100 + GRACE_MS, GRACE_MS, False, False, files_max=4))
    assert freed == [10 + 9 + 8 + 7, 6 + 5 + 4 + 3, 2 + 1]


@pytest.mark.parametrize(
    ("now_ms", "due"),
    [
        (5000, False),
        (5999, False),
        (6000, True),
        (99_999, True),
        (4500, False),
        (4000, False),
        (3999, True),
        (0, True),
    ],
)
def test_a_clock_that_steps_back_makes_no_file_stay_for_ever(now_ms: int, due: bool) -> None:
    assert is_due(5000, now_ms, 1000) is due


def test_what_a_person_put_into_the_trash_is_left_alone() -> None:
    disk = disk_with_files()
    disk.write_file(f"{PATHS.trash}/notes.txt", b"x")
    move_to_trash(disk, PATHS, [DATA], 1000)
    assert purge_all(disk, 1000, short=True) == 1000
    assert in_trash(disk) == ["notes.txt"]
    assert trash_bytes(disk, PATHS) == 0


def test_no_trash_is_an_empty_one() -> None:
    disk = MemoryDisk()
    assert purge_all(disk, 1000) == trash_bytes(disk, PATHS) == 0


def delete_topic(disk: MemoryDisk) -> None:
    mark_deleted(disk, PATHS, 0xABC, 12)
    while empty_deleted(disk, PATHS, 1000, files_max=1):
        pass


def test_a_deleted_topic_has_no_directory_and_its_files_are_in_the_trash() -> None:
    disk = disk_with_files()
    delete_topic(disk)
    assert disk.list_dir(PATHS.topics) == [os.path.basename(OTHER)]
    assert in_trash(disk) == [
        "0000000000001000-0-0000000000000abc-12.seg-0000000000000001.data",
        "0000000000001000-0-0000000000000abc-12.seg-0000000000000001.idx",
    ]


def test_the_name_of_a_deleted_topic_is_synced_before_its_files_move() -> None:
    disk = disk_with_files()
    delete_topic(disk)
    assert calls_of(disk) == [
        *["rename", "sync_dir"],
        *["rename", "sync_dir", "sync_dir"],
        *["rename", "sync_dir", "sync_dir", "remove_dir"],
    ]


def test_a_deleted_topic_without_a_directory_is_no_trouble() -> None:
    disk = disk_with_files()
    mark_deleted(disk, PATHS, 0x123, 99)
    assert not empty_deleted(disk, PATHS, 1000)
    assert len(disk.list_dir(PATHS.topics)) == 2


def test_only_what_is_named_as_deleted_is_emptied() -> None:
    disk = disk_with_files()
    disk.make_dirs(f"{PATHS.topics}/mine.deleted")
    disk.write_file(f"{PATHS.topics}/mine.deleted/file", b"x")
    assert not empty_deleted(disk, PATHS, 1000)
    assert in_trash(disk) == []


def test_many_files_are_moved_a_bounded_number_a_call() -> None:
    disk = disk_with_files()
    for number in range(10):
        disk.write_file(f"{TOPIC}/seg-{number + 2:016d}.data", b"x")
    mark_deleted(disk, PATHS, 0xABC, 12)
    mark_deleted(disk, PATHS, 0xDEF, 13)
    calls = 1
    while empty_deleted(disk, PATHS, 1000, files_max=5):
        calls += 1
        assert len(in_trash(disk)) <= 5 * calls
    assert (calls, len(in_trash(disk))) == (3, 13)
    assert disk.list_dir(PATHS.topics) == []


def drop_all(disk: MemoryDisk) -> None:
    """Everything this module does, as a server would."""
    move_to_trash(disk, PATHS, [WAL, f"{OTHER}/seg-0000000000000001.data"], 1000)
    delete_topic(disk)
    purge_all(disk, 1000 + GRACE_MS)


def calls_of_all() -> int:
    disk = disk_with_files()
    drop_all(disk)
    return disk.calls


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_is_made_good_by_doing_all_again(error: int) -> None:
    for nth in range(1, calls_of_all() + 1):
        disk = disk_with_files()
        disk.fail(nth=nth, error=error)
        with pytest.raises(OSError) as caught:  # noqa: PT011, the errno says which
            drop_all(disk)
        assert caught.value.errno == error
        drop_all(disk)
        assert disk.all_files() == []
        assert disk.list_dir(PATHS.topics) == [os.path.basename(OTHER)]


def test_a_reading_call_that_fails_is_made_good_too() -> None:
    for call in ("list_dir", "stat"):
        nth = 1
        while True:
            disk = disk_with_files()
            fault = disk.fail(call, nth=nth)
            try:
                drop_all(disk)
            except OSError:
                drop_all(disk)
            assert disk.all_files() == []
            if not fault.fired:
                break
            nth += 1
        assert nth > 1


@pytest.mark.slow
def test_a_power_cut_leaves_every_file_whole_in_its_place_or_in_the_trash_or_gone() -> None:
    sizes = {"d": 1000, "i": 100, "o": 10, "w": 5000}
    calls = calls_of_all()
    for cut_after in range(calls + 1):
        for seed in range(30):
            disk = disk_with_files()
            disk.cut_power_after(cut_after)
            if cut_after < calls:
                with pytest.raises(PowerCut):
                    drop_all(disk)
            else:
                drop_all(disk)
            after = disk.after_power_cut(Random(seed))
            for path in after.all_files():
                content = after.read_file(path)
                assert len(content) == sizes[chr(content[0])]
            drop_all(after)
            assert after.all_files() == []
            assert after.list_dir(PATHS.topics) == [os.path.basename(OTHER)]


def test_a_file_is_not_lost_before_its_grace_time_whatever_the_power_does() -> None:
    for cut_after in range(12):
        for seed in range(30):
            disk = disk_with_files()
            disk.cut_power_after(cut_after)
            try:
                move_to_trash(disk, PATHS, [WAL], 1000)
                delete_topic(disk)
            except PowerCut:
                pass
            after = disk.after_power_cut(Random(seed)) if disk.is_gone else disk
            assert len(after.all_files()) == 4
