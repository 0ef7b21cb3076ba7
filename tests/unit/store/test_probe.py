"""A store that would lose data is refused at the start, with the reason."""

from __future__ import annotations

import pytest

from tests.harness.machine.fake_store import FakeStore
from tests.harness.machine.manual_clock import ManualClock
from tests.unit.store.test_create_object import retries
from topicsd.store.object_store import StoreRefused
from topicsd.store.probe import probe_store


def test_a_good_store_passes_and_keeps_nothing() -> None:
    store = FakeStore()
    store.faults = ["lost answer", None, "conflict", "lost request"]
    probe_store(store, retries(ManualClock()))
    assert not store.objects


def test_a_store_that_ignores_conditions_is_refused() -> None:
    store = FakeStore()
    store.ignores_conditions = True
    with pytest.raises(StoreRefused, match=r"ignores the condition of a PUT \(If-None-Match\)"):
        probe_store(store, retries(ManualClock()))
    assert not store.objects


def test_a_store_that_ignores_ranges_is_refused() -> None:
    store = FakeStore()
    store.ignores_ranges = True
    with pytest.raises(StoreRefused, match="ignores the range of a GET"):
        probe_store(store, retries(ManualClock()))
