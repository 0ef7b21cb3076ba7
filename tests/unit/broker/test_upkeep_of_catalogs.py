"""Upkeep over the kinds of catalogs: retention after a compaction, and the requests of a vacuum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from shared.runtime.retries import Retries
from tests.harness.brokers.written_topics import WrittenTopics
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.fake_store import FakeStore
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.broker.test_upkeep import run
from tests.unit.catalog.test_key_value_crowd import policy
from tests.unit.catalog.test_key_value_shared import OBJECTS, catalog_of
from topicsd.broker.shared_config import SharedTopicConfig, encode_shared_config
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
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


@pytest.mark.parametrize("is_used", [True, False])
def test_a_vacuum_reads_the_extents_of_a_topic_once_for_all_objects(
    clock: ManualClock, is_used: bool
) -> None:
    requests: list[int] = []
    for blobs in (20, 80):
        keys = SharedKeys(clock)
        store = FakeKeyValue(keys, Random(1))
        catalog = KeyValueSharedCatalog(store, policy(), clock.now_ms, OBJECTS, threads=1)
        topics = WrittenTopics(FakeStore(), catalog, {f"t{number}": number + 1 for number in range(5)})
        topics.write(blobs)
        named = [one.key for one in topics.extents("t0")]
        if not is_used:
            for name, incarnation in topics.topics.items():
                catalog.trim(name, incarnation, 1 << 40, "deleted")
        count = itertools.count()
        store.before_request = partial(next, count)
        assert catalog.condemn(named) == (set() if is_used else set(named))
        requests.append(next(count))
    # What grows is the requests for the state of each object.
    assert requests[1] - requests[0] == 60 * (1 if is_used else 5), requests
