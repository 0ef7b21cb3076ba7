"""The bound on the requests of one key."""

from __future__ import annotations

from shared.errors import Refusal
from topicsd.http.in_flight import InFlight


def test_each_key_has_its_own_bound_and_what_is_answered_makes_room() -> None:
    in_flight = InFlight(2)
    leave = in_flight.enter("a")
    assert not isinstance(leave, Refusal)
    assert not isinstance(in_flight.enter("a"), Refusal)
    refused = in_flight.enter("a")
    assert isinstance(refused, Refusal)
    assert refused.detail == {"limit": "max_inflight_per_key", "max": 2}
    assert refused.retry_after_ms
    assert not isinstance(in_flight.enter("b"), Refusal)
    leave()
    assert not isinstance(in_flight.enter("a"), Refusal)
    assert isinstance(in_flight.enter("a"), Refusal)
