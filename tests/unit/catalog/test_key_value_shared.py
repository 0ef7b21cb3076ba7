"""Shared topics in a key-value store: several brokers beside an oracle, while requests are lost and late."""

from __future__ import annotations

from random import Random

import pytest

from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.catalog.shared_crowd import PRODUCERS_MAX, SharedCrowd
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog

OBJECTS = "s3://bucket/"


def catalog_of(keys: SharedKeys, random: Random, loss: float = 0.0) -> KeyValueSharedCatalog:
    store = FakeKeyValue(keys, random, loss)
    return KeyValueSharedCatalog(store, policy(), keys.clock.now_ms, OBJECTS, PRODUCERS_MAX, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.03])
@pytest.mark.parametrize("seed", range(3))
def test_brokers_agree_with_the_oracle_when_requests_are_lost_and_late(seed: int, loss: float) -> None:
    clock = ManualClock()
    keys, random = SharedKeys(clock), Random(seed)
    crowd = SharedCrowd([catalog_of(keys, random, loss) for _ in range(3)], seed, clock)
    crowd.is_retrying = loss > 0
    crowd.run(1200)
    for status in ("committed", "repeated", "fenced", "condemned", "sequence_gap", "producers_full"):
        assert crowd.statuses[status] > 0, crowd.statuses
