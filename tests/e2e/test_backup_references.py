"""Backups that refer to exported segments stay whole while their server merges, compacts and drops them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_backup import create
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.output.command_run import run_here
from tests.harness.shard.one_shard import RealShard
from topicsd.engine.upkeep.merging import GROWTH
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS
from topicsd.segment.referred_stems import CHECK_SECONDS

pytestmark = pytest.mark.usefixtures("quiet_log")

ROUND_MS = ROUND_SECONDS * 1000 + 1


def open_shard(folder: Path, clock: ManualClock) -> RealShard:
    (folder / "cold").mkdir(exist_ok=True)
    return RealShard(
        folder / "data",
        clock=clock,
        cold_dir=str(folder / "cold"),
        segment_max_age_ms=1000,
        hot_retain_segments=0,
        reader_grace_ms=0,
        checkpoint_interval_ms=1000,
    )


def write_slowly(shard: RealShard, count: int) -> None:
    for number in range(count):
        shard.append("t", number)
        shard.pass_time(3 * ROUND_MS)


def objects(folder: Path) -> set[Path]:
    return set((folder / "cold" / "segments").rglob("*.data"))


def lists(folder: Path) -> list[Path]:
    return [*(folder / "cold" / "references").glob("*")]


def test_objects_are_kept_as_long_as_a_backup_refers_to_them(tmp_path: Path) -> None:
    clock = ManualClock()
    shard = open_shard(tmp_path, clock)
    write_slowly(shard, GROWTH)
    shard.shard.close()
    before = objects(tmp_path)
    assert len(before) >= GROWTH
    first, second = tmp_path / "first", tmp_path / "second"
    create(tmp_path / "data", first, "--reference-store")
    assert len(lists(tmp_path)) == 1

    shard = open_shard(tmp_path, clock)
    write_slowly(shard, 2)
    shard.pass_time(5 * ROUND_MS)
    assert shard.shard.upkeep.merged_count == GROWTH - 1
    assert len(objects(tmp_path) - before) == 3, "the merged segment, and two new ones"
    assert before <= objects(tmp_path)
    requests = shard.shard.stores.objects.store.totals.lists  # type: ignore[union-attr]
    shard.pass_time(20 * ROUND_MS)
    # One list for the probe of the store may follow, none for each round.
    assert shard.shard.stores.objects.store.totals.lists <= requests + 1  # type: ignore[union-attr]
    shard.shard.close()
    assert run_here("backup", "verify", first).code == 0
    restored = run_here("backup", "restore", first, tmp_path / "restored")
    assert restored.code == 0, restored.err
    checked = run_here("verify", tmp_path / "restored")
    assert (checked.code, "WRONG" in checked.out) == (0, False), checked.out

    # Another repository keeps its own.
    create(tmp_path / "data", second, "--reference-store")
    assert run_here("backup", "prune", second, "--keep", "1").code == 0
    assert len(lists(tmp_path)) == 2
    create(tmp_path / "data", first, "--reference-store")
    assert run_here("backup", "prune", first, "--keep", "1").code == 0
    assert len(lists(tmp_path)) == 2
    shard = open_shard(tmp_path, clock)
    shard.pass_time(CHECK_SECONDS * 1000 + 2 * ROUND_MS)
    shard.shard.close()
    assert not before & objects(tmp_path)
    for repository in (first, second):
        assert run_here("backup", "verify", repository).code == 0


def test_a_backup_that_refers_to_a_deleted_object_is_not_made(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, ManualClock())
    write_slowly(shard, 3)
    shard.shard.close()
    for path in objects(tmp_path):
        path.unlink()
    (tmp_path / "store").mkdir()
    made = run_here("backup", "create", tmp_path / "data", "--to", tmp_path / "store", "--reference-store")
    assert made.code != 0
    assert "missing" in made.err
    assert not lists(tmp_path)
