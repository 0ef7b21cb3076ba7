"""A start from a snapshot shows what was there, and does not guess at what was deleted."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import PATHS
from topicsd.log.recovery import RecoveryRefused

NEVER_MS = 1 << 40


def filled() -> OneShard:
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=4)
    one.put("t", cap_bytes=1 << 20)
    one.append("t", *[record(n, tag="x" if n == 2 else None) for n in range(10)], idempotency_key="k")
    one.delete("t", tag="x")
    one.checkpoint()
    return one


def files(one: OneShard, suffix: str) -> list[str]:
    return [path for path in one.disk.all_files() if path.startswith(PATHS.topics) and path.endswith(suffix)]


@pytest.mark.parametrize("end", ["kill", "restart", "reboot"])
def test_a_start_from_a_snapshot_shows_the_same_state_and_knows_the_keys(end: str) -> None:
    one = filled()
    before = one.state("t")
    getattr(one, end)()
    after = one.state("t")
    assert (after.count, after.bytes, after.config) == (before.count, before.bytes, before.config)
    assert one.seqs("t") == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    again = one.append("t", *[record(n, tag="x" if n == 2 else None) for n in range(10)], idempotency_key="k")
    assert again.deduped


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
def test_a_dead_set_is_found_again_where_the_log_reaches_back(
    is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    one = OneShard(checkpoint_interval_ms=NEVER_MS, segment_max_events=4)
    one.append("t", *[record(n, tag="x" if n % 2 else None) for n in range(10)])
    one.checkpoint()
    one.delete("t", tag="x", before_seq=5)
    one.delete("t", seqs=[7])
    one.checkpoint()
    one.delete("t", tag="x", before_seq=9)
    state = one.state("t")
    path = files(one, ".del")[0]
    if is_gone:
        one.disk.unlink(path)
    else:
        one.disk.flip(path, 41)
    one.kill()
    assert "is skipped: a dead set is unreadable" in caplog.text
    assert one.state("t") == state
    assert one.seqs("t") == [1, 3, 5, 9, 10]
    one.checkpoint()
    one.checkpoint()
    one.kill()
    assert caplog.text.count("is skipped") == 1
    assert one.state("t") == state
    assert one.seqs("t") == [1, 3, 5, 9, 10]


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
def test_a_dead_set_that_cannot_be_had_refuses_the_start(is_gone: bool) -> None:
    one = filled()
    one.append("t", "more")
    one.checkpoint()
    (path,) = files(one, ".del")
    if is_gone:
        one.disk.unlink(path)
    else:
        one.disk.flip(path, 41)
    with pytest.raises(RecoveryRefused, match=r"\.del|dead|checksum"):
        one.kill()


def test_the_index_of_an_active_segment_is_made_again_from_its_data() -> None:
    one = filled()
    one.disk.unlink(files(one, ".idx")[-1])
    one.kill()
    assert one.seqs("t") == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_no_record_is_read_at_a_start(caplog: pytest.LogCaptureFixture) -> None:
    one = filled()
    for path in files(one, ".data")[:-1]:
        one.disk.unlink(path)
    one.kill()
    lines = [record.getMessage() for record in caplog.records if "the file is missing" in record.message]
    assert [line.partition('topic "t": ')[2].partition(":")[0] for line in lines] == [
        "seqs 1 to 4",
        "seqs 5 to 8",
    ]
    assert len(one.shard.state.damaged_segments) == 2
    assert one.state("t").count == 9
    assert one.refused_read("t").code == "corrupt_segment"


def test_a_missing_active_segment_is_logged_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    one = filled()
    one.disk.unlink(files(one, ".data")[-1])
    one.kill()
    assert 'topic "t": seqs 9 to 10: the file is missing' in caplog.text
    assert one.seqs("t") == [1, 2, 4, 5, 6, 7, 8]
    one.append("t", "later")
    assert one.seqs("t", 10) == [11]


def test_a_start_with_all_files_logs_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    one = filled()
    one.kill()
    assert not caplog.records
