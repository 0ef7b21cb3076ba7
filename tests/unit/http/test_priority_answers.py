"""The priorities in responses."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tests.harness.stage.one_connection import HOME, OneConnection, request
from topicsd.service.topic_list import list_topics


def ask(lane: OneConnection, method: str, path: str, body: object = None) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    lane.receive(request(method, f"/v0/topics/{HOME}{path}", raw))
    lane.settle()
    return json.loads(lane.wire.take().partition(b"\r\n\r\n")[2])


def priority(lane: OneConnection, query: str = "?touch=false") -> int:
    state = ask(lane, "GET", query)
    assert isinstance(state["effective_priority"], int)
    return int(state["effective_priority"])


def test_a_consumed_topic_has_a_higher_priority_for_a_while() -> None:
    lane = OneConnection()
    lane.one.append(HOME, 1)
    assert priority(lane) == 0
    ask(lane, "POST", "/diff", {})
    assert priority(lane) == 500
    lane.one.pass_time(30_000)
    assert priority(lane) == 250
    # The response has the priority before this read.
    assert priority(lane, "") == 250
    assert priority(lane) == 500
    lane.one.pass_time(300_000)
    assert priority(lane) == 0
    ask(lane, "POST", "/diff", {})
    ask(lane, "PUT", "", {"auto_priority": False})
    assert priority(lane) == 0
    ask(lane, "PUT", "", {"auto_priority": True, "priority": -5000})
    assert priority(lane) == -1000


def test_a_topic_list_contains_the_priorities() -> None:
    lane = OneConnection()
    for name, patch in (("a", {"priority": 700}), ("b", {}), ("c", {"priority": -2000})):
        lane.one.put(name, **patch)
    lane.one.append(HOME, 1)
    ask(lane, "POST", "/diff", {})
    pages: list[bytes] = []
    list_topics(lane.one.shard.state, msgspec.msgpack.encode(["", "", 10]), pages.append)
    listed = msgspec.msgpack.decode(pages[0])
    priorities = {one["topic"]: one["effective_priority"] for one in listed}
    assert priorities == {"a": 700, "b": 0, "c": -1000, HOME: 500}
    # Listing a topic does not count as consuming it.
    assert priority(lane) == 500
    lane.one.pass_time(60_000)
    list_topics(lane.one.shard.state, msgspec.msgpack.encode(["", "", 10]), pages.append)
    assert priority(lane) == 125
