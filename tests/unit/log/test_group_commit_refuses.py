"""What the log does when it cannot: too many bytes wait, the disk is full, the disk has failed."""

from __future__ import annotations

import errno

import pytest

from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.wal_bytes import append_frame
from tests.unit.log.commit_bench import BOUNDS, FRAME, CommitBench
from topicsd.log.current_file import read_current
from topicsd.log.next_file import CONTROL_SHARE

FILE_BYTES = 8192


# -- too many bytes wait ------------------------------------------------------------------------------------


def test_a_disk_that_does_not_keep_up_has_everybody_wait_from_half_of_the_bound_on() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(unsynced_bytes_max=2000))
    bench.join("a", sync=False)
    bench.turn()
    assert not bench.log.is_lagging
    for name in "bcde":
        bench.join(name, sync=False)
        bench.turn()
    assert bench.log.is_lagging
    bench.pass_time(51)
    assert not bench.log.is_lagging


def test_data_that_stays_unsynced_for_a_second_has_everybody_wait() -> None:
    bench = CommitBench()
    bench.join("a", sync=True)
    bench.turn()
    bench.loop.advance(1000)
    assert not bench.log.is_lagging
    bench.loop.advance(100)
    assert bench.log.is_lagging
    bench.sync()
    assert not bench.log.is_lagging


def test_a_rest_counts_for_nothing_when_data_comes_again() -> None:
    bench = CommitBench()
    bench.join("before", sync=False)
    bench.pass_time(5000)
    bench.join("after", sync=False)
    bench.loop.advance(60)
    assert bench.thread.pending == 1
    assert not bench.log.is_lagging


def test_more_unsynced_bytes_than_the_bound_are_throttled_until_a_sync() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(unsynced_bytes_max=2000))
    while (refusal := bench.log.admit(len(FRAME))) is None:
        bench.join("fills", sync=False)
        bench.turn()
        assert bench.log.batch.next_position < 5000
    assert (refusal.code, refusal.retry_after_ms) == ("throttled", 1000)
    assert "too many bytes wait" in refusal.message
    assert bench.log.batch.next_position > bench.log.admit_limit
    bench.pass_time(51)
    assert bench.log.admit(len(FRAME)) is None
    assert bench.log.admit_limit == bench.log.synced_position + 2000


def test_more_waiting_entries_than_the_bound_are_throttled_until_a_sync() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(waiting_entries_max=3))
    bench.join("a", sync=True)
    bench.turn()
    bench.join("b", sync=True)
    bench.join("c", sync=True)
    bench.turn()
    refusal = bench.log.admit(1)
    assert refusal is not None
    assert (refusal.code, bench.log.admit_limit) == ("throttled", -1)
    assert "too many writes wait" in refusal.message
    bench.sync()
    assert bench.log.admit(1) is None


def test_a_request_larger_than_the_bound_is_let_in_by_an_idle_log() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(unsynced_bytes_max=2000))
    assert bench.log.admit(100_000) is None


# -- the disk is full ---------------------------------------------------------------------------------------


def full(bench: CommitBench) -> CommitBench:
    """Fill the running file until there is no next one and records are refused."""
    while bench.log.admit(len(FRAME)) is None:
        bench.join("fills", sync=False)
        bench.settle()
        assert bench.log.batch.next_position < 10 * FILE_BYTES
    bench.diary.clear()
    return bench


def test_a_disk_without_room_for_the_next_file_refuses_records_with_the_numbers() -> None:
    bench = full(CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000))
    refusal = bench.log.admit(len(FRAME))
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_ms) == ("storage_full", 5000)
    assert refusal.detail == {"free_bytes": 2000 - 512, "required_bytes": len(FRAME)}
    assert bench.failures == []
    assert bench.log.failed is None


def test_the_last_sixteenth_of_the_file_is_kept_for_control_frames() -> None:
    bench = full(CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000))
    control = append_frame(1, b"")
    kept = FILE_BYTES // CONTROL_SHARE
    for name in ("a", "b"):
        bench.join(name, sync=True, frame=control)
        bench.settle()
    assert bench.diary == ["publish a", "publish b"]
    assert kept >= 2 * len(control)


def test_the_log_takes_writes_again_by_itself_when_there_is_room() -> None:
    bench = full(CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000))
    bench.pass_time(30_000)
    assert bench.log.admit(len(FRAME)) is not None
    bench.disk.space_bytes = 10 * FILE_BYTES
    bench.pass_time(5_100)
    assert bench.log.admit(len(FRAME)) is None
    bench.join("after", sync=True)
    bench.settle()
    assert bench.diary == ["publish after"]


def test_a_batch_for_which_there_is_no_room_is_undone_newest_first_and_refused_in_order() -> None:
    """G5."""
    bench = CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000)
    bench.join("before", sync=True)
    bench.settle()
    bench.diary.clear()
    end = bench.log.batch.next_position
    large = append_frame(1, b"y" * FILE_BYTES)
    entries = [
        bench.join("w1", sync=False),
        bench.join("s1", sync=True),
        bench.join("w2", sync=False, frame=large),
        bench.join("s2", sync=True),
    ]
    bench.settle()
    assert bench.diary == [
        "undo s2",
        "undo s1",
        "undo w2",
        "undo w1",
        "refuse w1",
        "refuse w2",
        "refuse s1",
        "refuse s2",
    ]
    for entry in entries:
        assert entry.refusal is not None
        assert entry.refusal.code == "storage_full"
        assert entry.refusal.detail is not None
        assert entry.refusal.detail["required_bytes"] == len(large) + 3 * len(FRAME)
    assert bench.log.batch.next_position == end
    assert bench.log.failed is None
    bench.join("after", sync=True)
    bench.settle()
    assert bench.diary[-1] == "publish after"
    assert bench.batches()[:2] == [1, 1]


def test_what_waits_from_before_a_full_disk_is_published_all_the_same() -> None:
    bench = CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000)
    bench.join("early", sync=True)
    bench.turn()
    bench.join("large", sync=True, frame=append_frame(1, b"y" * FILE_BYTES))
    bench.turn()
    bench.sync()
    assert bench.diary == ["publish early"]
    bench.sync()
    assert bench.diary == ["publish early", "undo large", "refuse large"]


def test_every_step_of_a_new_file_may_run_out_of_space() -> None:
    whole = CommitBench(has_file=False)
    whole.join("a", sync=False)
    whole.settle()
    for nth in range(1, whole.disk.calls + 1):
        bench = CommitBench(has_file=False)
        bench.disk.fail(nth=nth, error=errno.ENOSPC)
        entry = bench.join("a", sync=False)
        bench.settle()
        assert entry.refusal is not None, f"call {nth}"
        assert (entry.refusal.code, bench.failures) == ("storage_full", [])
        bench.join("b", sync=True)
        bench.settle()
        assert bench.diary == ["undo a", "refuse a", "publish b"]
        assert bench.batches() == [1]


def test_an_idle_log_on_a_full_disk_comes_to_rest() -> None:
    bench = CommitBench(file_bytes=FILE_BYTES, space_bytes=FILE_BYTES + 2000)
    fills = append_frame(1, b"z" * (FILE_BYTES - 118 - 102 - 46 - 50))
    bench.join("fills", sync=False, frame=fills)
    bench.pass_time(500)
    before = bench.disk.calls
    bench.pass_time(1000)
    assert bench.disk.calls - before <= 4, "it asks for room again and again"


# -- the disk has failed ------------------------------------------------------------------------------------


def test_after_a_failed_sync_everybody_is_refused_once_and_nothing_is_written_again() -> None:
    """G4."""
    bench = CommitBench()
    in_flight = bench.join("in flight", sync=True)
    bench.turn()
    waiting = bench.join("waiting", sync=True)
    bench.turn()
    bench.disk.fail("sync_data")
    bench.thread.run_one()
    joined = [bench.join("joined", sync=True), bench.join("disk", sync=False)]
    bench.settle()
    refused = [in_flight, waiting, *joined]
    for entry in refused:
        assert entry.refusal is not None
        assert (entry.refusal.code, entry.refusal.retry_after_ms) == ("storage_failed", 1000)
    assert not any(note.startswith(("publish", "undo")) for note in bench.diary)
    assert [failure.errno for failure in bench.failures] == [errno.EIO]
    current = read_current(bench.disk, PATHS.current)
    assert current is not None
    assert current.state == "sync_failed"
    writes = [arguments for name, arguments in bench.disk.trace or [] if name == "pwrite"]
    late = bench.join("late", sync=False)
    bench.pass_time(10_000)
    assert late.refusal is not None
    assert [arguments for name, arguments in bench.disk.trace or [] if name == "pwrite"] == writes
    assert bench.log.admit(1) == bench.log.failed
    assert bench.log.admit_limit == -1
    assert len(bench.failures) == 1


def test_what_was_published_before_a_failed_sync_stays_published() -> None:
    bench = CommitBench()
    bench.join("disk", sync=False)
    fsync = bench.join("fsync", sync=True)
    bench.turn()
    bench.disk.fail("sync_data")
    bench.sync()
    assert bench.diary == ["publish disk", "refuse fsync"]
    assert fsync.refusal is not None


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EBADF])
def test_a_write_that_fails_for_another_reason_than_space_fails_the_log(error: int) -> None:
    """G4."""
    bench = CommitBench()
    bench.join("before", sync=False)
    bench.turn()
    bench.disk.fail("pwrite", error=error)
    entry = bench.join("a", sync=False)
    bench.turn()
    assert bench.diary == ["publish before", "refuse a"]
    assert entry.refusal is not None
    assert entry.refusal.code == "storage_failed"
    assert [failure.errno for failure in bench.failures] == [error]


def test_a_spare_that_cannot_be_made_for_another_reason_than_space_fails_the_log() -> None:
    bench = CommitBench(file_bytes=FILE_BYTES)
    bench.disk.fail("allocate")
    for _ in range(30):
        bench.join("fills", sync=False)
        bench.settle()
    assert bench.log.failed is not None
    assert len(bench.failures) == 1


def test_a_failure_that_cannot_be_noted_is_a_failure_all_the_same() -> None:
    bench = CommitBench()
    entry = bench.join("a", sync=True)
    bench.turn()
    bench.disk.fail("sync_data")
    bench.disk.fail("open_write")
    bench.sync()
    assert entry.refusal is not None
    assert len(bench.failures) == 1


def test_a_sync_that_ends_after_the_log_failed_publishes_nothing() -> None:
    bench = CommitBench()
    bench.join("in flight", sync=True)
    bench.turn()
    bench.disk.fail("pwrite")
    bench.join("fails", sync=False)
    bench.turn()
    assert bench.diary == ["refuse in flight", "refuse fails"]
    bench.sync()
    assert bench.diary == ["refuse in flight", "refuse fails"]
