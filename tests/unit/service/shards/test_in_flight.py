"""The bound on the requests of one key, over all workers."""

from __future__ import annotations

from array import array

from shared.contract.api_keys import KEY_PLACES, Key
from shared.contract.errors import Refusal
from topicsd.service.shards.in_flight import InFlight


def a_key(place: int) -> Key:
    return Key("0", frozenset(), (), place)


def workers(bound: int, count: int) -> list[InFlight]:
    counts = [memoryview(array("Q", [0]) * KEY_PLACES) for _ in range(count)]
    return [InFlight(bound, one, [other for other in counts if other is not one]) for one in counts]


def test_each_key_has_its_own_bound_and_what_is_answered_makes_room() -> None:
    [in_flight] = workers(2, 1)
    a, b = a_key(0), a_key(KEY_PLACES - 1)
    leave = in_flight.enter(a)
    assert not isinstance(leave, Refusal)
    assert not isinstance(in_flight.enter(a), Refusal)
    refused = in_flight.enter(a)
    assert isinstance(refused, Refusal)
    assert refused.detail == {"limit": "max_inflight_per_key", "max": 2}
    assert refused.retry_after_ms
    assert not isinstance(in_flight.enter(b), Refusal)
    leave()
    assert not isinstance(in_flight.enter(a), Refusal)
    assert isinstance(in_flight.enter(a), Refusal)


def test_the_bound_is_of_all_workers_together() -> None:
    here, there, idle = workers(3, 3)
    key = a_key(5)
    leaves = [here.enter(key), there.enter(key), there.enter(key)]
    for one in (here, there, idle):
        assert isinstance(one.enter(key), Refusal)
    assert not isinstance(idle.enter(a_key(6)), Refusal)
    leave = leaves[0]
    assert not isinstance(leave, Refusal)
    leave()
    assert not isinstance(idle.enter(key), Refusal)
    assert isinstance(here.enter(key), Refusal)
