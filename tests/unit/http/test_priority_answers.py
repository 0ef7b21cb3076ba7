"""The priorities in responses."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tests.harness.stage.one_connection import HOME, OneConnection, request
from topicsd.service.topic_list import list_topics


def ask(connection: OneConnection, method: str, path: str, body: object = None) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    connection.receive(request(method, f"/v0/topics/{HOME}{path}", raw))
    connection.settle()
    return json.loads(connection.wire.take().partition(b"\r\n\r\n")[2])


def priority(connection: OneConnection, query: str = "?touch=false") -> int:
    state = ask(connection, "GET", query)
    assert isinstance(state["effective_priority"], int)
    return int(state["effective_priority"])


def test_a_consumed_topic_has_a_higher_priority_for_a_while() -> None:
    connection = OneConnection()
    connection.one.append(HOME, 1)
    assert priority(connection) == 0
    ask(connection, "POST", "/diff", {})
    assert priority(connection) == 500
    connection.one.pass_time(30_000)
    assert priority(connection) == 250
    # The response has the priority before this read.
    assert priority(connection, "") == 250
    assert priority(connection) == 500
    connection.one.pass_time(300_000)
    assert priority(connection) == 0
    ask(connection, "POST", "/diff", {})
    ask(connection, "PUT", "", {"auto_priority": False})
    assert priority(connection) == 0
    ask(connection, "PUT", "", {"auto_priority": True, "priority": -5000})
    assert priority(connection) == -1000


def test_a_topic_list_contains_the_priorities() -> None:
    connection = OneConnection(here="abc")
    for name, patch in (("a", {"priority": 700}), ("b", {}), ("c", {"priority": -2000})):
        connection.one.put(name, **patch)
    connection.one.append(HOME, 1)
    ask(connection, "POST", "/diff", {})
    pages: list[bytes] = []
    list_topics(connection.one.shard.state, (), msgspec.msgpack.encode(["", "", 10]), pages.append)
    listed = msgspec.msgpack.decode(pages[0])
    priorities = {one["topic"]: one["effective_priority"] for one in listed}
    assert priorities == {"a": 700, "b": 0, "c": -1000, HOME: 500}
    # Listing a topic does not count as consuming it.
    assert priority(connection) == 500
    connection.one.pass_time(60_000)
    list_topics(connection.one.shard.state, (), msgspec.msgpack.encode(["", "", 10]), pages.append)
    assert priority(connection) == 125
