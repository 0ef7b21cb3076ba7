"""Objects in files: whole or absent, created once, and durable after `create`."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import RealFs
from topicsd.store.file_objects import FileObjects
from topicsd.store.object_store import ObjectExists, StoreFull, StoreRefused, StoreUnavailable

PARTS = [b"one ", b"object"]


def test_a_store_does_on_a_real_disk_what_the_interface_says(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    store = FileObjects(RealFs(), str(tmp_path / "a folder"))
    assert list(store.list("")) == []
    for key in ("t/2/b", "t/10/a", "t/10.x", "u"):
        store.create(key, PARTS, "id")
    with pytest.raises(ObjectExists):
        store.create("t/2/b", [b"other"], "id")
    assert store.read("t/2/b", 4, 100) == b"object"
    assert store.read("t/2/b", 10, 5) == b""
    info = store.info("u")
    assert (info.key, info.size) == ("u", 10)
    assert abs(info.modified_ms - os.stat(tmp_path).st_mtime * 1000) < 60_000
    assert [one.key for one in store.list("")] == ["t/10.x", "t/10/a", "t/2/b", "u"]
    assert [one.key for one in store.list("t/1")] == ["t/10.x", "t/10/a"]
    assert [one.key for one in store.list("t/", after="t/10/a")] == ["t/2/b"]
    store.delete("u")
    store.delete("u")
    with pytest.raises(FileNotFoundError):
        store.read("u", 0, 1)
    with pytest.raises(FileNotFoundError):
        store.info("u")


def test_two_writers_of_one_key_get_one_object(tmp_path: Path) -> None:
    first, second = (FileObjects(RealFs(), str(tmp_path)) for _ in range(2))
    first.create("a", [b"first"], "1")
    with pytest.raises(ObjectExists):
        second.create("a", [b"second"], "2")
    assert second.read("a", 0, 10) == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_that_a_network_file_system_made_twice_is_ours(tmp_path: Path) -> None:
    class TwiceLinkingFs(RealFs):
        def link(self, source: str, target: str) -> None:
            super().link(source, target)
            super().link(source, target)

    store = FileObjects(TwiceLinkingFs(), str(tmp_path))
    store.create("a", PARTS, "id")
    assert store.read("a", 0, 100) == b"one object"


def test_errors_say_whether_a_retry_can_help(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused):
        FileObjects(RealFs(), str(tmp_path / "file")).create("a", PARTS, "id")
    disk = _empty_store()
    disk.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(StoreFull, match=r"10 bytes needed for an object, [0-9,]+ bytes free: '/s'"):
        FileObjects(disk, "/s").create("a", PARTS, "id")
    assert disk.list_dir("/s") == []
    disk.fail("pwrite", error=errno.EDQUOT)
    with pytest.raises(StoreFull, match=r"10 bytes needed for an object: '/s'"):
        FileObjects(disk, "/s").create("a", PARTS, "id")
    disk.fail("create", error=errno.EROFS)
    with pytest.raises(StoreRefused):
        FileObjects(disk, "/s").create("a", PARTS, "id")
    disk.fail("sync_data", error=errno.EIO)
    with pytest.raises(StoreUnavailable, match="'/s/a'"):
        FileObjects(disk, "/s").create("a", PARTS, "id")


def test_an_object_survives_a_power_cut_whole_once_created() -> None:
    """The power is cut at every disk call of two creations, with several outcomes for unsynced data."""
    calls = _calls_of_two_creations()
    assert calls > 10
    for call in range(calls + 1):
        for seed in range(5):
            disk = _empty_store()
            created = _create_until_cut(disk, call)
            left = FileObjects(disk.after_power_cut(Random(seed)), "/s")
            keys = [info.key for info in left.list("")]
            assert set(created) <= set(keys)
            for key in keys:
                assert left.read(key, 0, 100) == b"one object"
            # The next writer of the same key either finds the object or creates it.
            if "d/b" not in keys:
                left.create("d/b", PARTS, "id")
            assert left.read("d/b", 0, 100) == b"one object"


KEYS = ("d/a", "d/b")


def _create_until_cut(disk: MemoryDisk, call: int) -> list[str]:
    """Create two objects; the power fails during the n-th call. Return the keys that were acknowledged."""
    disk.cut_power_after(call)
    store = FileObjects(disk, "/s")
    created: list[str] = []
    try:
        for key in KEYS:
            store.create(key, PARTS, "id")
            created.append(key)
    except MachineGoneError:
        pass
    return created


def _calls_of_two_creations() -> int:
    disk = _empty_store()
    before = disk.calls
    for key in KEYS:
        FileObjects(disk, "/s").create(key, PARTS, "id")
    return disk.calls - before


def _empty_store() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dir("/s")
    disk.sync_dir("/")
    return disk


def test_an_object_survives_a_power_cut_after_a_writer_before_it_was_killed() -> None:
    """A killed process may have made a folder without a sync; the next one must not rely on it."""
    for call in range(_calls_of_two_creations()):
        disk = _empty_store()
        disk.kill_process_after(call)
        with suppress(MachineGoneError):
            FileObjects(disk, "/s").create("d/e/a", PARTS, "id")
        disk = disk.after_process_kill()
        with suppress(ObjectExists):
            FileObjects(disk, "/s").create("d/e/a", PARTS, "id")
        for seed in range(5):
            left = FileObjects(disk.after_power_cut(Random(seed)), "/s")
            assert left.read("d/e/a", 0, 100) == b"one object", f"killed at call {call}, seed {seed}"
