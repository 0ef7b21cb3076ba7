"""Places that are no seqs: `from_ts` and `last` of diff, of a topic's state, of watch and of WebSockets."""

from __future__ import annotations

import time

import pytest

from tests.contract.api import Api
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer


def _stamped(api: Api) -> list[int]:
    """Three records of different times; what the times are."""
    for number in range(3):
        api.append(number)
        time.sleep(0.003)
    return [record["$ts"] for record in api.diff()["records"]]


def test_diff_reads_from_a_time_on(api: Api) -> None:
    times = _stamped(api)
    assert api.call("POST", "/diff", {"from_ts": times[1]}).json["next_from_seq"] == 3
    for ts, seqs in ((0, [1, 2, 3]), (times[1], [2, 3]), (times[1] + 1, [3]), (times[2] + 1, [])):
        answer = api.call("POST", "/diff", {"from_ts": ts}).json
        assert [record["$seq"] for record in answer["records"]] == seqs
        assert (answer["tombstone"], answer["caught_up"]) == (None, True)


def test_diff_reads_the_newest(api: Api) -> None:
    api.append(*range(5))
    for last, seqs in ((0, []), (2, [4, 5]), (99, [1, 2, 3, 4, 5])):
        answer = api.call("POST", "/diff", {"last": last}).json
        assert [record["$seq"] for record in answer["records"]] == seqs


@pytest.mark.parametrize(
    ("body", "first", "count"),
    [
        ({"last": 4, "limit": 1}, 1200, 1),
        ({"last": 300}, 901, 300),
        ({"last": 300, "limit": 0}, 901, 300),
        ({"last": 300, "limit": 20}, 1181, 20),
        ({"last": 1000}, 201, 1000),
        ({"last": 1100}, 201, 1000),
        ({"last": 1100, "limit": 5000}, 201, 1000),
        ({"last": 1}, 1200, 1),
    ],
)
def test_the_newest_are_as_many_as_the_limit_allows(
    api: Api, body: dict[str, int], first: int, count: int
) -> None:
    for _ in range(3):
        api.append(*range(400))
    answer = api.call("POST", "/diff", body).json
    assert [record["$seq"] for record in answer["records"]] == list(range(first, first + count))
    assert (answer["next_from_seq"], answer["caught_up"]) == (1200, True)


def test_the_state_of_a_topic_says_where_a_time_begins(api: Api) -> None:
    times = _stamped(api)
    assert "from_seq" not in api.state()
    assert api.call("GET", f"?from_ts={times[2]}").json["from_seq"] == 2
    assert api.call("GET", "?touch=false&last=2").json["from_seq"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"from_ts": -1}, "from_ts"),
        ({"from_ts": "x"}, "from_ts"),
        ({"last": -1}, "last"),
        ({"last": 1, "from_ts": "-1m"}, "last"),
        ({"last": 1, "from_seq": 1}, "last"),
        ({"from_ts": "-1m", "epoch": 1}, "from_ts"),
    ],
)
def test_places_exclude_each_other(api: Api, body: object, field: str) -> None:
    api.append(1)
    answer = api.refused(400, "invalid_request", "POST", "/diff", body)
    assert answer.json["error"]["detail"]["field"] == field


@pytest.mark.parametrize("query", ["from_ts=x", "from_ts=-1", "last=", "last=1&from_ts=-1m", "last=1e3"])
def test_a_query_is_checked_as_well(api: Api, query: str) -> None:
    api.append(1)
    api.refused(400, "invalid_request", "GET", f"?{query}")


def test_an_absent_topic_has_no_place(api: Api) -> None:
    api.refused(404, "topic_not_found", "POST", "/diff", {"last": 1})
    api.refused(404, "topic_not_found", "GET", "?from_ts=-1m")


def test_a_watch_session_begins_there(api: Api) -> None:
    times = _stamped(api)
    for place, seq in (({"from_ts": times[1]}, 1), ({"last": 1}, 2), ({"last": 0}, 3), ({"from_ts": 0}, 0)):
        body = {"topics": {api.topic: place}}
        answer = api.client.ask("POST", "/v0/watch", body)
        assert answer.status == 200, answer
        assert answer.json["topics"][api.topic]["from_seq"] == seq
    for wrong in ({"last": 1, "tail": True}, {"from_ts": 1, "from_seq": 0}, {"last": -1}):
        body = {"topics": {api.topic: wrong}}
        refused = api.client.ask("POST", "/v0/watch", body)
        assert refused.json["error"]["detail"]["field"].startswith(f"topics.{api.topic}."), wrong


def test_a_web_socket_subscribes_there(server: HttpServer, api: Api) -> None:
    times = _stamped(api)
    for place, seqs in (({"from_ts": times[1]}, [2, 3]), ({"last": 1}, [3])):
        with WsClient(server.ports["fast"]) as socket:
            message = socket.ask("subscribe", topics={api.topic: place})
            assert message["topics"][api.topic]["from_seq"] == seqs[0] - 1
            assert [record["$seq"] for record in socket.read()["records"]] == seqs
    with WsClient(server.ports["fast"]) as socket:
        assert socket.ask("subscribe", topic=api.topic, last=1, tail=True)["code"] == "invalid_request"
