"""The next file: made ahead, made in time, or not to be had."""

from __future__ import annotations

import errno

import pytest

from tests.harness.shard.wal_bytes import append_frame
from tests.unit.log.written_log import A_FILE, BATCH, FILE_BYTES, FRAME, Written
from topicsd.disk.layout import wal_name
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.walk import LogVerdict
from topicsd.log.writer import LogEnd


def test_a_current_for_which_there_is_no_room_stays_where_it_was_and_moves_at_the_next_rotation() -> None:
    written = Written()
    written.write(A_FILE + 1)
    written.disk.fail("create", error=errno.ENOSPC)
    written.sync()
    assert written.current is not None
    assert written.current.file == 1
    written.write(A_FILE)
    written.sync()
    assert written.current.file == 1 + 4 * A_FILE
    assert written.walk()[0].verdict is LogVerdict.END


@pytest.mark.parametrize("step", ["create", "allocate", "pwrite", "rename"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_rotation_that_fails_leaves_no_file_and_can_be_tried_again(step: str, error: int) -> None:
    written = Written()
    written.write(A_FILE)
    before, names, fds = written.writer.end, written.names(), set(written.disk.open_files)
    written.disk.fail(step, error=error)
    with pytest.raises(OSError) as caught:  # noqa: PT011, the errno says which
        written.write()
    assert caught.value.errno == error
    assert (written.writer.end, written.names(), set(written.disk.open_files)) == (before, names, fds)
    written.write(2)
    assert written.walk()[1] == [len(FRAME)] * (A_FILE + 2)


STEPS_OF_A_FIRST_FILE = [
    ("create", 1),
    ("allocate", 1),
    ("pwrite", 1),
    ("rename", 1),
    ("sync_data", 1),
    ("sync_dir", 1),
    ("create", 2),
    ("pwrite", 2),
    ("sync_data", 2),
    ("rename", 2),
    ("sync_dir", 2),
    ("pwrite", 3),
]


@pytest.mark.parametrize(("step", "nth"), STEPS_OF_A_FIRST_FILE)
def test_a_first_file_that_has_no_room_is_tried_again_from_the_start(step: str, nth: int) -> None:
    written = Written()
    written.disk.fail(step, nth=nth, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        written.write()
    assert (written.writer.end, written.writer.has_file) == (LogEnd(0, 1, 0), (step, nth) == ("pwrite", 3))
    written.write(2)
    assert written.walk()[1] == [len(FRAME)] * 2
    assert [name for name in written.names() if name != "CURRENT"] == [wal_name(1)]
    assert len(written.disk.open_files) == 1
    assert written.files.read(0, len(FRAME)) == FRAME


def test_a_disk_without_room_for_the_next_file_takes_back_what_it_began() -> None:
    written = Written(space_bytes=2 * FILE_BYTES)
    written.write(A_FILE)
    with pytest.raises(OSError, match="No space"):
        written.write()
    assert written.names() == ["CURRENT", wal_name(1)]
    assert written.writer.free_bytes() == 2 * FILE_BYTES - FILE_BYTES - 512


def test_a_spare_made_ahead_is_the_next_file() -> None:
    written = Written()
    written.write(A_FILE // 2 + 1)
    assert written.writer.needs_spare
    make = written.writer.make_spare()
    assert "spare-2.log" not in written.names()
    written.writer.add_spare(make())
    assert not written.writer.needs_spare
    assert "spare-2.log" in written.names()
    written.write(A_FILE // 2)
    assert written.disk.trace is not None
    written.disk.trace.clear()
    written.write()
    assert [call.split()[0] for call in written.calls()] == ["pwrite", "rename", "pwrite"]
    assert written.walk()[1] == [len(FRAME)] * (2 * (A_FILE // 2) + 2)


def test_no_spare_is_wanted_before_half_of_the_file_is_used() -> None:
    written = Written()
    written.write()
    assert not written.writer.needs_spare
    while written.writer.room_bytes * 2 >= FILE_BYTES:
        assert not written.writer.needs_spare
        written.write()
    assert written.writer.needs_spare


def test_a_spare_too_small_for_a_large_request_is_kept_for_the_next_file() -> None:
    written = Written()
    written.write()
    written.writer.add_spare(written.writer.make_spare()())
    written.write(frame=append_frame(2, b"y" * (2 * FILE_BYTES)))
    assert "spare-2.log" in written.names()
    written.write()
    assert not any(name.startswith("spare") for name in written.names())
    assert len(written.walk()[1]) == 3


def test_a_spare_for_which_there_is_no_room_leaves_nothing_behind() -> None:
    written = Written(space_bytes=FILE_BYTES + 2000)
    written.write()
    fds = set(written.disk.open_files)
    with pytest.raises(OSError, match="No space"):
        written.writer.make_spare()()
    assert (written.names(), set(written.disk.open_files)) == (["CURRENT", wal_name(1)], fds)


def test_a_clean_end_is_said_in_current_and_leaves_no_spare() -> None:
    written = Written()
    written.write(2)
    written.writer.add_spare(written.writer.make_spare()())
    written.sync()
    written.writer.write_clean_end()
    assert written.names() == ["CURRENT", wal_name(1)]
    assert written.current is not None
    assert (written.current.state, written.current.file) == ("clean", 1)
    assert written.current.end == FILE_HEADER_BYTES + 2 * BATCH
