from __future__ import annotations

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.layout import wal_name
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles

CONTENTS = [b"first file: ", b"", b"second file: ", b"third file."]
WHOLE = b"".join(CONTENTS)


def files_of(contents: list[bytes]) -> tuple[LogFiles, MemoryDisk]:
    disk = MemoryDisk()
    files = LogFiles(disk)
    start = 0
    for number, content in enumerate(contents):
        disk.write_file(f"/{number}", b"h" * FILE_HEADER_BYTES + content + bytes(50) * (number < 2))
        files.add(disk.open_read(f"/{number}"), 100 * number, start, b"e", 4096)
        start += len(content)
    return files, disk


def test_a_position_runs_on_over_the_files_without_a_hole() -> None:
    files, _ = files_of(CONTENTS)
    for start in range(len(WHOLE)):
        for end in range(start, len(WHOLE) + 1):
            assert files.read(start, end) == WHOLE[start:end]


def test_a_read_behind_the_end_gives_what_there_is() -> None:
    files, _ = files_of(CONTENTS)
    assert files.read(len(WHOLE) - 3, len(WHOLE) + 100) == WHOLE[-3:]
    assert files.read(len(WHOLE), len(WHOLE) + 5) == b""


def test_a_file_that_lost_its_end_gives_no_bytes_of_the_next_one_instead() -> None:
    disk = MemoryDisk()
    files = LogFiles(disk)
    disk.write_file("/0", b"h" * FILE_HEADER_BYTES + b"abc")
    disk.write_file("/1", b"h" * FILE_HEADER_BYTES + b"uvwxyz")
    files.add(disk.open_read("/0"), 1, 0, b"e", 4096)
    files.add(disk.open_read("/1"), 7, 6, b"f", 4096)
    assert files.read(1, 10) == b"bc"
    assert files.read(6, 12) == b"uvwxyz"


def test_a_read_within_one_file_is_one_call() -> None:
    files, disk = files_of(CONTENTS)
    fault = disk.fail("pread", nth=10**6)
    files.read(1, 8)
    assert fault.seen == 1


@pytest.mark.parametrize(
    ("position", "place"),
    [(0, (0, 0)), (11, (0, 11)), (12, (200, 0)), (24, (200, 12)), (25, (300, 0)), (99, (300, 74))],
)
def test_a_position_has_a_place_in_a_file(position: int, place: tuple[int, int]) -> None:
    files, _ = files_of(CONTENTS)
    assert files.place_of(position) == (wal_name(place[0]), FILE_HEADER_BYTES + place[1])


@pytest.mark.parametrize(
    ("file", "position"), [(0, 11), (100, 23), (200, 23), (300, 36), (1, None), (301, None)]
)
def test_a_place_in_a_file_has_a_position(file: int, position: int | None) -> None:
    files, _ = files_of(CONTENTS)
    assert files.position_of(file, FILE_HEADER_BYTES + 11) == position
    files.drop_before(200)
    assert files.position_of(0, FILE_HEADER_BYTES) is None


def test_a_dropped_last_file_is_closed_and_the_one_before_continues() -> None:
    files, disk = files_of(CONTENTS)
    fds = list(disk.open_files)
    files.drop_last()
    assert list(disk.open_files) == fds[:-1]
    assert files.place_of(30)[0] == wal_name(200)
    disk.write_file("/4", b"h" * FILE_HEADER_BYTES + b"other")
    files.add(disk.open_read("/4"), 400, 25, b"g", 4096)
    assert files.read(20, 30) == WHOLE[20:25] + b"other"


def test_a_file_may_not_begin_before_the_one_in_front_of_it() -> None:
    files, disk = files_of(CONTENTS)
    with pytest.raises(AssertionError):
        files.add(disk.open_read("/0"), 500, 24, b"e", 4096)


def test_closing_leaves_no_descriptor() -> None:
    files, disk = files_of(CONTENTS)
    files.close()
    assert not disk.open_files
