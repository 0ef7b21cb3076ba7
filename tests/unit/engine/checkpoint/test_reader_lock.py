from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.checkpoint.sample import PATHS, shard_disk
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.reader_lock import ReaderLock, readers_held

HOLD = """
import fcntl, sys
file = open(sys.argv[1], sys.argv[2])
fcntl.flock(file, fcntl.LOCK_SH if sys.argv[3] == "shared" else fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def real_paths(tmp_path: Path) -> ShardPaths:
    paths = ShardPaths(str(tmp_path))
    (tmp_path / "meta" / "readers").mkdir(parents=True)
    return paths


class Interrupting(MemoryDisk):
    """Does something once, right behind a `lock` or in front of it."""

    before_lock: object = None
    after_lock: object = None

    def lock(self, path: str) -> int:
        before, self.before_lock = self.before_lock, None
        if callable(before):
            before(path)
        fd = super().lock(path)
        after, self.after_lock = self.after_lock, None
        if callable(after):
            after(path)
        return fd


def interrupting_disk() -> Interrupting:
    disk = Interrupting()
    disk.make_dirs(PATHS.readers)
    return disk


def test_a_lock_is_seen_while_it_is_held_and_leaves_nothing_behind() -> None:
    disk = shard_disk()
    assert not readers_held(disk, PATHS)
    with ReaderLock(PATHS.readers, "spark", disk):
        assert readers_held(disk, PATHS)
        assert [name[:6] for name in disk.list_dir(PATHS.readers)] == ["spark-"]
    assert not readers_held(disk, PATHS)
    assert disk.list_dir(PATHS.readers) == []
    assert not disk.open_files


def test_it_is_let_go_when_the_reader_fails() -> None:
    disk = shard_disk()
    with pytest.raises(ZeroDivisionError), ReaderLock(PATHS.readers, "spark", disk):
        raise ZeroDivisionError
    assert disk.list_dir(PATHS.readers) == []


def test_many_readers_of_one_id_hold_each_their_own() -> None:
    disk = shard_disk()
    with ReaderLock(PATHS.readers, "spark", disk):
        with ReaderLock(PATHS.readers, "spark", disk):
            assert len(disk.list_dir(PATHS.readers)) == 2
        assert readers_held(disk, PATHS)


def test_what_a_dead_reader_left_is_unlinked_also_beside_one_that_is_held() -> None:
    disk = shard_disk()
    disk.write_file(f"{PATHS.readers}/a-dead", b"")
    disk.write_file(f"{PATHS.readers}/z-dead", b"")
    with ReaderLock(PATHS.readers, "m", disk) as lock:
        assert readers_held(disk, PATHS)
        assert disk.list_dir(PATHS.readers) == [os.path.basename(lock._path)]


def test_no_directory_for_readers_is_no_reader() -> None:
    assert not readers_held(MemoryDisk(), PATHS)


@pytest.mark.parametrize("reader_id", ["", ".", "../x", "a/b", "a\n", "-x", "ä", "x" * 101])
def test_an_id_that_could_be_a_path_is_refused(reader_id: str) -> None:
    with pytest.raises(ValueError, match="reader_id: must be"):
        ReaderLock(PATHS.readers, reader_id)


def test_a_reader_whose_file_is_unlinked_as_it_locks_it_takes_another() -> None:
    disk = interrupting_disk()
    disk.after_lock = disk.unlink
    with ReaderLock(PATHS.readers, "spark", disk):
        assert readers_held(disk, PATHS), "what it believes to hold is what the server sees"
    assert not disk.open_files


def test_a_reader_whose_name_is_given_to_another_file_as_it_locks_takes_another() -> None:
    disk = interrupting_disk()

    def replace(path: str) -> None:
        disk.unlink(path)
        disk.close(disk.create(path))

    disk.after_lock = replace
    with ReaderLock(PATHS.readers, "spark", disk) as lock:
        assert readers_held(disk, PATHS)
        assert disk.list_dir(PATHS.readers) == [os.path.basename(lock._path)]


def test_a_reader_that_the_server_is_asking_about_takes_another() -> None:
    disk = interrupting_disk()
    asking: list[int] = []
    disk.before_lock = lambda path: asking.append(MemoryDisk.lock(disk, path))
    with ReaderLock(PATHS.readers, "spark", disk) as lock:
        disk.unlink(disk.open_files[asking[0]].path)
        disk.close(asking[0])
        assert disk.list_dir(PATHS.readers) == [os.path.basename(lock._path)]


def test_a_server_that_unlinks_for_ever_is_an_error_and_not_a_loop() -> None:
    class Unlinking(MemoryDisk):
        def lock(self, path: str) -> int:
            fd = super().lock(path)
            self.unlink(path)
            return fd

    disk = Unlinking()
    disk.make_dirs(PATHS.readers)
    with pytest.raises(TimeoutError), ReaderLock(PATHS.readers, "spark", disk):
        pass
    assert not disk.open_files


def test_missing_write_permission_is_reported() -> None:
    disk = shard_disk()
    disk.fail("lock", error=errno.EACCES)
    with pytest.raises(PermissionError), ReaderLock(PATHS.readers, "spark", disk):
        pass


def test_a_file_that_the_server_may_not_open_holds_if_its_holder_can_be_seen() -> None:
    disk = shard_disk()
    with ReaderLock(PATHS.readers, "spark", disk):
        disk.fail("lock", error=errno.EACCES)
        assert readers_held(disk, PATHS)
    disk.write_file(f"{PATHS.readers}/foreign", b"")
    disk.fail("lock", error=errno.EACCES)
    assert not readers_held(disk, PATHS)
    assert disk.list_dir(PATHS.readers) == ["foreign"]


def test_a_disk_that_does_not_answer_is_not_taken_for_no_reader() -> None:
    disk = shard_disk()
    with ReaderLock(PATHS.readers, "spark", disk) as lock:
        for call in ("lock", "list_dir"):
            disk.fail(call)
            with pytest.raises(OSError, match="Input/output"):
                readers_held(disk, PATHS)
        assert disk.list_dir(PATHS.readers) == [os.path.basename(lock._path)]


@pytest.mark.parametrize(("mode", "kind"), [("r", "shared"), ("r", "exclusive"), ("r+", "exclusive")])
def test_a_lock_of_another_process_is_seen_until_it_dies(tmp_path: Path, mode: str, kind: str) -> None:
    paths = real_paths(tmp_path)
    path = os.path.join(paths.readers, "backup")
    Path(path).touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path, mode, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert readers_held(RealFs(), paths)
        assert readers_held(RealFs(), paths), "asking takes nothing away"
        holder.kill()
    assert not readers_held(RealFs(), paths)
    assert os.listdir(paths.readers) == []


def test_what_is_no_lock_file_keeps_nothing_and_stays_as_it_is(tmp_path: Path) -> None:
    paths = real_paths(tmp_path)
    os.mkdir(os.path.join(paths.readers, "directory"))
    os.symlink(tmp_path / "elsewhere", os.path.join(paths.readers, "link"))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.join(paths.readers, "socket"))
        assert not readers_held(RealFs(), paths)
    assert sorted(os.listdir(paths.readers)) == ["directory", "link", "socket"]
    assert not os.path.exists(tmp_path / "elsewhere"), "no file is made where a link points to"


def test_a_reader_on_a_real_disk_holds_by_default(tmp_path: Path) -> None:
    paths = real_paths(tmp_path)
    with ReaderLock(paths.readers, "spark"):
        assert readers_held(RealFs(), paths)
    assert not readers_held(RealFs(), paths)
    assert os.listdir(paths.readers) == []
