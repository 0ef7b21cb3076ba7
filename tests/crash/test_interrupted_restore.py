"""A restore that is interrupted at any call of the disk does not start, and is continued by the next one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from shared.ipc.placement import Placement
from shared.runtime.clock import SystemClock
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import RealShard, record
from topicsd.backup.create import CreateOptions, Creator
from topicsd.backup.manifest import BackupManifest
from topicsd.backup.repository import Repository
from topicsd.backup.restore import Restorer
from topicsd.backup.server_call import Source
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import LayoutError, read_layout
from topicsd.offline.data_dir import DataDir
from topicsd.store.file_objects import FileObjects

TARGET = "/restored"
NOTE = f"{TARGET}/RESTORING"


class Stored:
    """A backup of a small directory: sealed and active segments, marks, a snapshot, a log, a placement."""

    def __init__(self, folder: Path) -> None:
        one = RealShard(folder / "data", segment_max_events=7)
        for number in range(30):
            one.append("t", record(number, tag="ab"[number % 2]), idempotency_key=f"k{number}")
            if number in (10, 20):
                one.checkpoint()
                one.delete("t", seqs=[number - 3, number])
        one.close()
        (folder / "store").mkdir()
        fs, path = RealFs(), str(folder / "data")
        layout = read_layout(fs, path)
        assert layout is not None
        self.store = FileObjects(fs, str(folder / "store"))
        data_dir = DataDir(fs, path, layout, Placement(1), [0])
        repository = self.repository()
        head = Creator(fs, data_dir, repository, CreateOptions(Source("", "")), len_of).run()
        self.manifest: BackupManifest = repository.read(head.id)._replace(placement=b"{}")

    def repository(self) -> Repository:
        return Repository(self.store, SystemClock())

    def restore(self, disk: MemoryDisk) -> None:
        Restorer(disk, self.repository(), self.manifest, TARGET, len_of).run()


def len_of(count: int) -> int:
    return count


def tree(disk: MemoryDisk, path: str = TARGET) -> dict[str, bytes]:
    """Return every file but CURRENT, which names the boot and the inode of the log."""
    files: dict[str, bytes] = {}
    for name in disk.list_dir(path):
        child = f"{path}/{name}"
        try:
            files |= tree(disk, child)
        except NotADirectoryError:
            fd = disk.open_read(child)
            files[child] = b"" if name == "CURRENT" else disk.pread(fd, disk.fstat(fd).size, 0)
            disk.close(fd)
    return files


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("backup"))


@pytest.mark.parametrize("is_power_cut", [True, False], ids=["power cut", "killed"])
def test_a_restore_interrupted_at_any_call_is_continued(stored: Stored, is_power_cut: bool) -> None:
    whole = MemoryDisk()
    stored.restore(whole)
    expected = tree(whole)
    assert len(expected) > 15
    assert not any("RESTORING" in path or path.endswith(".tmp") for path in expected)
    rng = Random(5)
    unfinished = 0
    for call in range(1, whole.calls + 1):
        disk = MemoryDisk()
        (disk.cut_power_after if is_power_cut else disk.kill_process_after)(call)
        # The threads of a restore make a few calls more or less.
        with suppress(MachineGoneError):
            stored.restore(disk)
        disk = disk.after_power_cut(rng) if is_power_cut else disk.after_process_kill()
        try:
            has_started = read_layout(disk, TARGET) is not None
        except LayoutError:
            has_started = False
        if has_started:
            # LAYOUT.json is last: everything else is there.
            assert {**tree(disk), f"{TARGET}/RESTORING": b""} == {**expected, f"{TARGET}/RESTORING": b""}, (
                call
            )
            continue
        unfinished += 1
        stored.restore(disk)
        assert tree(disk) == expected, call
    assert unfinished > 50
