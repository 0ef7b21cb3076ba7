"""Several nodes use a key-value catalog at random, beside an oracle; requests are lost and late."""

from __future__ import annotations

from random import Random

import pytest

from shared.runtime.retries import Retries
from tests.harness.catalog.catalog_crowd import CatalogCrowd
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.manual_clock import ManualClock
from topicsd.catalog.key_value_catalog import KeyValueCatalog


def policy(seconds: float = 3600.0) -> Retries:
    clock = ManualClock()
    return Retries(clock.monotonic, lambda pause: clock.advance(pause * 1000), seconds)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_agree_with_the_oracle_when_requests_are_lost_and_late(seed: int, loss: float) -> None:
    keys = SharedKeys()
    random = Random(seed)
    catalogs = [KeyValueCatalog(FakeKeyValue(keys, random, loss), policy()) for _ in range(3)]
    crowd = CatalogCrowd(catalogs, seed)
    crowd.run(1500)
    assert min(crowd.outcomes[kind] for kind in ("done", "fenced", "refused", "lost answer")) > 10
    assert len(crowd.given) > 50
