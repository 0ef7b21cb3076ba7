from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.shard_driver import IDENTITY, PATHS
from tests.harness.shard.wal_bytes import append_frame
from tests.unit.log.written_log import A_FILE, BATCH, FILE_BYTES, FRAME, Written
from topicsd.disk.layout import wal_name
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.file_header import FILE_HEADER_BYTES, parse_file_header
from topicsd.log.files import LogFiles
from topicsd.log.walk import LogVerdict
from topicsd.log.writer import WRITE_CHUNK_BYTES, LogEnd, LogWriter


def test_a_start_that_writes_nothing_makes_no_file() -> None:
    written = Written()
    assert not written.writer.has_file
    assert written.writer.room_bytes == 0
    written.writer.write_clean_end()
    assert written.names() == []
    assert written.disk.calls == 0


def test_a_batch_is_one_write_with_its_frames_in_order() -> None:
    written = Written()
    written.write()
    written.disk.trace = []
    written.writer.write([b"", FRAME, append_frame(2)], 2)
    assert written.calls() == [
        f"pwrite spare-1.log {BATCH + len(append_frame(2))} bytes {FILE_HEADER_BYTES + BATCH}"
    ]
    assert written.walk()[1] == [len(FRAME), len(FRAME) + len(append_frame(2))]


def test_the_end_advances_with_every_batch() -> None:
    written = Written()
    written.write()
    assert (written.writer.end.position, written.writer.end.ordinal) == (BATCH, 3)
    written.writer.write([], 0)
    assert (written.writer.end.position, written.writer.end.ordinal) == (BATCH + BATCH_END_BYTES, 4)
    walk, _ = written.walk()
    assert LogEnd(walk.position, walk.ordinal, walk.chain) == written.writer.end
    assert written.writer.room_bytes == FILE_BYTES - FILE_HEADER_BYTES - BATCH - BATCH_END_BYTES


def test_the_first_file_is_on_the_disk_with_its_name_and_a_running_current_before_a_batch_is() -> None:
    """W1."""
    written = Written()
    written.write()
    assert written.calls() == [
        "create spare-1.log",
        f"allocate spare-1.log {FILE_BYTES}",
        f"pwrite spare-1.log {FILE_HEADER_BYTES} bytes 0",
        "sync_data spare-1.log",
        f"rename spare-1.log {wal_name(1)}",
        f"sync_dir {PATHS.wal}",
        "create CURRENT.tmp",
        "pwrite CURRENT.tmp 512 bytes 0",
        "sync_data CURRENT.tmp",
        "rename CURRENT.tmp CURRENT",
        f"sync_dir {PATHS.wal}",
        f"pwrite spare-1.log {BATCH} bytes {FILE_HEADER_BYTES}",
    ]
    assert written.current is not None
    placed = written.disk.stat(PATHS.wal_file(1))
    assert (written.current.state, written.current.file) == ("running", 1)
    assert written.current.is_same_place(written.disk.stat(PATHS.current), placed, written.disk.boot_id())


def test_a_full_file_is_followed_by_the_next_with_nothing_lost_between() -> None:
    written = Written()
    written.write(A_FILE + 1)
    assert written.names() == ["CURRENT", wal_name(1), wal_name(1 + 2 * A_FILE)]
    walk, sizes = written.walk()
    assert walk.verdict is LogVerdict.END
    assert sizes == [len(FRAME)] * (A_FILE + 1)
    second = parse_file_header(written.disk.read_file(PATHS.wal_file(1 + 2 * A_FILE)))
    first = parse_file_header(written.disk.read_file(PATHS.wal_file(1)))
    assert second.epoch != first.epoch
    assert (second.instance, second.shard, second.file_bytes) == (IDENTITY.instance, 0, FILE_BYTES)


def test_a_batch_that_fits_to_the_byte_stays_in_its_file() -> None:
    written = Written()
    room = FILE_BYTES - FILE_HEADER_BYTES - BATCH_END_BYTES
    written.write_batch([b"\1" * room])
    assert written.writer.room_bytes == 0
    assert [name for name in written.names() if name != "CURRENT"] == [wal_name(1)]


def test_a_request_larger_than_a_file_gets_a_file_of_its_size() -> None:
    written = Written()
    written.write()
    large = append_frame(2, b"y" * (3 * FILE_BYTES))
    written.write(frame=large)
    assert written.disk.stat(PATHS.wal_file(3)).size == FILE_HEADER_BYTES + len(large) + BATCH_END_BYTES
    assert written.writer.room_bytes == 0
    written.write()
    assert written.disk.stat(PATHS.wal_file(5)).size == FILE_BYTES
    assert written.walk()[1] == [len(FRAME), len(large), len(FRAME)]
    assert written.files.read(BATCH, BATCH + len(large)) == large


def test_a_rotation_syncs_the_old_file_then_the_new_one_then_the_name_and_then_moves_current() -> None:
    """W2."""
    written = Written()
    written.write(A_FILE + 1)
    written.disk.trace = []
    sync = written.writer.prepare_sync()
    assert written.current is not None
    assert written.current.file == 1
    sync.run()
    assert written.calls() == [
        "sync_data spare-1.log",
        "sync_data spare-2.log",
        f"sync_dir {PATHS.wal}",
        "create CURRENT.tmp",
        "pwrite CURRENT.tmp 512 bytes 0",
        "sync_data CURRENT.tmp",
        "rename CURRENT.tmp CURRENT",
        f"sync_dir {PATHS.wal}",
    ]
    assert written.current.file == 1 + 2 * A_FILE


def test_a_sync_within_a_file_is_one_call() -> None:
    written = Written()
    written.write()
    written.disk.trace = []
    written.sync()
    assert written.calls() == ["sync_data spare-1.log"]


def test_an_end_says_what_was_synced_when_it_was_written_and_nothing_before_the_rotation_is_done() -> None:
    """W2."""
    written = Written()
    written.write(2)
    written.sync()
    written.write()
    assert written.synced_offsets() == [FILE_HEADER_BYTES] * 2 + [FILE_HEADER_BYTES + 2 * BATCH]
    written = Written()
    written.write(A_FILE + 2)
    assert written.synced_offsets()[A_FILE:] == [0, 0]
    written.sync()
    written.write()
    assert written.synced_offsets()[-1] == FILE_HEADER_BYTES + 2 * BATCH


def test_a_sync_of_a_file_that_was_left_meanwhile_says_nothing_about_the_new_one() -> None:
    written = Written()
    written.write(A_FILE)
    early = written.writer.prepare_sync()
    written.write(2)
    early.run()
    written.writer.synced(early)
    written.write()
    assert written.synced_offsets()[A_FILE:] == [0, 0, 0]
    written.disk.trace = []
    written.sync()
    assert written.calls()[:2] == ["sync_data spare-1.log", "sync_data spare-2.log"]


def test_a_current_that_cannot_be_written_for_another_reason_fails_the_sync() -> None:
    written = Written()
    written.write(A_FILE + 1)
    written.disk.fail("rename")
    with pytest.raises(OSError, match="Input/output"):
        written.sync()


def test_after_a_failed_write_the_next_batch_goes_to_the_same_place() -> None:
    """W3."""
    written = Written()
    written.write()
    before = written.writer.end
    for short_bytes in (0, 1, BATCH - 1):
        written.disk.fail("pwrite", short=True, short_bytes=short_bytes)
        written.disk.fail("pwrite", nth=2, error=errno.ENOSPC)
        with pytest.raises(OSError, match=r"No space|took \d+ of"):
            written.writer.write([append_frame(2, b"failed" * 40)], 1)
        written.disk.clear_faults()
        assert written.writer.end == before
    written.write(frame=append_frame(2, b"new"))
    walk, sizes = written.walk()
    assert sizes == [len(FRAME), len(append_frame(2, b"new"))]
    assert walk.position == written.writer.end.position


def test_a_failed_batch_that_reached_the_disk_whole_does_not_come_back_behind_the_next_one() -> None:
    """W3."""
    written = Written()
    written.write()
    failed = written.writer.end
    written.write(frame=append_frame(2, b"failed" * 40))
    written.writer._end, written.writer._offset = failed, FILE_HEADER_BYTES + BATCH
    written.write(frame=append_frame(2, b"new"))
    walk, sizes = written.walk()
    assert sizes == [len(FRAME), len(append_frame(2, b"new"))]
    assert walk.verdict is LogVerdict.CUT


def test_a_run_never_appends_to_a_file_that_was_there_before() -> None:
    """W4."""
    before = Written()
    before.write(2)
    before.sync()
    content = before.disk.read_file(PATHS.wal_file(1))
    files = LogFiles(before.disk)
    writer = LogWriter(before.disk, ManualClock(), PATHS, IDENTITY, files, before.writer.end, FILE_BYTES)
    writer.add_spare(writer.make_spare(len(FRAME))())
    writer.write([FRAME], 1)
    assert before.disk.read_file(PATHS.wal_file(1)) == content
    walk, sizes = before.walk()
    assert (len(sizes), [file.wal_file.name for file in walk.files]) == (3, [wal_name(1), wal_name(5)])


def test_a_run_that_may_have_lost_something_names_no_boot_before_that_is_in_the_log() -> None:
    """W5."""
    for writes_first in (True, False):
        written = Written(heads_exact=False)
        if writes_first:
            written.write()
            assert written.current is not None
            assert written.current.boot_id == ""
        written.writer.record_boot_id()
        written.write()
        assert written.current is not None
        assert (written.current.state, written.current.boot_id) == ("running", written.disk.boot_id())
        written.disk.trace = []
        written.writer.record_boot_id()
        assert written.calls() == []


def test_a_sync_failure_is_noted_in_current() -> None:
    written = Written()
    written.write()
    written.writer.note_sync_failure()
    assert written.current is not None
    assert written.current.state == "sync_failed"


@pytest.mark.parametrize("call", ["write", "sync"])
def test_any_call_that_fails_is_the_error_of_the_disk_and_nothing_else(call: str) -> None:
    play: dict[str, Callable[[Written], Any]] = {
        "write": lambda written: written.write(A_FILE + 1),
        "sync": lambda written: (written.write(A_FILE + 1), written.sync()),
    }
    clean = Written()
    play[call](clean)
    for nth in range(1, clean.disk.calls + 1):
        written = Written()
        written.disk.fail(nth=nth)
        with pytest.raises(OSError, match="Input/output"):
            play[call](written)


def large_batch() -> list[bytes]:
    """Small parts and large ones, with all that a join would copy."""
    return [
        append_frame(1, b"y" * size) for size in (10, WRITE_CHUNK_BYTES // 2, 20, 2 * WRITE_CHUNK_BYTES, 30)
    ] * 2


def test_a_large_batch_is_written_in_chunks_and_read_as_one() -> None:
    written = Written()
    parts = large_batch()
    size = sum(map(len, parts))
    written.writer.add_spare(written.writer.make_spare(size)())
    written.disk.trace = []
    written.writer.write(parts, len(parts), size)
    assert sum(name == "pwrite" for name, _ in written.disk.trace) > 4
    walk, sizes = written.walk()
    assert sizes == [size]
    assert LogEnd(walk.position, walk.ordinal, walk.chain) == written.writer.end
    assert written.files.read(0, size) == b"".join(parts)
    written.write()
    assert written.walk()[1] == [size, len(FRAME)]


def test_a_large_batch_that_fails_in_the_middle_was_not_written() -> None:
    """W3."""
    parts = large_batch()
    size = sum(map(len, parts))
    for nth in range(1, 7):
        written = Written()
        written.writer.add_spare(written.writer.make_spare(size)())
        end = written.writer.end
        written.disk.fail("pwrite", nth=nth, error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            written.writer.write(parts, len(parts), size)
        assert written.writer.end == end
        written.write()
        assert written.walk()[1] == [len(FRAME)]
