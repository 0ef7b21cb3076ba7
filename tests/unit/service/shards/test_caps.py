"""The caps over all shards in one worker: when it asks the supervisor, and how it uses the answer."""

from __future__ import annotations

import pytest

from shared.contract.api_keys import ApiKey
from shared.contract.route_rule import encode_route_message
from shared.ipc.board import WorkerState
from shared.ipc.link import NEVER_SENT, SUPERVISOR
from shared.ipc.link_kind import LinkKind
from tests.harness.stage.one_connection import HOME, Capped, append, look, request
from topicsd.service.shards.limits import FULL, GRANTED, UNSEEN_TOPICS_MAX

BODY = b'{"records":[{"data":1}]}'


@pytest.fixture
def near() -> Capped:
    return Capped(max_topics=10)


def test_a_new_topic_waits_for_the_supervisor_and_an_existing_one_does_not(near: Capped) -> None:
    near.receive(append(HOME))
    assert [one[:3] for one in near.links.requests] == [(SUPERVISOR, LinkKind.RESERVE_TOPIC, b"\x00")]
    assert near.responses() == []
    near.links.requests[0][3](GRANTED)
    assert near.responses()[0][0] == 201
    assert (near.own_slot.topics, near.own_slot.topic_grants_total) == (1, 1)
    near.receive(append(HOME), request("PUT", f"/v0/topics/{HOME}", b"{}"), look(HOME))
    assert [status for status, _ in near.responses()] == [200, 200, 200]
    assert len(near.links.requests) == 1


def test_requests_for_one_new_topic_share_a_reservation_and_keep_their_order(near: Capped) -> None:
    near.receive(*(append(HOME, n) for n in range(5)))
    assert len(near.links.requests) == 1
    near.links.requests[0][3](GRANTED)
    assert [body["first_seq"] for _, body in near.responses()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sent", [append(HOME), request("PUT", f"/v0/topics/{HOME}", b"{}")])
def test_a_reached_cap_is_429_and_an_unknown_count_is_503(near: Capped, sent: bytes) -> None:
    for answer, status, code in (
        (FULL, 429, "throttled"),
        (None, 503, "not_ready"),
        (NEVER_SENT, 503, "not_ready"),
        (b"\xc0", 503, "not_ready"),
    ):
        near.receive(sent)
        near.links.requests[-1][3](answer)
        ((response_status, body),) = near.responses()
        assert (response_status, body["error"]["code"]) == (status, code)
        if status == 429:
            assert body["error"]["detail"] == {"limit": "max_topics", "max": 10, "retry_after_ms": 1000}
    assert (near.own_slot.topics, near.own_slot.topic_grants_total) == (0, 0)


def test_a_grant_is_returned_when_the_request_is_refused_for_another_reason(near: Capped) -> None:
    near.receive(request("POST", f"/v0/topics/{HOME}", b'{"records":[]}'))
    near.links.requests[0][3](GRANTED)
    assert near.responses()[0][0] == 400
    assert (near.own_slot.topics, near.own_slot.topic_grants_total) == (0, 1)


def test_a_request_that_must_not_create_its_topic_reserves_none(near: Capped) -> None:
    near.receive(request("POST", f"/v0/topics/{HOME}", b'{"records":[{"data":1}],"create":false}'))
    assert near.responses()[0][0] == 404
    assert near.links.requests == []


def test_a_deletion_is_on_the_board_at_the_end_of_its_turn(near: Capped) -> None:
    near.receive(append(HOME))
    near.links.requests[0][3](GRANTED)
    near.responses()
    near.receive(request("DELETE", f"/v0/topics/{HOME}", b""))
    assert near.responses() == []
    assert near.own_slot.topics == 0
    # The supervisor is notified, and answers with the routes deleted with the topic.
    assert near.links.requests[-1][:2] == (SUPERVISOR, LinkKind.TOPIC_DELETED)
    near.links.requests[-1][3](encode_route_message(["a>b", "r"]))
    assert near.responses()[0][1]["routers_removed"] == ["a>b", "r"]


def test_no_reservation_is_needed_far_from_the_cap() -> None:
    far = Capped(max_topics=UNSEEN_TOPICS_MAX + 10)
    far.receive(append(HOME))
    assert far.responses()[0][0] == 201
    assert far.links.requests == []


def test_the_distance_to_the_cap_is_counted_over_all_shards() -> None:
    capped = Capped(max_topics=UNSEEN_TOPICS_MAX + 10)
    capped.other_slot.topics = 10
    capped.receive(append(HOME))
    assert capped.links.requests[0][1] is LinkKind.RESERVE_TOPIC


# -- bytes -------------------------------------------------------------------------------------------------


def test_bytes_are_counted_over_all_shards_and_a_deletion_makes_room() -> None:
    capped = Capped(max_total_bytes=1000, max_topics=0)
    capped.receive(append(HOME))
    capped.other_slot.bytes_live = 980
    assert capped.responses()[0][0] == 201
    capped.receive(append(HOME))
    ((status, body),) = capped.responses()
    assert (status, body["error"]["detail"]["limit"]) == (429, "max_total_bytes")
    # The shard still has its bytes while it is down.
    capped.other_slot.state = WorkerState.REPLAYING
    capped.other_slot.bytes_live = 0
    capped.receive(append(HOME))
    assert capped.responses()[0][0] == 429
    capped.other_slot.state = WorkerState.READY
    capped.receive(append(HOME))
    assert capped.responses()[0][0] == 200


def test_requests_in_flight_count() -> None:
    capped = Capped(max_total_bytes=100, max_topics=0)
    capped.receive(*(append(HOME, n) for n in range(10)))
    statuses = [status for status, _ in capped.responses()]
    assert statuses[0] == 201
    assert statuses[1:].count(429) >= 8
    assert capped.own_slot.bytes_live <= 200


def test_a_duplicate_write_is_answered_whatever_the_cap() -> None:
    capped = Capped(max_total_bytes=40, max_topics=0)
    for n, (status, deduped) in enumerate([(201, False), (200, True)]):
        capped.receive(append(HOME, 1, "idempotency-key: k"))
        ((response_status, body),) = capped.responses()
        assert (response_status, body["deduped"]) == (status, deduped), n
    capped.receive(append(HOME, 1, "idempotency-key: other"))
    assert capped.responses()[0][0] == 429


def test_requests_of_a_key_in_flight_on_other_shards_count() -> None:
    name = "a-key-of-16-chars"
    one = Capped(keys=name, max_inflight_per_key=3)
    key = one.dispatch.keys.check(b"Bearer " + name.encode(), frozenset(), "")
    assert isinstance(key, ApiKey)
    sent = request("GET", "/v0/topics/none", b"", f"authorization: Bearer {name}")
    one.other_slot.in_flight_by_key[key.place] = 2
    one.receive(sent)
    assert [status for status, _ in one.responses()] == [404]
    assert one.own_slot.in_flight_by_key[key.place] == 0
    one.other_slot.in_flight_by_key[key.place] = 3
    one.receive(sent)
    [(status, body)] = one.responses()
    assert (status, body["error"]["detail"]["limit"]) == (429, "max_inflight_per_key")
