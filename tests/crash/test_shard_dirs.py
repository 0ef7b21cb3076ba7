"""Shard directories that are added or removed: an end at any disk call leaves one layout and no leftover."""

from __future__ import annotations

import errno

import pytest

from shared.ipc.placement import Placement
from topicsd.disk.atomic_replace import exists
from topicsd.disk.layout import create_data_dir, make_layout, read_layout, shard_numbers, shard_paths
from topicsd.disk.memory_fs import MemoryFs
from topicsd.disk.shard_dirs import ShardDirectories, settle_directories

DATA = "/data"
INSTANCE = bytes(16)


class Killed(Exception):
    """The end of the process at a disk call."""


class CutFs(MemoryFs):
    """A disk whose process ends before its n-th change."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = 1 << 30

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise Killed

    def create(self, path: str) -> int:
        self._count()
        return super().create(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self._count()
        super().make_dir(path)

    def remove_dir(self, path: str) -> None:
        self._count()
        super().remove_dir(path)


def directory(shards: int) -> CutFs:
    fs = CutFs()
    create_data_dir(fs, DATA, shards, INSTANCE)
    ShardDirectories(fs, DATA).write_placement(Placement(min(shards, 2), version=1))
    return fs


def start(fs: MemoryFs) -> int:
    """Open the directory as a server does; return its number of shards, all of which are there."""
    layout = read_layout(fs, DATA)
    assert layout is not None
    settled = settle_directories(fs, DATA, layout)
    assert settled == read_layout(fs, DATA) == make_layout(settled.shards, INSTANCE)
    assert sorted(shard_numbers(fs, DATA)) == list(range(settled.shards))
    assert all(exists(fs, shard_paths(DATA, shard).wal) for shard in range(settled.shards))
    return settled.shards


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
def test_an_end_at_any_call_leaves_the_old_or_the_new_number(before: int, after: int) -> None:
    outcomes = []
    for calls in range(1000):
        fs = directory(before)
        directories = ShardDirectories(fs, DATA)
        fs.calls_left = calls
        try:
            (directories.add if after > before else directories.remove)(after)
        except Killed:
            fs.calls_left = 1 << 30
            outcomes.append(start(fs))
            # The same change can be made again.
            (directories.add if after > before else directories.remove)(after)
            assert start(fs) == after
        else:
            break
    assert start(fs) == after
    assert before in outcomes
    assert set(outcomes) <= {before, after}
    assert outcomes == sorted(outcomes, reverse=after < before)


def test_quarantined_files_of_a_removed_shard_are_kept() -> None:
    fs = directory(3)
    fs.close(fs.create(f"{shard_paths(DATA, 2).quarantine}/wal-17.bin"))
    ShardDirectories(fs, DATA).remove(2)
    assert fs.list_dir(shard_paths(DATA, 0).quarantine) == ["shard-02-wal-17.bin"]
    assert start(fs) == 2


def test_a_full_disk_leaves_the_old_number() -> None:
    class FullFs(CutFs):
        def _count(self) -> None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise OSError(errno.ENOSPC, "no space left")

    fs = FullFs()
    create_data_dir(fs, DATA, 2, INSTANCE)
    directories = ShardDirectories(fs, DATA)
    directories.write_placement(Placement(2, version=1))
    fs.calls_left = 4
    with pytest.raises(OSError, match="no space"):
        directories.add(4)
    fs.calls_left = 1 << 30
    directories.remove(2)
    assert start(fs) == 2
