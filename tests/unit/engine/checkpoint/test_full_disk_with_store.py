"""A disk without room for a checkpoint: local records that are in the object store leave it all the same."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tests.harness.machine.fake_store import FakeStore
from tests.harness.machine.faults import PowerCut
from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.checkpoint.manifest import read_manifest
from topicsd.engine.checkpoint.reserve import RESERVE_BYTES
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers

pytestmark = pytest.mark.usefixtures("quiet_log")

CAPTURED = 155
LATER = 40
SEEDS = 3
RECORD = "x" * 1000


def filled(**settings: object) -> OneShard:
    """Return a shard with a full disk: 15 sealed segments of ten records, and records in the log only."""
    given = {"hot_retain_segments": 2, "reader_grace_ms": 0, "wal_file_bytes": 1 << 20, **settings}
    one = OneShard(store=FakeStore(), segment_max_events=10, **given)
    one.append("t", *(record(RECORD, tag=f"tag-{number % 3}") for number in range(CAPTURED)))
    one.checkpoint()
    one.append("t", *(record(RECORD, tag=f"tag-{number % 3}") for number in range(LATER)))
    one.disk.space_bytes = one.disk.used_bytes
    return one


def filled_with_deletes() -> OneShard:
    """Return a full one whose snapshot does not know of the deletes; the log with them is synced."""
    one = filled()
    one.delete("t", tag="tag-1")
    one.delete("t", before_seq=5)
    one.pass_time(100)
    return one


def export(one: OneShard) -> None:
    """Let one round of upkeep export what is due, and ask for a checkpoint."""
    one.shard.upkeep.start_round()
    one.settle()


def local_data(one: OneShard) -> int:
    return sum(path.endswith(".data") and "/topics/" in path for path in one.disk.all_files())


def failed_checkpoints(one: OneShard, monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """Collect what the checkpoints end with from now on."""
    ends: list[Exception | None] = []
    checkpoints = one.shard.checkpoints
    on_end = checkpoints._on_end

    def note() -> None:
        ends.append(checkpoints.failure)
        on_end()

    monkeypatch.setattr(checkpoints, "_on_end", note)
    return ends


def test_exported_records_leave_a_full_disk_and_a_checkpoint_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = filled()
    before = one.read("t", limit=1000).records
    ends = failed_checkpoints(one, monkeypatch)
    assert local_data(one) == 16
    export(one)
    assert isinstance(ends[0], OSError)
    assert ends[0].errno == errno.ENOSPC
    assert local_data(one) == 3
    one.pass_time(6000)
    assert ends[-1] is None
    assert one.disk.space_bytes is not None
    assert one.disk.used_bytes + 40_000 < one.disk.space_bytes
    assert one.read("t", limit=1000).records == before
    for end in ("kill", "cut_power", "restart"):
        getattr(one, end)()
        assert one.read("t", limit=1000).records == before
    assert not one.shard.state.damaged_segments
    assert not one.failures


def test_a_start_from_the_repeated_snapshot_replays_the_log_with_its_deletes() -> None:
    one = filled_with_deletes()
    export(one)
    assert one.shard.checkpoints.failure is not None
    assert local_data(one) == 3
    first, second = (read_snapshot(one.disk, one.paths, n) for n in snapshot_numbers(one.disk, one.paths))
    assert first.head.start == second.head.start
    assert first.head.created_ms == second.head.created_ms
    assert [one.object_stem != "" for one in first.topics[0].segments] == [True] * 13 + [False] * 3
    assert read_manifest(one.disk, one.paths).number == first.head.number
    before = one.read("t", limit=1000).records
    assert len(before) == (CAPTURED + LATER) * 2 // 3 - 3
    for end in ("kill", "cut_power", "reboot"):
        getattr(one, end)()
        assert one.read("t", limit=1000).records == before


def test_the_reserve_has_no_name_and_ends_with_the_process() -> None:
    one = filled()
    names = [path for path in one.disk.all_files() if "reserve" in path]
    assert names == []
    sizes = sum(one.disk.stat(path).size for path in one.disk.all_files())
    assert one.disk.used_bytes == sizes + RESERVE_BYTES
    one.disk.space_bytes = None
    one.close(checkpoint=False)
    assert one.disk.used_bytes == sum(one.disk.stat(path).size for path in one.disk.all_files())


def test_without_exports_a_full_disk_keeps_its_snapshots() -> None:
    one = filled(hot_retain_segments=100)
    numbers = snapshot_numbers(one.disk, one.paths)
    export(one)
    one.checkpoint()
    assert one.shard.checkpoints.failure is not None
    assert snapshot_numbers(one.disk, one.paths) == numbers
    assert local_data(one) >= 16


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_cuts_while_a_full_disk_frees_itself_lose_nothing(seed: int) -> None:
    one = filled_with_deletes()
    before = one.read("t", limit=1000).records
    calls = one.disk.calls
    export(one)
    last = one.disk.calls - calls
    assert local_data(one) == 3
    assert last > 30
    for after in range(seed, last + 1, SEEDS):
        one = filled_with_deletes()
        one.disk.cut_power_after(after)
        with suppress(PowerCut):
            export(one)
        disk = one.disk.after_power_cut(Random(seed))
        disk.space_bytes = None  # A start after a power cut logs what may be lost, which needs room.
        one.open(disk)
        assert one.read("t", limit=1000).records == before, after
        assert not one.shard.state.damaged_segments, after
        export(one)
        one.checkpoint()
        one.kill()
        assert one.read("t", limit=1000).records == before, after
