"""When a checkpoint runs, what goes behind one, and that a failed one costs nothing."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import PATHS
from topicsd.engine.checkpoint.checkpointer import RETRY_SECONDS

NEVER_MS = 1 << 40


def shard(**settings: int) -> OneShard:
    return OneShard(**{"checkpoint_interval_ms": NEVER_MS, "segment_max_events": 3, **settings})


def snapshots(one: OneShard) -> list[str]:
    return [path for path in one.disk.all_files() if path.startswith(f"{PATHS.meta}/snapshot")]


def segments(one: OneShard) -> list[str]:
    """Of all topics, by the first seq."""
    paths = [path for path in one.disk.all_files() if path.startswith(PATHS.topics) and "seg-" in path]
    return sorted({path.partition("seg-")[2].split(".")[0].lstrip("0") for path in paths})


def damage_newest(one: OneShard) -> None:
    one.disk.flip(snapshots(one)[-1], 40, 0xFF)


def test_a_checkpoint_runs_when_the_interval_is_over_and_something_was_written() -> None:
    one = shard(checkpoint_interval_ms=1000)
    one.append("t", 1)
    one.pass_time(900)
    assert not snapshots(one)
    one.pass_time(300)
    assert len(snapshots(one)) == 1
    one.pass_time(20_000)
    assert len(snapshots(one)) <= 2, "the note of a lowered ceiling is worth one more, silence is not"


def test_a_checkpoint_runs_when_the_log_has_gone_on_to_another_file() -> None:
    one = shard(wal_file_bytes=4096)
    for _ in range(6):
        one.append("t", b'"%s"' % (b"x" * 900))
        one.pass_time(60)
    assert snapshots(one)


def test_the_two_newest_snapshots_are_kept_and_the_log_back_to_the_older() -> None:
    one = shard(wal_file_bytes=4096)
    for number in range(5):
        for _ in range(6):
            one.append("t", b'"%s"' % (b"x" * 900))
        one.checkpoint()
        assert len(snapshots(one)) == min(2, number + 1)
    assert len(one.wal_files()) <= 5
    assert one.seqs("t", limit=100) == list(range(1, 31))
    damage_newest(one)
    one.kill()
    assert one.seqs("t", limit=100) == list(range(1, 31))


def test_an_older_snapshot_has_all_its_segments_when_the_newest_is_damaged() -> None:
    one = shard()
    one.put("t", cap_records=3)
    one.append("t", *range(4))
    one.append("gone", *range(4))
    one.checkpoint()
    one.append("t", *range(6))
    one.delete_topic("gone")
    one.checkpoint()
    before = one.state("t")
    damage_newest(one)
    one.kill()
    assert one.state("t") == before
    assert one.seqs("t") == [8, 9, 10]
    assert one.shard.topic_names() == ["t"]


def test_a_segment_in_which_nothing_is_alive_goes_with_the_last_snapshot_that_names_it() -> None:
    one = shard()
    one.append("t", *range(7))
    one.checkpoint()
    one.delete("t", before_seq=4)
    one.checkpoint()
    assert segments(one) == ["1", "4", "7"]
    one.checkpoint()
    assert segments(one) == ["4", "7"]


@pytest.mark.parametrize("end", [None, "kill", "restart"])
def test_what_is_still_to_go_goes_also_where_nothing_is_written(end: str | None) -> None:
    one = shard(checkpoint_interval_ms=1000, reader_grace_ms=90_000)
    one.append("t", *range(7))
    one.pass_time(1500)
    one.delete("t", before_seq=4)
    one.pass_time(1500)
    assert segments(one) == ["1", "4", "7"]
    if end is not None:
        getattr(one, end)()
    one.pass_time(2500)
    assert segments(one) == ["4", "7"]
    assert one.disk.list_dir(PATHS.trash)
    count = one.shard.checkpoints.count
    one.pass_time(180_000)
    assert not one.disk.list_dir(PATHS.trash)
    assert one.shard.checkpoints.count == count


def test_a_timer_that_comes_behind_the_end_begins_nothing() -> None:
    one = shard(checkpoint_interval_ms=1000)
    one.append("t", *range(7))
    one.pass_time(1500)
    one.delete("t", before_seq=4)
    one.pass_time(1500)
    one.close()
    calls = one.disk.calls
    one.loop.advance(200_000)
    one.settle()
    assert one.disk.calls == calls


def test_a_start_knows_what_is_still_to_go() -> None:
    one = shard()
    one.append("t", *range(7))
    one.append("gone", 1)
    one.checkpoint()
    one.delete("t", before_seq=4)
    one.delete_topic("gone")
    one.checkpoint()
    assert len(one.disk.list_dir(PATHS.topics)) == 2
    one.kill()
    one.append("t", 8)
    one.checkpoint()
    assert segments(one) == ["4", "7"]
    assert len(one.disk.list_dir(PATHS.topics)) == 1


def test_a_failed_checkpoint_is_reported_and_retried_and_the_log_keeps_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = shard()
    for number in range(6):
        one.append("t", number)
    one.disk.fail("rename", forever=True)
    errors: list[Exception | None] = []
    one.shard.start_checkpoint(errors.append)
    one.settle()
    assert isinstance(errors[0], OSError)
    assert "checkpoint: failed" in caplog.text
    assert not snapshots(one)
    assert one.wal_files()[0].endswith("wal-0000000000000001.log")
    assert not one.failures
    one.append("t", 7)
    one.disk.clear_faults()
    one.pass_time(6000)
    assert len(snapshots(one)) == 1
    one.kill()
    assert one.seqs("t") == list(range(1, 8))


def test_a_checkpoint_that_was_asked_for_is_tried_again_though_nothing_was_written() -> None:
    one = shard()
    one.append("t", 1)
    one.checkpoint()
    done = one.shard.checkpoints.count
    fault = one.disk.fail("rename")
    one.checkpoint()
    assert fault.fired
    assert one.shard.checkpoints.failure is not None
    one.pass_time(RETRY_SECONDS * 1000 + 1)
    assert one.shard.checkpoints.count == done + 1
    assert one.shard.checkpoints.failure is None
    one.pass_time(RETRY_SECONDS * 3000)
    assert one.shard.checkpoints.count == done + 1


def test_what_was_to_go_still_goes_when_the_manifest_could_not_be_written() -> None:
    one = shard()
    one.append("t", *range(7))
    one.checkpoint()
    one.delete("t", before_seq=4)
    one.disk.fail("rename", 2)
    one.checkpoint()
    assert len(snapshots(one)) == 2
    one.pass_time(6000)
    one.checkpoint()
    assert segments(one) == ["4", "7"]


def test_records_that_a_cap_evicted_stay_so_when_marks_are_newer_than_the_snapshot() -> None:
    one = shard(segment_max_events=4)
    one.put("t", cap_records=4)
    one.append("t", record(1), record(2, tag="z"), record(3, tag="x"), record(4))
    one.delete("t", tag="z")
    one.checkpoint()
    one.append("t", 5)
    one.append("t", 6)
    one.delete("t", tag="x")
    before = one.state("t")
    assert (before.count, before.evict_floor) == (3, 2)
    one.disk.fail("rename", 2)  # The first is that of the marks.
    one.checkpoint()
    assert len(snapshots(one)) == 1
    one.kill()
    assert one.state("t") == replace(before, durable_seq=6)


def test_a_new_segment_that_cannot_be_read_again_fails_the_checkpoint_and_not_the_topic() -> None:
    one = shard(segment_max_events=2)
    one.append("t", 1, 2)
    fault = one.disk.fail("pread", 2, forever=True)  # The first is of the log.
    one.checkpoint()
    assert fault.fired > 1
    assert one.shard.checkpoints.failure is not None
    assert one.shard.state.damaged_segments == set()
    one.disk.clear_faults()
    one.checkpoint()
    one.kill()
    assert one.seqs("t") == [1, 2]


def test_a_full_disk_empties_the_trash_before_the_next_try() -> None:
    one = shard()
    one.append("t", *range(4))
    one.checkpoint()
    one.delete("t", before_seq=4)
    one.checkpoint()
    one.checkpoint()
    assert one.disk.list_dir(PATHS.trash)
    one.append("t", 5)
    one.disk.fail("create", error=errno.ENOSPC, forever=True)
    one.checkpoint()
    one.disk.clear_faults()
    one.checkpoint()
    assert not one.disk.list_dir(PATHS.trash)


def test_however_often_it_was_asked_for_a_failed_checkpoint_is_tried_again_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = shard()
    one.append("t", 1)
    one.disk.fail("rename", forever=True)
    for _ in range(10):
        one.checkpoint()
    caplog.clear()
    one.pass_time(RETRY_SECONDS * 3000 + 1)
    assert caplog.text.count("checkpoint: failed") == 3
