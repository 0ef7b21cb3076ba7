"""The kernel behind the seam: what each call does, and that each failure is the OSError it gave."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from topicsd.disk.fs import RealFs

fs = RealFs()

NO_FD = 1_000_000


@pytest.fixture
def file(tmp_path: Path) -> tuple[str, int]:
    path = str(tmp_path / "file")
    fd = fs.create(path)
    fs.pwrite(fd, b"0123456789", 0)
    return path, fd


def test_a_new_file_is_for_reading_and_writing_and_its_owner_alone_may_write_it(tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    fd = fs.create(path)
    assert fs.pwrite(fd, b"abc", 0) == 3
    assert fs.pread(fd, 3, 0) == b"abc"
    assert os.stat(path).st_mode & 0o037 == 0
    assert not os.get_inheritable(fd)


def test_a_new_file_takes_no_name_that_is_taken(file: tuple[str, int]) -> None:
    with pytest.raises(FileExistsError):
        fs.create(file[0])


def test_any_buffer_is_written_at_its_offset(file: tuple[str, int]) -> None:
    path, fd = file
    assert fs.pwrite(fd, memoryview(b"xAByz")[1:3], 2) == 2
    assert fs.pwrite(fd, bytearray(b"C"), 12) == 1
    assert Path(path).read_bytes() == b"01AB456789\0\0C"


def test_a_read_ends_only_at_the_end_of_the_file(file: tuple[str, int]) -> None:
    path, _ = file
    fd = fs.open_read(path)
    assert fs.pread(fd, 4, 0) == b"0123"
    assert fs.pread(fd, 100, 8) == b"89"
    assert fs.pread(fd, 100, 10) == b""
    assert fs.pread(fd, 0, 0) == b""


def test_a_read_that_a_signal_cut_short_is_continued(
    file: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pread

    def one_byte(fd: int, size: int, offset: int) -> bytes:
        return whole(fd, min(size, 3), offset)

    monkeypatch.setattr(os, "pread", one_byte)
    assert fs.pread(file[1], 8, 1) == b"12345678"
    assert fs.pread(file[1], 100, 1) == b"123456789"


def test_a_file_opened_for_reading_cannot_be_written(file: tuple[str, int]) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.pwrite(fs.open_read(file[0]), b"x", 0)


def test_a_file_opened_for_writing_keeps_what_it_has(file: tuple[str, int]) -> None:
    fd = fs.open_write(file[0])
    assert fs.pwrite(fd, b"AB", 0) == 2
    assert fs.pread(fd, 100, 0) == b"AB23456789"


def test_room_is_given_as_zeros_and_what_was_there_stays(file: tuple[str, int]) -> None:
    path, fd = file
    fs.allocate(fd, 8192)
    assert fs.fstat(fd).size == 8192
    assert os.stat(path).st_blocks * 512 >= 8192
    assert fs.pread(fd, 8192, 0) == b"0123456789" + bytes(8182)
    fs.allocate(fd, 100)
    assert fs.fstat(fd).size == 8192


def test_a_file_is_cut_and_grown_to_a_size(file: tuple[str, int]) -> None:
    fs.truncate(file[1], 4)
    fs.truncate(file[1], 6)
    assert fs.pread(file[1], 100, 0) == b"0123\0\0"


def test_syncing_a_file_a_directory_and_the_cache_goes_through(file: tuple[str, int]) -> None:
    fs.sync_data(file[1])
    fs.sync_dir(os.path.dirname(file[0]))
    fs.drop_cache(file[1])
    assert fs.pread(file[1], 100, 0) == b"0123456789"


def test_syncing_a_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    fs.sync_dir(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


def test_a_lock_that_is_refused_leaves_no_descriptor_open(tmp_path: Path) -> None:
    fd = fs.lock(str(tmp_path / "LOCK"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        fs.lock(str(tmp_path / "LOCK"))
    assert os.listdir("/proc/self/fd") == before
    fs.close(fd)
    fs.close(fs.lock(str(tmp_path / "LOCK")))


def test_a_renamed_file_replaces_its_target_and_keeps_its_inode(
    file: tuple[str, int], tmp_path: Path
) -> None:
    target = str(tmp_path / "target")
    fs.close(fs.create(target))
    fs.rename(file[0], target)
    assert fs.list_dir(str(tmp_path)) == ["target"]
    assert fs.stat(target) == fs.fstat(file[1])


def test_a_link_is_a_second_name_of_the_same_file(file: tuple[str, int], tmp_path: Path) -> None:
    second = str(tmp_path / "second")
    fs.link(file[0], second)
    assert fs.stat(second).inode == fs.stat(file[0]).inode
    fs.unlink(file[0])
    assert fs.list_dir(str(tmp_path)) == ["second"]


def test_names_in_a_directory_come_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        fs.make_dir(str(tmp_path / name))
    assert fs.list_dir(str(tmp_path)) == ["a", "b", "c"]


def test_a_new_directory_is_not_open_to_everybody(tmp_path: Path) -> None:
    fs.make_dir(str(tmp_path / "dir"))
    assert os.stat(tmp_path / "dir").st_mode & 0o027 == 0


def test_a_stat_is_of_the_link_itself_and_an_open_does_not_follow_it(
    file: tuple[str, int], tmp_path: Path
) -> None:
    link = str(tmp_path / "link")
    os.symlink(file[0], link)
    assert fs.stat(link).inode != fs.stat(file[0]).inode
    for opened in (fs.open_read, fs.open_write):
        with pytest.raises(OSError, match="symbolic link") as caught:
            opened(link)
        assert caught.value.errno == errno.ELOOP


def test_free_space_is_what_this_user_may_still_take(tmp_path: Path) -> None:
    assert 0 < fs.free_bytes(str(tmp_path)) < 1 << 60


def test_one_run_of_the_machine_has_one_boot_id() -> None:
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", fs.boot_id())
    assert fs.boot_id() == fs.boot_id()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda path: fs.open_read(path), errno.ENOENT),
        (lambda path: fs.open_write(path), errno.ENOENT),
        (lambda path: fs.rename(path, path + "2"), errno.ENOENT),
        (lambda path: fs.link(path, path + "2"), errno.ENOENT),
        (lambda path: fs.unlink(path), errno.ENOENT),
        (lambda path: fs.make_dir(path + "/deeper"), errno.ENOENT),
        (lambda path: fs.remove_dir(path), errno.ENOENT),
        (lambda path: fs.lock(path + "/LOCK"), errno.ENOENT),
        (lambda path: fs.list_dir(path), errno.ENOENT),
        (lambda path: fs.stat(path), errno.ENOENT),
        (lambda path: fs.free_bytes(path), errno.ENOENT),
        (lambda path: fs.sync_dir(path), errno.ENOENT),
        (lambda path: fs.sync_data(NO_FD), errno.EBADF),
        (lambda path: fs.allocate(NO_FD, 10), errno.EBADF),
        (lambda path: fs.truncate(NO_FD, 10), errno.EBADF),
        (lambda path: fs.drop_cache(NO_FD), errno.EBADF),
        (lambda path: fs.pread(NO_FD, 1, 0), errno.EBADF),
        (lambda path: fs.fstat(NO_FD), errno.EBADF),
        (lambda path: fs.close(NO_FD), errno.EBADF),
        (lambda path: fs.sync_dir(__file__), errno.ENOTDIR),
        (lambda path: fs.list_dir(__file__), errno.ENOTDIR),
        (lambda path: fs.remove_dir(__file__), errno.ENOTDIR),
        (lambda path: fs.remove_dir(str(Path(__file__).parent)), errno.ENOTEMPTY),
    ],
)
def test_a_failure_is_the_errno_of_the_kernel(
    call: Callable[[str], object], code: int, tmp_path: Path
) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011, the errno says which
        call(str(tmp_path / "missing"))
    assert caught.value.errno == code
