"""The effect of pressure on the responses of a connection."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.harness.stage.one_connection import HOME, OneConnection, request
from tests.unit.engine.wakeups.test_pressure import be_late


def ask(lane: OneConnection, method: str, path: str, body: object = None) -> tuple[int, bytes, Any]:
    """Return status, head and body of one answer."""
    send(lane, method, path, body)
    lane.settle()
    (answer,) = answers(lane)
    return answer


def send(lane: OneConnection, method: str, path: str, body: object = None) -> None:
    raw = b"" if body is None else json.dumps(body).encode()
    lane.receive(request(method, f"/v0/topics/{HOME}{path}", raw))


def answers(lane: OneConnection) -> list[tuple[int, bytes, Any]]:
    data, responses = lane.wire.take(), []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        responses.append((int(head.split()[1]), head, json.loads(rest[: int(length[1])])))
        data = rest[int(length[1]) :]
    return responses


def test_under_pressure_a_write_is_refused_with_a_retry_time() -> None:
    lane = OneConnection(max_waiting_requests=4)
    lane.one.put(HOME, durability="fsync")
    lane.one.shard.pressure.start()
    be_late(lane.one)
    for number in range(3):
        send(lane, "POST", "", {"records": [{"data": number}]})
        lane.one.loop.run_until_idle()
    send(lane, "POST", "", {"records": [{"data": 3}], "disable_backpressure": True})
    lane.one.pass_time(30)
    first, second, refused, passed = answers(lane)
    assert [answer[0] for answer in (first, second, refused, passed)] == [200, 200, 429, 200]
    assert (second[2]["first_seq"], passed[2]["first_seq"]) == (2, 3)
    error = refused[2]["error"]
    assert (error["code"], error["detail"]) == ("throttled", {"retry_after_ms": 1000})
    assert b"\r\nretry-after: 1" in refused[1]
    # Reads are served whatever the pressure.
    assert len(ask(lane, "POST", "/diff", {})[2]["records"]) == 3
    lane.one.pass_time(2500)
    assert ask(lane, "POST", "", {"records": [{"data": 4}]})[0] == 200


def test_disable_backpressure_must_be_a_boolean() -> None:
    lane = OneConnection()
    status, _, body = ask(lane, "POST", "", {"records": [{"data": 1}], "disable_backpressure": 1})
    assert (status, body["error"]["code"]) == (400, "invalid_request")
    assert "disable_backpressure" in body["error"]["message"]
