"""Shared topics in a SQLite file: several brokers beside an oracle, and kills between statements."""

from __future__ import annotations

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
