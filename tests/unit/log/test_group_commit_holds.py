from __future__ import annotations

from tests.unit.log.commit_bench import CommitBench


def test_nothing_is_written_during_a_hold_and_all_of_it_after() -> None:
    """G10."""
    bench = CommitBench()
    bench.join("before", sync=False)
    bench.turn()
    place = bench.log.place
    assert bench.log.hold()
    bench.join("written", sync=False)
    bench.join("synced", sync=True)
    bench.turn()
    bench.join("later", sync=True)
    bench.turn()
    assert bench.diary == ["publish before"]
    assert bench.log.place == place
    bench.log.release()
    assert bench.diary == ["publish before", "publish written"]
    bench.sync()
    assert bench.diary[2:] == ["publish synced", "publish later"]
    assert bench.batches() == [1, 3]


def test_what_was_written_before_a_hold_is_synced_and_published_during_it() -> None:
    bench = CommitBench()
    bench.join("a", sync=True)
    bench.turn()
    place = bench.log.place
    assert bench.log.hold()
    bench.sync()
    assert bench.diary == ["publish a"]
    assert bench.log.place == place


def test_an_idle_log_writes_no_empty_batch_during_a_hold() -> None:
    bench = CommitBench()
    bench.join("a", sync=True)
    bench.turn()
    bench.sync()
    place = bench.log.place
    assert bench.log.hold()
    bench.pass_time(120)
    assert bench.log.place == place
    bench.log.release()
    bench.pass_time(120)
    assert bench.log.place != place


def test_a_second_hold_is_refused_and_a_release_without_one_changes_nothing() -> None:
    bench = CommitBench()
    bench.log.release()
    assert bench.log.hold()
    assert not bench.log.hold()
    bench.log.release()
    assert bench.log.hold()


def test_a_log_that_waits_for_its_next_file_refuses_a_hold() -> None:
    bench = CommitBench(has_file=False)
    bench.join("a", sync=True)
    bench.turn()
    assert not bench.log.hold()


def test_a_file_that_is_made_during_a_hold_does_not_end_it() -> None:
    bench = CommitBench(file_bytes=64 << 10)
    for number in range(300):
        bench.join(str(number), sync=False)
    bench.turn()
    place = bench.log.place
    assert bench.log.hold()
    bench.join("held back", sync=False)
    while bench.thread.pending:
        bench.thread.run_one()
    bench.turn()
    assert bench.log.place == place
    bench.log.release()
    assert bench.diary[-1] == "publish held back"


def test_a_close_during_a_hold_writes_everything() -> None:
    bench = CommitBench()
    assert bench.log.hold()
    bench.join("a", sync=True)
    bench.log.close()
    assert bench.diary == ["publish a"]
    assert not bench.log.hold()


def test_a_disk_that_fails_during_a_hold_refuses_what_waits() -> None:
    bench = CommitBench()
    bench.join("a", sync=True)
    bench.turn()
    assert bench.log.hold()
    bench.join("b", sync=True)
    bench.turn()
    bench.disk.fail("sync_data")
    bench.sync()
    assert bench.diary == ["refuse a", "refuse b"]
    bench.log.release()
    assert not bench.log.hold()
