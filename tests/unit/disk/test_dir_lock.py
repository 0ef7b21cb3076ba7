from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs, RealFs

PROJECT = Path(__file__).parents[3]

HOLDER = """
import sys
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import RealFs
lock = DirLock(RealFs(), sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "kernel"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Fs, str]:
    """A disk, and where a lock file may be on it."""
    if request.param == "kernel":
        return RealFs(), str(tmp_path / "LOCK")
    return MemoryDisk(), "/LOCK"


def test_a_second_owner_is_refused_with_the_path(place: tuple[Fs, str]) -> None:
    fs, path = place
    lock = DirLock(fs, path)
    with pytest.raises(DirectoryInUse, match=f"{path}: locked by another process"):
        DirLock(fs, path)
    lock.release()


def test_a_released_directory_can_be_taken_again(place: tuple[Fs, str]) -> None:
    fs, path = place
    DirLock(fs, path).release()
    DirLock(fs, path).release()


def test_a_lock_that_cannot_be_made_is_the_error_of_the_disk(place: tuple[Fs, str]) -> None:
    fs, path = place
    with pytest.raises(FileNotFoundError):
        DirLock(fs, f"{path}-no-directory/LOCK")


def test_a_killed_machine_process_leaves_no_lock_behind() -> None:
    disk = MemoryDisk()
    DirLock(disk, "/LOCK")
    DirLock(disk.after_process_kill(), "/LOCK")


def test_another_process_is_refused_until_the_owner_ends_however_it_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryInUse):
            DirLock(RealFs(), path)
        holder.kill()
        holder.wait()
        DirLock(RealFs(), path).release()


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    lock = DirLock(RealFs(), path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        lock.release()
        DirLock(RealFs(), path).release()
        child.kill()
