"""After a failed sync the page cache may show what the media has lost: only the media counts."""

from __future__ import annotations

from random import Random

import pytest

from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import PATHS
from topicsd.log.recovery import RecoveryRefused

LOST_TEXT = b'"lost with the failed sync"'


def _failed(one: OneShard, *, is_noted: bool = True, seed: int | None = None) -> None:
    """Three records of class disk and one of fsync are written, and their sync fails."""
    one.append("d", "there before")
    one.append("f", "there before", config=None)
    one.put("f", durability="fsync")
    for number in range(3):
        one.append("d", number)
    one.disk.fail("sync_data", seed=seed)
    if not is_noted:
        one.disk.fail("open_write", forever=True)
    refusal = one.refused_append("f", LOST_TEXT)
    assert refusal.code == "storage_failed"
    assert len(one.failures) == 1


def test_no_write_is_acked_and_no_file_is_touched_after_a_failed_sync() -> None:
    one = OneShard()
    _failed(one)
    calls = one.disk.calls
    for name in ("d", "f", "new"):
        assert one.refused_append(name, 1).code == "storage_failed"
    refused = [one.send_delete("d", before_seq=2), one.send_put("d", ttl_ms=5), one.send_delete_topic("d")]
    one.settle()
    assert [reply.code for reply in refused] == ["storage_failed"] * 3
    one.pass_time(10_000)
    one.close()
    assert one.disk.calls == calls
    assert len(one.failures) == 1


def test_reads_continue_after_a_failed_sync() -> None:
    one = OneShard()
    _failed(one)
    assert one.seqs("d") == [1, 2, 3, 4]
    assert one.seqs("f") == [1]


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_next_start_shows_what_the_media_has_and_reports_the_rest(
    is_noted: bool, seed: int | None
) -> None:
    one = OneShard()
    _failed(one, is_noted=is_noted, seed=seed)
    one.kill()
    seen = one.read("d")
    assert seen.records[0].data == b'"there before"'
    assert one.append("d", 1).first_seq > 4
    assert one.append("f", 1).first_seq >= 2
    # What is shown now is on the media: nothing of it goes with the power.
    for cut in range(5):
        after = OneShard(disk=one.disk.after_power_cut(Random(cut)), clock=one.clock)
        assert after.read("d").records[: len(seen.records)] == seen.records
        assert after.seqs("f") == one.seqs("f")


def test_the_original_of_a_file_that_could_not_be_synced_is_kept() -> None:
    one = OneShard()
    _failed(one)
    (path,) = one.wal_files()
    media = one.disk.read_media(path)
    one.kill()
    kept = [path for path in one.disk.all_files() if path.startswith(PATHS.quarantine) and "failed" in path]
    assert len(kept) == 1
    assert one.disk.read_file(kept[0]) == media
    assert one.disk.read_file(path) != media


def test_a_sync_that_fails_during_recovery_refuses_the_start_and_the_next_one_trusts_only_the_media() -> None:
    one = OneShard()
    one.append("d", 1)
    one.pass_time(60)
    one.append("d", LOST_TEXT)
    disk = one.disk.after_process_kill()
    disk.fail("sync_data")
    with pytest.raises(RecoveryRefused, match="sync failed during recovery"):
        one.open(disk)
    one.kill()
    assert [record.data for record in one.read("d").records] == [b"1"]
    assert one.append("d", 1).first_seq > 2
