"""A batch that waits for its file, while the disk takes its time."""

from __future__ import annotations

import errno

from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.wal_bytes import append_frame
from tests.unit.log.commit_bench import BOUNDS, FRAME, CommitBench
from topicsd.log.current_file import read_current

FILE_BYTES = 2048


def test_a_first_batch_waits_for_its_file_and_the_loop_for_nothing() -> None:
    bench = CommitBench(has_file=False)
    bench.join("disk", sync=False)
    bench.join("fsync", sync=True)
    bench.turn()
    assert (bench.disk.calls, bench.diary, bench.thread.pending) == (0, [], 1)
    bench.sync()
    assert bench.diary == ["publish disk"]
    bench.sync()
    assert bench.diary == ["publish disk", "publish fsync"]


def test_all_that_joins_while_the_file_is_made_is_one_batch() -> None:
    bench = CommitBench(has_file=False)
    for number in range(5):
        bench.join(str(number), sync=False)
        bench.turn()
    assert bench.thread.pending == 1
    bench.sync()
    assert bench.diary == [f"publish {number}" for number in range(5)]
    assert bench.batches() == [5]


def test_a_batch_that_outgrows_the_first_file_gets_a_larger_one_under_the_same_name() -> None:
    bench = CommitBench(has_file=False, file_bytes=FILE_BYTES)
    bench.join("first", sync=False)
    bench.turn()
    bench.join("large", sync=False, frame=append_frame(1, b"y" * 3 * FILE_BYTES))
    bench.sync()
    assert bench.diary == []
    bench.settle()
    assert bench.diary == ["publish first", "publish large"]
    assert bench.batches() == [2]
    assert sum(name.startswith("wal-") for name in bench.disk.list_dir(PATHS.wal)) == 1
    current = read_current(bench.disk, PATHS.current)
    assert current is not None
    here, name = bench.disk.stat(PATHS.current), bench.disk.stat(PATHS.wal_file(1))
    assert current.is_same_place(here, name, bench.disk.boot_id())


def test_a_larger_first_file_that_cannot_be_made_leaves_nothing_that_later_batches_trust() -> None:
    whole = CommitBench(has_file=False, file_bytes=FILE_BYTES)
    large = append_frame(1, b"y" * 3 * FILE_BYTES)

    def outgrow(bench: CommitBench) -> None:
        bench.join("first", sync=False)
        bench.turn()
        bench.join("large", sync=False, frame=large)
        bench.settle()

    outgrow(whole)
    assert whole.disk.trace is not None
    calls = [name for name, _ in whole.disk.trace]
    # What follows the batch makes the next file ahead.
    for nth in range(1, max(at for at, name in enumerate(calls) if name == "pwrite") + 2):
        bench = CommitBench(has_file=False, file_bytes=FILE_BYTES)
        bench.disk.fail(nth=nth, error=errno.ENOSPC)
        outgrow(bench)
        assert bench.diary == ["undo large", "undo first", "refuse first", "refuse large"], f"call {nth}"
        bench.join("after", sync=True)
        bench.settle()
        assert bench.diary[-1] == "publish after"
        assert bench.batches() == [1], f"call {nth}"


def test_a_rotation_without_a_file_made_ahead_waits_for_one() -> None:
    bench = CommitBench(file_bytes=FILE_BYTES)
    large = append_frame(1, b"y" * FILE_BYTES)
    bench.join("small", sync=False)
    bench.turn()
    calls = bench.disk.calls
    bench.join("large", sync=False, frame=large)
    bench.turn()
    bench.join("behind it", sync=False)
    bench.turn()
    assert (bench.disk.calls, bench.diary) == (calls, ["publish small"])
    bench.settle()
    assert bench.diary == ["publish small", "publish large", "publish behind it"]
    assert bench.batches() == [1, 2]


def test_what_waits_for_a_file_is_bounded_in_bytes_and_in_entries() -> None:
    bounds = BOUNDS._replace(unsynced_bytes_max=1000, waiting_entries_max=100)
    bench = CommitBench(has_file=False, bounds=bounds)
    while bench.log.batch.next_position <= bench.log.admit_limit:
        bench.join("fills", sync=False)
        bench.turn()
    assert bench.log.batch.next_position <= 1000 + 2 * len(FRAME)
    refusal = bench.log.admit(1)
    assert refusal is not None
    assert refusal.code == "throttled"
    bench = CommitBench(has_file=False, bounds=BOUNDS._replace(waiting_entries_max=3))
    for number in range(3):
        bench.join(str(number), sync=False)
        bench.turn()
    assert bench.log.admit_limit == -1
    bench.settle()
    assert bench.log.admit(1) is None


def test_a_failure_of_the_log_refuses_what_waits_for_a_file() -> None:
    bench = CommitBench(file_bytes=FILE_BYTES)
    bench.join("synced", sync=True)
    bench.turn()
    waits = bench.join("waits", sync=False, frame=append_frame(1, b"y" * FILE_BYTES))
    bench.turn()
    bench.disk.fail("sync_data")
    bench.settle()
    assert waits.refusal is not None
    assert waits.refusal.code == "storage_failed"
    assert bench.diary == ["refuse synced", "refuse waits"]


def test_a_close_writes_what_waits_for_a_file() -> None:
    bench = CommitBench(has_file=False)
    bench.join("waits", sync=False)
    bench.turn()
    bench.log.close()
    assert bench.diary == ["publish waits"]
    current = read_current(bench.disk, PATHS.current)
    assert current is not None
    assert current.state == "clean"
