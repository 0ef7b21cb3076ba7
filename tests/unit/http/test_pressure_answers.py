"""The effect of pressure on the responses of a connection."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.harness.stage.one_connection import HOME, OneConnection, request
from tests.unit.engine.wakeups.test_pressure import be_late


def ask(connection: OneConnection, method: str, path: str, body: object = None) -> tuple[int, bytes, Any]:
    """Return status, head and body of one answer."""
    send(connection, method, path, body)
    connection.settle()
    (answer,) = answers(connection)
    return answer


def send(connection: OneConnection, method: str, path: str, body: object = None) -> None:
    raw = b"" if body is None else json.dumps(body).encode()
    connection.receive(request(method, f"/v0/topics/{HOME}{path}", raw))


def answers(connection: OneConnection) -> list[tuple[int, bytes, Any]]:
    data, responses = connection.wire.take(), []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        responses.append((int(head.split()[1]), head, json.loads(rest[: int(length[1])])))
        data = rest[int(length[1]) :]
    return responses


def test_under_pressure_a_write_is_refused_with_a_retry_time() -> None:
    connection = OneConnection(max_waiting_requests=4)
    connection.one.put(HOME, durability="fsync")
    connection.one.shard.pressure.start()
    be_late(connection.one)
    for number in range(3):
        send(connection, "POST", "", {"records": [{"data": number}]})
        connection.one.loop.run_until_idle()
    send(connection, "POST", "", {"records": [{"data": 3}], "disable_backpressure": True})
    connection.one.pass_time(30)
    first, second, refused, passed = answers(connection)
    assert [answer[0] for answer in (first, second, refused, passed)] == [200, 200, 429, 200]
    assert (second[2]["first_seq"], passed[2]["first_seq"]) == (2, 3)
    error = refused[2]["error"]
    assert (error["code"], error["detail"]) == ("throttled", {"retry_after_ms": 1000})
    assert b"\r\nretry-after: 1" in refused[1]
    # Reads are served whatever the pressure.
    assert len(ask(connection, "POST", "/diff", {})[2]["records"]) == 3
    connection.one.pass_time(2500)
    assert ask(connection, "POST", "", {"records": [{"data": 4}]})[0] == 200


def test_disable_backpressure_must_be_a_boolean() -> None:
    connection = OneConnection()
    status, _, body = ask(connection, "POST", "", {"records": [{"data": 1}], "disable_backpressure": 1})
    assert (status, body["error"]["code"]) == (400, "invalid_request")
    assert "disable_backpressure" in body["error"]["message"]
