"""The caps over all shards, as one worker sees them: when it asks, and what it does with the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.contract.api_keys import Key, parse_keys
from shared.contract.route_rule import encode_forward
from shared.ipc.board import WorkerState
from shared.ipc.link import FRONT, NEVER_SENT, LinkKind
from tests.harness.one_lane import HOME, SHARDS, OneLane, append, look, request
from tests.harness.small_board import SmallBoard
from topicsd.http.http1.connection import FastLane
from topicsd.http.http1.head_cache import KnownHeads
from topicsd.service.dispatch import Dispatch
from topicsd.service.handlers import Handlers
from topicsd.service.shards.caps import FULL, GRANTED, UNSEEN_TOPICS_MAX, Caps
from topicsd.service.shards.peers import Peers

BODY = b'{"records":[{"data":1}]}'


class Capped(OneLane):
    """A lane of a worker that has a peer, with the board between them."""

    def __init__(self, small: SmallBoard | None = None, keys: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.small = small or SmallBoard(SHARDS, self.one.clock)
        self.small.__enter__()
        peers = Peers(self.small.board, self.one.clock, 0)
        caps = Caps(self.one.shard.state, 0, peers, self.links)
        handlers = Handlers(self.one.shard, self.one.settings, self.one.loop, caps)
        self.dispatch = Dispatch(handlers, parse_keys(keys), self.links, 0, SHARDS, peers)
        self.lane = FastLane(self.dispatch, KnownHeads(self.dispatch), self)
        self.lane.connection_made(self.wire)

    @property
    def here(self) -> Any:
        return self.small.board.slot(0)

    @property
    def there(self) -> Any:
        return self.small.board.slot(1)

    def told(self) -> list[tuple[int, Any]]:
        self.settle()
        answers = self.wire.take().split(b"HTTP/1.1 ")[1:]
        return [(int(one[:3]), json.loads(one.partition(b"\r\n\r\n")[2])) for one in answers]


@pytest.fixture
def made() -> Iterator[list[Capped]]:
    capped: list[Capped] = []
    yield capped
    for one in capped:
        one.small.__exit__(None, None, None)


@pytest.fixture
def near(made: list[Capped]) -> Capped:
    made.append(Capped(max_topics=10))
    return made[0]


def test_a_new_topic_waits_for_the_front_process_and_what_exists_does_not(near: Capped) -> None:
    near.receive(append(HOME))
    assert [one[:3] for one in near.links.asked] == [(FRONT, LinkKind.RESERVE_TOPIC, b"\x00")]
    assert near.told() == []
    near.links.asked[0][3](GRANTED)
    assert near.told()[0][0] == 201
    assert (near.here.topics, near.here.topic_grants_total) == (1, 1)
    near.receive(append(HOME), request("PUT", f"/v0/topics/{HOME}", b"{}"), look(HOME))
    assert [status for status, _ in near.told()] == [200, 200, 200]
    assert len(near.links.asked) == 1


def test_all_that_comes_for_a_name_asks_once_and_is_done_in_order(near: Capped) -> None:
    near.receive(*(append(HOME, n) for n in range(5)))
    assert len(near.links.asked) == 1
    near.links.asked[0][3](GRANTED)
    assert [told["first_seq"] for _, told in near.told()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sent", [append(HOME), request("PUT", f"/v0/topics/{HOME}", b"{}")])
def test_a_cap_that_is_reached_is_429_and_not_known_is_503(near: Capped, sent: bytes) -> None:
    for answer, status, code in (
        (FULL, 429, "throttled"),
        (None, 503, "not_ready"),
        (NEVER_SENT, 503, "not_ready"),
        (b"\xc0", 503, "not_ready"),
    ):
        near.receive(sent)
        near.links.asked[-1][3](answer)
        ((told_status, told),) = near.told()
        assert (told_status, told["error"]["code"]) == (status, code)
        if status == 429:
            assert told["error"]["detail"] == {"limit": "max_topics", "max": 10, "retry_after_ms": 1000}
    assert (near.here.topics, near.here.topic_grants_total) == (0, 0)


def test_what_is_allowed_and_refused_for_another_reason_is_given_back(near: Capped) -> None:
    near.receive(request("POST", f"/v0/topics/{HOME}", b'{"records":[]}'))
    near.links.asked[0][3](GRANTED)
    assert near.told()[0][0] == 400
    assert (near.here.topics, near.here.topic_grants_total) == (0, 1)


def test_a_topic_that_nobody_wants_made_is_not_asked_for(near: Capped) -> None:
    near.receive(request("POST", f"/v0/topics/{HOME}", b'{"records":[{"data":1}],"create":false}'))
    assert near.told()[0][0] == 404
    assert near.links.asked == []


def test_a_deletion_is_on_the_board_when_its_turn_is_over(near: Capped) -> None:
    near.receive(append(HOME))
    near.links.asked[0][3](GRANTED)
    near.told()
    near.receive(request("DELETE", f"/v0/topics/{HOME}", b""))
    assert near.told() == []
    assert near.here.topics == 0
    # The front process is told, and knows what forwards went with it.
    assert near.links.asked[-1][:2] == (FRONT, LinkKind.TOPIC_DELETED)
    near.links.asked[-1][3](encode_forward(["a>b", "r"]))
    assert near.told()[0][1]["routers_removed"] == ["a>b", "r"]


def test_far_from_the_cap_nobody_is_asked(made: list[Capped]) -> None:
    far = Capped(max_topics=UNSEEN_TOPICS_MAX + 10)
    made.append(far)
    far.receive(append(HOME))
    assert far.told()[0][0] == 201
    assert far.links.asked == []


def test_near_is_counted_over_all_shards(made: list[Capped]) -> None:
    capped = Capped(max_topics=UNSEEN_TOPICS_MAX + 10)
    made.append(capped)
    capped.there.topics = 10
    capped.receive(append(HOME))
    assert capped.links.asked[0][1] is LinkKind.RESERVE_TOPIC


# -- bytes -------------------------------------------------------------------------------------------------


def test_bytes_are_counted_over_all_shards_and_a_deletion_makes_room(made: list[Capped]) -> None:
    capped = Capped(max_total_bytes=1000, max_topics=0)
    made.append(capped)
    capped.receive(append(HOME))
    capped.there.bytes_live = 980
    assert capped.told()[0][0] == 201
    capped.receive(append(HOME))
    ((status, told),) = capped.told()
    assert (status, told["error"]["detail"]["limit"]) == (429, "max_total_bytes")
    # It still has them while it is down.
    capped.there.state = WorkerState.REPLAYING
    capped.there.bytes_live = 0
    capped.receive(append(HOME))
    assert capped.told()[0][0] == 429
    capped.there.state = WorkerState.READY
    capped.receive(append(HOME))
    assert capped.told()[0][0] == 200


def test_what_is_on_its_way_counts(made: list[Capped]) -> None:
    capped = Capped(max_total_bytes=100, max_topics=0)
    made.append(capped)
    capped.receive(*(append(HOME, n) for n in range(10)))
    statuses = [status for status, _ in capped.told()]
    assert statuses[0] == 201
    assert statuses[1:].count(429) >= 8
    assert capped.here.bytes_live <= 200


def test_a_write_that_was_done_before_is_answered_whatever_the_cap(made: list[Capped]) -> None:
    capped = Capped(max_total_bytes=40, max_topics=0)
    made.append(capped)
    for n, (status, deduped) in enumerate([(201, False), (200, True)]):
        capped.receive(append(HOME, 1, "idempotency-key: k"))
        ((told_status, told),) = capped.told()
        assert (told_status, told["deduped"]) == (status, deduped), n
    capped.receive(append(HOME, 1, "idempotency-key: other"))
    assert capped.told()[0][0] == 429


def test_what_a_key_has_in_flight_elsewhere_counts_here(made: list[Capped]) -> None:
    name = "a-key-of-16-chars"
    one = Capped(keys=name, max_inflight_per_key=3)
    made.append(one)
    key = one.dispatch.keys.check(b"Bearer " + name.encode(), frozenset(), "")
    assert isinstance(key, Key)
    sent = request("GET", "/v0/topics/none", b"", f"authorization: Bearer {name}")
    one.there.in_flight_by_key[key.place] = 2
    one.receive(sent)
    assert [status for status, _ in one.told()] == [404]
    assert one.here.in_flight_by_key[key.place] == 0
    one.there.in_flight_by_key[key.place] = 3
    one.receive(sent)
    [(status, told)] = one.told()
    assert (status, told["error"]["detail"]["limit"]) == (429, "max_inflight_per_key")
