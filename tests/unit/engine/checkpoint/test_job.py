"""The order of a checkpoint: nothing names what is not on the disk, and what fails leaves all as it was."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import PATHS
from topicsd.engine.checkpoint.job import FILES_TO_DROP, FilesToDrop, files_to_drop_of
from topicsd.engine.checkpoint.snapshot_files import choose_snapshot

NEVER_MS = 1 << 40


def shard(**settings: int) -> OneShard:
    return OneShard(**{"checkpoint_interval_ms": NEVER_MS, "segment_max_events": 3, **settings})


def test_segments_are_synced_before_the_log_and_the_log_before_the_snapshot_has_its_name() -> None:
    one = shard()
    one.append("t", *range(7))
    assert one.disk.trace is not None
    one.disk.trace.clear()
    one.checkpoint()
    calls = one.disk.trace
    segment = max(n for n, (call, on) in enumerate(calls) if call == "sync_data" and "seg-" in on)
    log = max(n for n, (call, on) in enumerate(calls) if call == "sync_data" and PATHS.wal in on)
    snapshot = next(n for n, (call, on) in enumerate(calls) if call == "rename" and "snapshot" in on)
    manifest = next(n for n, (call, on) in enumerate(calls) if call == "rename" and "MANIFEST" in on)
    assert segment < log < snapshot < manifest


def test_a_shard_that_was_never_written_makes_no_snapshot() -> None:
    one = shard()
    one.checkpoint()
    assert choose_snapshot(one.disk, PATHS) == (None, [])


@pytest.mark.parametrize("nth", range(1, 40))
def test_whatever_call_fails_the_next_checkpoint_has_all_of_it(nth: int) -> None:
    one = shard()
    one.append("t", *range(7))
    one.append("gone", 1)
    one.checkpoint()
    one.append("t", *range(2))
    one.delete("t", before_seq=4)
    one.delete_topic("gone")
    one.pass_time(60)
    fault = one.disk.fail(nth=nth)
    one.checkpoint()
    one.disk.clear_faults()
    if any(PATHS.wal in on for on in fault.on):
        return  # A log that fails is another matter.
    assert not one.failures
    assert one.seqs("t") == [4, 5, 6, 7, 8, 9]
    for _ in range(3):
        one.append("other", 1)
        one.checkpoint()
    assert len(one.disk.list_dir(PATHS.topics)) == 2
    one.kill()
    assert one.seqs("t") == [4, 5, 6, 7, 8, 9]
    assert one.shard.topic_names() == ["other", "t"]


def test_a_snapshot_says_what_is_still_to_go() -> None:
    one = shard()
    one.append("t", *range(7))
    one.checkpoint()
    one.delete("t", before_seq=4)
    one.checkpoint()
    snapshot, _ = choose_snapshot(one.disk, PATHS)
    assert snapshot is not None
    (leaving,) = files_to_drop_of(snapshot.head)
    assert isinstance(leaving, FilesToDrop)
    assert (leaving.number, [one.name.first_seq for one in leaving.segments]) == (2, [1])
    one.checkpoint()
    one.append("t", 1)
    one.checkpoint()
    snapshot, _ = choose_snapshot(one.disk, PATHS)
    assert snapshot is not None
    assert FILES_TO_DROP not in snapshot.head.sections


def test_a_failed_sync_ends_a_checkpoint_of_a_stop_before_its_snapshot() -> None:
    one = shard()
    one.append("t", 1)
    one.disk.fail("sync_data", 2)
    one.close()
    assert choose_snapshot(one.disk, PATHS)[0] is None
