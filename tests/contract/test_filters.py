"""Filters by tag: `match` of reads, watch sessions and WebSocket subscriptions."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64decode
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer

TAGS = ("new.1", None, "new.2", "paid", "new.1", "x")
MATCHES: list[tuple[Any, list[int]]] = [
    ("new.1", [1, 5]),
    (["tag", "Eq", "paid"], [4]),
    (["tag", "In", ["paid", "x", "none"]], [4, 6]),
    (["tag", "Glob", "new.*"], [1, 3, 5]),
    (["tag", "Glob", "*"], [1, 3, 4, 5, 6]),
    (["tag", "Glob", "?ew.2"], [3]),
    (["any", "x", ["tag", "Glob", "p*d"]], [4, 6]),
    ("none", []),
]


def append_tags(api: Api, *tags: str | None) -> None:
    records = [{"data": 1, **({} if tag is None else {"tag": tag})} for tag in tags]
    assert api.call("POST", "", {"records": records}).status in (200, 201)


@pytest.mark.parametrize(("match", "seqs"), MATCHES)
def test_a_diff_has_the_records_that_its_match_selects(api: Api, match: Any, seqs: list[int]) -> None:
    append_tags(api, *TAGS)
    answer = api.diff(match=match)
    assert [one["$seq"] for one in answer["records"]] == seqs
    assert (answer["next_from_seq"], answer["caught_up"], answer["lag"]) == (6, True, 0)
    assert answer["performance"]["records_scanned"] == 6
    tags = [one["$tag"] for one in api.diff(match=match, include_tags=True)["records"]]
    assert tags == [TAGS[seq - 1] for seq in seqs]


def test_a_limited_diff_continues_after_its_last_record(api: Api) -> None:
    append_tags(api, *TAGS)
    first = api.diff(match=["tag", "Glob", "new.*"], limit=2)
    assert ([one["$seq"] for one in first["records"]], first["next_from_seq"]) == ([1, 3], 3)
    assert api.seqs(first["next_from_seq"], match=["tag", "Glob", "new.*"], limit=2) == [5]


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (5, "match: must be a tag, "),
        ("a*", "match: must not end with *; send "),
        (["tag", "Like", "x"], "match: must be a tag, "),
        (["any", "x", ["tag", "Glob", 5]], "match[2][2]: "),
        (["tag", "Glob", "x\0*"], "match: must not contain a NUL character"),
        ("", "match: must not have an empty tag"),
        (["tag", "In", [str(one) for one in range(257)]], "match: must have at most 256 tags and patterns"),
    ],
    ids=range(7),
)
@pytest.mark.parametrize("rest", ["/diff", "watch"])
def test_a_wrong_match_is_refused_with_its_place(api: Api, rest: str, match: Any, message: str) -> None:
    append_tags(api, "a")
    if rest == "watch":
        answer = api.client.ask("POST", "/v0/watch", {"topics": {api.topic: {}}, "match": match})
    else:
        answer = api.call("POST", "/diff", {"match": match})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json["error"]["message"].startswith(message)


def test_a_wait_ends_with_a_record_of_the_match_only(api: Api, server: HttpServer, lane: str) -> None:
    append_tags(api, "other")

    def append_later() -> None:
        with server.connect(lane) as client:
            later = Api(client, api.topic)
            for _ in range(5):
                append_tags(later, "other", None)
                time.sleep(0.02)
            append_tags(later, "wanted")

    thread = threading.Thread(target=append_later)
    thread.start()
    answer = api.diff(1, match="wanted", wait_ms=30_000)
    thread.join()
    assert [one["$seq"] for one in answer["records"]] == [12]
    assert answer["next_from_seq"] == 12


def test_a_wait_that_ends_without_a_record_has_moved(api: Api) -> None:
    append_tags(api, *TAGS)
    answer = api.diff(match="none", wait_ms=50)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 6, True)


def test_a_wait_ends_with_a_tombstone(api: Api) -> None:
    append_tags(api, *TAGS)
    api.put(cap_records=2)
    answer = api.diff(match="none", wait_ms=30_000)
    assert (answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]) == (4, "cap")
    assert answer["records"] == []


def test_deletes_and_config_do_not_end_a_wait_but_move_nothing_wrongly(api: Api) -> None:
    append_tags(api, *TAGS)
    api.delete(match="new.1")
    assert api.seqs(match=["tag", "Glob", "new.*"]) == [3]


@pytest.mark.http1
def test_a_stream_has_the_records_that_its_match_selects(server: HttpServer, lane: str, api: Api) -> None:
    append_tags(api, *TAGS)
    body = {"topics": {api.topic: {}}, "match": ["tag", "Glob", "new.*"], "heartbeat_ms": 1000}
    wid = api.client.ask("POST", "/v0/watch", body).json["wid"]
    with EventClient(server.ports[lane], f"/v0/watch/{wid}") as stream:
        stream.begin()
        assert [seq for _, seq in stream.records(3)] == [1, 3, 5]
        append_tags(api, "x", "new.3")
        assert [seq for _, seq in stream.records(1)] == [8]
        assert stream.next().name == "caught-up"
        append_tags(api, *["x"] * 20)
        heartbeat_id = stream.heartbeat_id()
        while _seq_of(heartbeat_id) < 28:
            heartbeat_id = stream.heartbeat_id()
    with EventClient(server.ports[lane], f"/v0/watch/{wid}", f"last-event-id: {heartbeat_id}") as stream:
        stream.begin()
        assert stream.next().name == "caught-up"
        append_tags(api, "new.4")
        assert [seq for _, seq in stream.records(1)] == [29]


def _seq_of(event_id: str) -> int:
    (seq,) = json.loads(urlsafe_b64decode(event_id + "==")).values()
    return int(seq)


@pytest.mark.http1
def test_a_subscription_has_the_records_that_its_match_selects(
    server: HttpServer, lane: str, api: Api
) -> None:
    append_tags(api, *TAGS)
    with WsClient(server.ports[lane]) as socket:
        socket.ask("subscribe", topic=api.topic, match=["tag", "In", ["paid", "late"]])
        assert [one["$seq"] for one in socket.expect("record")["records"]] == [4]
        socket.expect("caught_up", head_seq=6)
        append_tags(api, "x", "late")
        assert [one["$seq"] for one in socket.expect("record")["records"]] == [8]
        socket.expect("caught_up")
        append_tags(api, "x", "x")
        while (pong := socket.ask("ping"))["cursors"][api.topic]["from_seq"] < 10:
            pass
        assert pong["cursors"] == {api.topic: {"from_seq": 10, "epoch": api.state()["epoch"]}}
        socket.ask("subscribe", topic=api.topic, tail=True)
        socket.expect("caught_up")
        assert socket.ask("ping") == {"op": "pong"}


@pytest.mark.http1
def test_a_wrong_match_of_a_subscription_is_refused(server: HttpServer, lane: str, api: Api) -> None:
    append_tags(api, "a")
    with WsClient(server.ports[lane]) as socket:
        answer = socket.ask("subscribe", topic=api.topic, match=["tag", "Like", "a"])
        assert answer["message"].startswith("match: must be a tag, ")
