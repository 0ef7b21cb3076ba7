"""Shared topics in a SQLite file: several brokers beside an oracle, and kills between statements."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.catalog.shared_crowd import PRODUCERS_MAX, SharedCrowd
from tests.harness.catalog.unsynced_sqlite import connect_unsynced
from tests.harness.machine.manual_clock import ManualClock
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_brokers_that_lose_requests_and_answers_agree_with_the_oracle(tmp_path: Path, seed: int) -> None:
    clock = ManualClock()
    path = str(tmp_path / "catalog.sqlite")
    catalogs = [SqliteSharedCatalog(path, clock.now_ms, connect_unsynced, PRODUCERS_MAX) for _ in range(3)]
    crowd = SharedCrowd(catalogs, seed, clock)
    crowd.run(3000)
    for status in ("committed", "repeated", "mismatch", "missing", "fenced", "condemned", "sequence_gap",
                   "producers_full"):  # fmt: skip
        assert crowd.statuses[status] > 3, crowd.statuses
    for kind in ("done", "TopicExists", "ConfigChanged", "ClaimLost", "CompactionRefused", "lost answer"):
        assert crowd.outcomes[kind] > 3, crowd.outcomes
    for catalog in catalogs:
        catalog.close()


@pytest.mark.slow
def test_a_kill_between_any_two_statements_leaves_whole_verbs(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.harness.catalog.catalog_crash", str(tmp_path), "shared"]
    result = subprocess.run(
        program,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 90
