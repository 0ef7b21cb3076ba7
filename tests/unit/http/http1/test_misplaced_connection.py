"""When a connection closes to be placed anew: clear evidence, and nothing read after the request (L3)."""

from __future__ import annotations

import pytest

from shared.ipc.link import NEVER_SENT
from tests.harness.stage.one_connection import AWAY, HOME, OneConnection, append, look, request
from topicsd.http.http1.connection import FOREIGN_REQUESTS_MIN, PLACEMENT_SECONDS_MIN
from topicsd.http.http1.timeouts import Lingering

CLOSE = b"connection: close\r\n"
MANY = FOREIGN_REQUESTS_MIN
METRICS = request("GET", "/v0/metrics", b"")


def _old_connection(seconds: float = PLACEMENT_SECONDS_MIN) -> OneConnection:
    connection = OneConnection()
    connection.one.append(HOME, 0)
    connection.one.pass_time(int(seconds * 1000))
    return connection


def _answer(connection: OneConnection) -> None:
    """Answer all requests that went over the link, in their order."""
    while connection.links.requests:
        connection.links.requests.pop(0)[3](NEVER_SENT)


def _ask(connection: OneConnection, *requests: bytes) -> bytes:
    """Send each request after the response to the one before; return the last response."""
    response = b""
    for one in requests:
        connection.receive(one)
        _answer(connection)
        connection.settle()
        response = connection.wire.take()
    return response


@pytest.mark.parametrize("sent", [append(AWAY), look(AWAY)])
def test_a_connection_closes_after_many_requests_for_one_other_shard(sent: bytes) -> None:
    connection = _old_connection()
    assert CLOSE not in _ask(connection, *[sent] * (MANY - 1))
    assert CLOSE in _ask(connection, sent)
    assert connection.wire.has_ended_writing
    assert connection.dispatch.misplaced_count == 1


@pytest.mark.parametrize(
    "sent",
    [
        [append(AWAY)] * (MANY - 1) + [append(HOME)] + [append(AWAY)] * (MANY - 1),
        [append(AWAY)] * (MANY - 1) + [METRICS] + [append(AWAY)] * (MANY - 1),
        [METRICS] * (MANY + 1),
        [append(HOME)] * (MANY + 1),
    ],
    ids=["own in between", "supervisor in between", "supervisor", "own"],
)
def test_a_connection_stays_without_clear_evidence(sent: list[bytes]) -> None:
    connection = _old_connection()
    assert CLOSE not in _ask(connection, *sent)
    assert connection.dispatch.misplaced_count == 0


def test_a_new_connection_stays_until_it_is_old_enough() -> None:
    connection = _old_connection(PLACEMENT_SECONDS_MIN - 0.1)
    assert CLOSE not in _ask(connection, *[append(AWAY)] * (MANY * 2))
    connection.one.pass_time(100)
    assert CLOSE in _ask(connection, append(AWAY))


@pytest.mark.parametrize("burst", [[append(AWAY)] * 2, [append(AWAY), append(AWAY)[:20]]])
def test_a_connection_that_pipelines_stays(burst: list[bytes]) -> None:
    connection = _old_connection()
    _ask(connection, *[append(AWAY)] * (MANY - 1))
    connection.receive(*burst)
    connection.receive(append(AWAY)[len(burst[1]) :])
    _answer(connection)
    written = connection.wire.take()
    assert CLOSE not in written
    assert written.count(b"HTTP/1.1 ") == 2
    assert connection.dispatch.misplaced_count == 0


def test_requests_beside_others_are_no_evidence() -> None:
    connection = _old_connection()
    connection.receive(append(AWAY))
    for _ in range(MANY * 2):
        connection.receive(append(AWAY))
        connection.links.requests.pop(0)[3](NEVER_SENT)
    assert CLOSE not in connection.wire.take()


def test_bytes_that_arrive_after_the_closing_request_are_dropped_without_a_reset() -> None:
    connection = _old_connection()
    _ask(connection, *[append(AWAY)] * (MANY - 1))
    connection.receive(append(AWAY))
    connection.receive(append(AWAY))
    assert len(connection.links.requests) == 1
    _answer(connection)
    assert connection.wire.take().count(b"HTTP/1.1 ") == 1
    assert connection.links.requests == []
    assert isinstance(connection.wire.protocol, Lingering)
    assert not connection.wire.is_closed


def test_a_connection_that_closes_anyway_does_not_count() -> None:
    connection = _old_connection()
    _ask(connection, *[append(AWAY)] * (MANY - 1))
    assert CLOSE in _ask(connection, append(AWAY, 1, "connection: close"))
    assert connection.dispatch.misplaced_count == 0
