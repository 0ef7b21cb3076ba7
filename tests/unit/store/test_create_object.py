"""An object is created once, whatever the store answers."""

from __future__ import annotations

import itertools

import pytest

from shared.runtime.retries import Retries
from tests.harness.machine.fake_store import FakeStore, Fault
from tests.harness.machine.manual_clock import ManualClock
from topicsd.store.create_object import PAUSES, create_object
from topicsd.store.object_store import ObjectExists, StoreUnavailable

FAULTS: tuple[Fault | None, ...] = (None, "lost request", "lost answer", "conflict")


def retries(clock: ManualClock, seconds: float = 60.0) -> Retries:
    return Retries(clock.monotonic, lambda pause: clock.advance(pause * 1000), seconds, random=lambda: 1.0)


@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=4)))
def test_an_object_is_created_once_over_every_order_of_faults(faults: tuple[Fault | None, ...]) -> None:
    store = FakeStore()
    store.faults = list(faults)
    create_object(store, "a/b", [b"one ", b"object"], retries(ManualClock()))
    assert store.objects["a/b"].data == b"one object"


@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=3)))
def test_the_object_of_another_writer_is_never_taken_for_ours(faults: tuple[Fault | None, ...]) -> None:
    store = FakeStore()
    store.create("a", [b"theirs"], "their id")
    store.faults = list(faults)
    with pytest.raises(ObjectExists):
        create_object(store, "a", [b"ours"], retries(ManualClock()))
    assert store.objects["a"].data == b"theirs"


def test_retries_end_at_the_deadline() -> None:
    clock = ManualClock()
    store = FakeStore()
    store.faults = ["lost request"] * 1000
    with pytest.raises(StoreUnavailable):
        create_object(store, "a", [b"x"], retries(clock, 30.0))
    assert 30.0 - PAUSES.seconds_max <= clock.monotonic() - ManualClock().monotonic() <= 30.0
    assert len(store.requests) < 20
    assert not store.objects


def test_a_wait_that_raises_ends_the_retries() -> None:
    store = FakeStore()
    store.faults = ["lost request"]

    def stop(seconds: float) -> None:
        raise OSError("the shard is closing")

    with pytest.raises(OSError, match="closing"):
        create_object(store, "a", [b"x"], Retries(ManualClock().monotonic, stop, 60.0))
