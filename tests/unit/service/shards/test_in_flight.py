"""The bound on the requests of one key, over all workers."""

from __future__ import annotations

from array import array

from shared.contract.api_keys import KEY_PLACES, ApiKey
from shared.contract.errors import Refusal
from topicsd.service.shards.limits import InFlight


def a_key(place: int) -> ApiKey:
    return ApiKey("0", frozenset(), (), place)


def workers(bound: int, count: int) -> list[InFlight]:
    counts = [memoryview(array("Q", [0]) * KEY_PLACES) for _ in range(count)]
    return [InFlight(bound, one, [other for other in counts if other is not one]) for one in counts]


def test_each_key_has_its_own_bound_and_answers_make_room() -> None:
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


def test_the_bound_covers_all_workers() -> None:
    first, second, idle = workers(3, 3)
    key = a_key(5)
    leaves = [first.enter(key), second.enter(key), second.enter(key)]
    for one in (first, second, idle):
        assert isinstance(one.enter(key), Refusal)
    assert not isinstance(idle.enter(a_key(6)), Refusal)
    leave = leaves[0]
    assert not isinstance(leave, Refusal)
    leave()
    assert not isinstance(idle.enter(key), Refusal)
    assert isinstance(first.enter(key), Refusal)
