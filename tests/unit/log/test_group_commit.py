from __future__ import annotations

import errno

import pytest
from msgspec import UNSET
from msgspec.structs import astuple

from tests.harness.machine.manual_loop import StepThread
from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.wal_bytes import append_frame
from tests.unit.log.commit_bench import BOUNDS, FRAME, CommitBench
from topicsd.log.batch import UNTIMED, CommitTimes
from topicsd.log.current_file import read_current
from topicsd.log.group_commit import BATCH_BYTES_MAX


def test_what_joins_in_one_turn_is_one_batch() -> None:
    bench = CommitBench()
    for name in "abc":
        bench.join(name, sync=False)
    assert bench.diary == []
    bench.turn()
    assert bench.diary == ["publish a", "publish b", "publish c"]
    assert bench.batches() == [3]
    assert (bench.log.counters.batches, bench.log.counters.frames) == (1, 4)


def test_an_entry_that_waits_for_no_sync_is_published_after_the_write() -> None:
    """G1."""
    bench = CommitBench()
    bench.join("disk", sync=False)
    bench.join("fsync", sync=True)
    bench.turn()
    assert bench.diary == ["publish disk"]
    bench.sync()
    assert bench.diary == ["publish disk", "publish fsync"]
    assert bench.log.synced_position == bench.log.batch.next_position


def test_a_sync_publishes_only_what_it_covers() -> None:
    """G1, G3."""
    bench = CommitBench()
    bench.join("early", sync=True)
    bench.turn()
    bench.join("late", sync=True)
    bench.turn()
    assert bench.thread.pending == 1
    bench.sync()
    assert bench.diary == ["publish early"]
    bench.sync()
    assert bench.diary == ["publish early", "publish late"]


def test_all_that_is_written_while_a_sync_runs_shares_the_next_one() -> None:
    """G3."""
    bench = CommitBench()
    bench.join("first", sync=True)
    bench.turn()
    syncs = bench.syncs()
    for number in range(50):
        bench.join(str(number), sync=True)
        bench.turn()
        assert bench.thread.pending == 1
    bench.settle()
    assert bench.syncs() - syncs == 2
    assert bench.diary == ["publish first"] + [f"publish {number}" for number in range(50)]
    assert bench.batches() == [1] * 51


def test_entries_that_wait_are_published_in_the_order_in_which_they_joined() -> None:
    """G2."""
    bench = CommitBench()
    expected = []
    for number in range(20):
        bench.join(f"{number}", sync=True)
        expected.append(f"publish {number}")
        if number % 3 == 0:
            bench.turn()
        if number % 7 == 0 and bench.thread.pending:
            bench.sync()
    bench.settle()
    assert bench.diary == expected


def test_what_an_answer_sets_off_joins_the_next_batch() -> None:
    """G2."""
    bench = CommitBench()
    bench.join("a", sync=False, answer=lambda: bench.join("c", sync=False) and None)
    bench.join("b", sync=False)
    bench.turn()
    assert bench.diary == ["publish a", "publish b", "publish c"]
    assert bench.batches() == [2, 1]


def test_a_large_batch_is_written_without_waiting_for_the_end_of_the_turn() -> None:
    bench = CommitBench(file_bytes=16 << 20, bounds=BOUNDS._replace(unsynced_bytes_max=64 << 20))
    large = append_frame(1, b"y" * (1 << 20))
    for number in range(5):
        bench.join(str(number), sync=False, frame=large)
    assert bench.diary == [f"publish {number}" for number in range(4)]
    bench.turn()
    assert bench.batches() == [4, 1]
    assert 4 * len(large) > BATCH_BYTES_MAX


def test_a_large_answer_is_not_written_in_the_middle_of_the_others() -> None:
    """G2."""
    bench = CommitBench(file_bytes=16 << 20, bounds=BOUNDS._replace(unsynced_bytes_max=64 << 20))
    large = append_frame(1, b"y" * (BATCH_BYTES_MAX + 1))
    bench.join("a", sync=False, answer=lambda: bench.join("c", sync=False, frame=large) and None)
    bench.join("b", sync=False)
    bench.turn()
    assert bench.diary == ["publish a", "publish b", "publish c"]


def test_a_frame_in_passing_is_written_with_the_turn_and_published_by_the_sync_that_comes() -> None:
    bench = CommitBench()
    bench.log.join_control_frame(FRAME, bench.note("passing"))
    bench.log.join_control_frame(FRAME)
    bench.turn()
    assert (bench.batches(), bench.diary, bench.thread.pending) == ([2], [], 0)
    bench.pass_time(51)
    assert bench.diary == ["publish passing"]


def test_an_urgent_frame_in_passing_does_not_wait_for_the_background() -> None:
    bench = CommitBench()
    bench.log.join_control_frame(FRAME, bench.note("urgent"), is_urgent=True)
    bench.turn()
    bench.sync()
    assert bench.diary == ["publish urgent"]


def test_an_entry_without_frames_waits_for_the_sync_of_those_before_it() -> None:
    bench = CommitBench()
    bench.join("frames", sync=True)
    bench.log.join([], 0, 0, bench.note("none"), wait_for_sync=True)
    bench.turn()
    assert bench.diary == []
    bench.sync()
    assert bench.diary == ["publish frames", "publish none"]


# -- the background -----------------------------------------------------------------------------------------


def test_writes_without_a_waiter_are_synced_in_the_background() -> None:
    bench = CommitBench()
    bench.join("a", sync=False)
    bench.turn()
    assert bench.thread.pending == 0
    bench.loop.advance(49)
    assert bench.thread.pending == 0
    bench.loop.advance(2)
    assert bench.thread.pending == 1
    bench.sync()
    assert bench.log.synced_position == bench.log.batch.next_position


def test_an_idle_log_writes_one_empty_batch_that_says_what_was_synced_and_then_nothing() -> None:
    bench = CommitBench()
    bench.join("a", sync=False)
    bench.pass_time(10_000)
    assert bench.batches() == [1, 0]
    assert bench.loop.timer_count == 0
    bench.join("b", sync=False)
    bench.pass_time(10_000)
    assert bench.batches() == [1, 0, 1, 0]


def test_frames_that_a_tick_asks_for_are_written_until_no_more_are_due() -> None:
    due = [True, True, False]

    def tick() -> bool:
        bench.log.join_control_frame(FRAME)
        return due.pop(0) if due else False

    bench = CommitBench(on_tick=tick)
    bench.join("a", sync=False)
    bench.pass_time(120)
    assert due == [False]
    assert bench.batches()[:3] == [1, 1, 1]


# -- the inline sync ----------------------------------------------------------------------------------------


def fast(bench: CommitBench) -> CommitBench:
    """After so many quick syncs the loop knows that the disk is fast."""
    for number in range(60):
        bench.join(f"warm {number}", sync=True)
        bench.settle()
    bench.diary.clear()
    return bench


def test_a_lone_writer_on_a_fast_disk_is_synced_by_the_loop_itself() -> None:
    bench = fast(CommitBench())
    bench.join("lone", sync=True)
    bench.turn()
    assert (bench.diary, bench.thread.pending) == (["publish lone"], 0)


def test_a_lone_writer_far_into_the_log_is_synced_by_the_loop_itself_all_the_same() -> None:
    bench = CommitBench(file_bytes=4 << 20, bounds=BOUNDS._replace(unsynced_bytes_max=64 << 20))
    bench.join("a lot", sync=True, frame=append_frame(1, b"y" * (1 << 20)))
    fast(bench)
    bench.join("lone", sync=True)
    bench.turn()
    assert (bench.diary, bench.thread.pending) == (["publish lone"], 0)


def test_more_than_the_loop_may_wait_for_is_synced_by_the_thread_on_a_fast_disk_too() -> None:
    bench = fast(CommitBench(file_bytes=4 << 20, bounds=BOUNDS._replace(unsynced_bytes_max=64 << 20)))
    bench.join("a lot", sync=True, frame=append_frame(1, b"y" * (1 << 17)))
    bench.turn()
    assert (bench.diary, bench.thread.pending) == ([], 1)


def test_two_writers_on_a_fast_disk_are_synced_by_the_thread() -> None:
    bench = fast(CommitBench())
    bench.join("a", sync=True)
    bench.join("b", sync=True)
    bench.turn()
    assert (bench.diary, bench.thread.pending) == ([], 1)


def test_a_disk_that_becomes_slow_is_synced_on_the_thread_again() -> None:
    bench = fast(CommitBench())
    whole = bench.disk.sync_data

    def slow(fd: int) -> None:
        bench.clock.advance(20)
        whole(fd)

    bench.disk.sync_data = slow  # type: ignore[method-assign]
    bench.join("slow", sync=True)
    bench.turn()
    bench.join("next", sync=True)
    bench.turn()
    assert bench.thread.pending == 1


def test_a_sync_that_fails_on_the_loop_fails_the_log() -> None:
    bench = fast(CommitBench())
    bench.disk.fail("sync_data")
    lone = bench.join("lone", sync=True)
    bench.turn()
    assert lone.refusal is not None
    assert lone.refusal.code == "storage_failed"
    assert len(bench.failures) == 1


def test_an_error_of_who_is_answered_is_no_error_of_the_disk_and_of_no_other() -> None:
    def hangs_up() -> None:
        raise ConnectionResetError("the client is gone")

    bench = fast(CommitBench())
    bench.join("gone", sync=True, answer=hangs_up)
    bench.turn()
    bench.join("gone too", sync=False, answer=hangs_up)
    bench.join("behind it", sync=False)
    bench.turn()
    assert bench.diary[-1] == "publish behind it"
    assert bench.log.failed is None
    assert bench.failures == []


# -- the end ------------------------------------------------------------------------------------------------


class OnePassThread(StepThread):
    """Waits, as a thread does, for the jobs that it had when the waiting began, and for no more."""

    def drain(self) -> None:
        for _ in range(self.pending):
            self.run_one()
        self._deliver()


@pytest.mark.parametrize("thread_type", [StepThread, OnePassThread])
def test_a_close_answers_everybody_whatever_was_in_flight(thread_type: type[StepThread]) -> None:
    bench = CommitBench(thread_type=thread_type)
    bench.join("in flight", sync=True)
    bench.turn()
    bench.join("written", sync=True)
    bench.turn()
    bench.join("joined", sync=True)
    bench.join("without", sync=False)
    bench.log.close()
    bench.turn()
    assert sorted(bench.diary) == [
        "publish in flight",
        "publish joined",
        "publish without",
        "publish written",
    ]
    current = read_current(bench.disk, PATHS.current)
    assert current is not None
    assert current.state == "clean"


def test_a_close_with_nothing_to_do_leaves_no_trace() -> None:
    bench = CommitBench(has_file=False)
    bench.log.close()
    assert bench.disk.list_dir(PATHS.wal) == []


def test_a_close_on_a_disk_that_fails_does_not_say_clean() -> None:
    bench = CommitBench()
    late = bench.join("late", sync=True)
    bench.turn()
    bench.disk.fail("sync_data", forever=True)
    bench.log.close()
    assert late.refusal is not None
    current = read_current(bench.disk, PATHS.current)
    assert current is not None
    assert current.state == "sync_failed"


def test_a_close_while_the_next_file_is_being_made_leaves_none_behind() -> None:
    bench = CommitBench(file_bytes=2048)
    for number in range(5):
        bench.join(str(number), sync=False)
        bench.turn()
    assert bench.thread.pending == 1
    bench.log.close()
    assert [name for name in bench.disk.list_dir(PATHS.wal) if name.startswith("spare")] == []


def test_a_close_during_the_background_work_ends_it() -> None:
    bench = CommitBench()
    bench.join("a", sync=False)
    bench.turn()
    bench.log.close()
    before = bench.disk.calls
    bench.loop.advance(10_000)
    assert bench.disk.calls == before
    assert errno.EIO not in [failure.errno for failure in bench.failures]


# -- how long it took ---------------------------------------------------------------------------------------


def test_what_is_published_can_see_how_long_its_write_and_its_sync_took() -> None:
    bench = CommitBench()
    write, sync = bench.disk.pwrite, bench.disk.sync_data

    def slow_write(fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        bench.clock.advance(3)
        return write(fd, data, offset)

    def slow_sync(fd: int) -> None:
        bench.clock.advance(20)
        sync(fd)

    bench.disk.pwrite, bench.disk.sync_data = slow_write, slow_sync  # type: ignore[method-assign]
    seen: dict[str, CommitTimes] = {}

    def look(name: str) -> None:
        seen[name] = bench.log.published_times

    bench.join("disk", sync=False, answer=lambda: look("disk"))
    bench.join("fsync", sync=True, answer=lambda: look("fsync"))
    bench.settle()
    look("beside it")
    assert astuple(seen["disk"]) == (pytest.approx(3, abs=0.01), UNSET, UNSET)
    assert astuple(seen["fsync"]) == (pytest.approx(3, abs=0.01), pytest.approx(20, abs=0.01), UNSET)
    assert seen["beside it"] == UNTIMED
