from __future__ import annotations

from shared.ipc.placement import Placement
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.layout import create_data_dir
from topicsd.disk.placement_file import read_placement, write_placement

FIRST = Placement(2).changed({"orders": 1})
SECOND = FIRST.changed({"orders": 0, "a": 0})


def made() -> MemoryDisk:
    disk = MemoryDisk(traced=True)
    create_data_dir(disk, "/data", 2, bytes(16))
    return disk


def test_without_a_file_there_are_no_exceptions() -> None:
    placement = read_placement(made(), "/data", 2)
    assert (placement.shard_count, placement.exceptions, placement.version) == (2, {}, 0)


def test_a_replaced_file_is_read_back() -> None:
    disk = made()
    for placement in (FIRST, SECOND):
        write_placement(disk, "/data", placement)
        assert read_placement(disk, "/data", 2).exceptions == placement.exceptions
