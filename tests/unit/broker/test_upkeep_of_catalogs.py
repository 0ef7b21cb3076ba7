"""Upkeep over the kinds of catalogs: retention after a compaction, and the requests of a vacuum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from shared.runtime.retries import Retries
from tests.harness.brokers.written_topics import WrittenTopics
from tests.harness.catalog.fake_key_value import SharedKeys
from tests.harness.machine.fake_store import FakeStore
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.broker.test_upkeep import run
from tests.unit.catalog.test_key_value_shared import catalog_of
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, SharedCatalog
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

TTL_MS = 2 * REPEATED_MS


@pytest.fixture(params=["sqlite", "key-value"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[SharedCatalog]:
    if request.param == "sqlite":
        opened: SharedCatalog = SqliteSharedCatalog(str(tmp_path / "catalog"), clock.now_ms)
    else:
        opened = catalog_of(SharedKeys(clock), Random(1))
    yield opened
    opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_compaction_does_not_prolong_the_ttl(catalog: SharedCatalog, clock: ManualClock) -> None:
    store = FakeStore()
    topics = WrittenTopics(store, catalog, {"a": 1})
    catalog.configure("a", 1, encode_shared_config(SharedTopicConfig(ttl_ms=TTL_MS)), 1)
    topics.write(blobs=3)
    written_ms = topics.extents("a")[-1].created_ms

    def retries() -> Retries:
        return Retries(clock.monotonic, clock.advance, 10.0)

    compactor = Compactor("c", store, catalog, retries, CompactorLimits())
    clock.advance(REPEATED_MS + 60_000)
    assert run(compactor.compact("a")).outcome == "merged"
    assert [one.created_ms for one in topics.extents("a")] == [written_ms]
    topics.check()
    clock.advance(written_ms + TTL_MS - clock.now_ms() - 1)
    assert run(compactor.compact("a")).removed_records == 0
    clock.advance(1)
    assert run(compactor.compact("a")).removed_records == 9
