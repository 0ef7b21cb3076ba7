"""An HTTP/1.1 connection: when requests start, and in which order their answers are sent."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest

from shared.ipc.link import NEVER_SENT
from shared.ipc.remote_request import decode_remote_request, encode_answer
from tests.harness.clients.raw_client import request_bytes
from tests.harness.stage.one_connection import AWAY, HOME, OneConnection, append, diff, look
from topicsd.http.http1.connection import AHEAD_MAX, LARGE_BODY_BYTES

BODY = b'{"records":[{"data":1}]}'
CHUNKED = request_bytes("POST", f"/v0/topics/{HOME}", BODY, is_chunked=True)
ZIPPED = request_bytes("POST", f"/v0/topics/{HOME}", gzip.compress(BODY, mtime=0), "content-encoding: gzip")


def _bodies(written: bytes) -> list[Any]:
    """Return the bodies of all answers, in order; each must have the correct length."""
    bodies, at = [], 0
    while at < len(written):
        head_end = written.index(b"\r\n\r\n", at) + 4
        length = re.search(rb"content-length: (\d+)", written[at:head_end])
        assert length is not None
        at = head_end + int(length[1])
        bodies.append(json.loads(written[head_end:at]))
    return bodies


@pytest.fixture
def connection() -> OneConnection:
    made = OneConnection()
    made.one.append(HOME, 0)
    return made


def test_consecutive_appends_share_a_batch_and_are_answered_in_order(connection: OneConnection) -> None:
    connection.receive(*(append(HOME, n) for n in range(10)))
    assert connection.pending_writes == 10
    assert connection.wire.written == b""
    connection.settle()
    assert [answer["first_seq"] for answer in _bodies(connection.wire.written)] == list(range(2, 12))


def test_at_most_sixteen_appends_are_in_progress_and_reading_pauses_meanwhile(
    connection: OneConnection,
) -> None:
    connection.receive(*(append(HOME, n) for n in range(50)))
    assert connection.pending_writes == AHEAD_MAX
    assert connection.wire.is_reading_paused
    connection.settle()
    assert [answer["first_seq"] for answer in _bodies(connection.wire.written)] == list(range(2, 52))
    assert not connection.wire.is_reading_paused


def test_any_other_request_starts_when_earlier_requests_are_answered(connection: OneConnection) -> None:
    connection.receive(append(HOME), append(HOME), diff(HOME), append(HOME), look(HOME))
    assert connection.pending_writes == 2
    connection.settle()
    first, second, read, third, state = _bodies(connection.wire.written)
    assert [answer["first_seq"] for answer in (first, second, third)] == [2, 3, 4]
    assert (read["head_seq"], state["head_seq"]) == (3, 4)


def test_an_append_does_not_start_beside_another_operation(connection: OneConnection) -> None:
    connection.receive(diff(HOME, b'{"from_seq":1,"wait_ms":1000}'), append(HOME))
    connection.settle()
    assert connection.wire.written == b""
    assert connection.pending_writes == 0
    connection.one.pass_time(1000)
    read, written = _bodies(connection.wire.written)
    assert (read["records"], written["first_seq"]) == ([], 2)


def test_an_early_answer_waits_for_the_answers_before_it(connection: OneConnection) -> None:
    connection.receive(append(AWAY), append(HOME), append(AWAY))
    connection.settle()
    assert connection.wire.written == b""
    (_, _, first, answer_first), (_, _, _, answer_last) = connection.links.requests
    assert decode_remote_request(first).name == AWAY
    answer_last(encode_answer(200, b"", [b'{"n":3}']))
    assert connection.wire.written == b""
    answer_first(encode_answer(201, b"", [b'{"n":1}']))
    one, two, three = _bodies(connection.wire.written)
    assert (one["n"], two["first_seq"], three["n"]) == (1, 2, 3)
    assert connection.wire.written.startswith(b"HTTP/1.1 201 Created\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "outcome", "status", "code"),
    [
        (append(AWAY), None, 504, "in_doubt"),
        (append(AWAY), NEVER_SENT, 503, "not_ready"),
        (diff(AWAY), None, 503, "not_ready"),
        (look(AWAY), NEVER_SENT, 503, "not_ready"),
    ],
)
def test_a_request_that_the_owner_did_not_answer_is_refused_and_the_connection_continues(
    connection: OneConnection, request_bytes: bytes, outcome: bytes | None, status: int, code: str
) -> None:
    connection.receive(request_bytes, append(HOME))
    connection.links.requests[0][3](outcome)
    connection.settle()
    assert connection.wire.written.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nretry-after: 1\r\n" in connection.wire.written
    refused, written = _bodies(connection.wire.written)
    assert (refused["error"]["code"], written["first_seq"]) == (code, 2)


def test_no_request_starts_after_one_that_closes_the_connection(connection: OneConnection) -> None:
    connection.receive(append(HOME, 1, "connection: close"), append(HOME), look(HOME))
    assert connection.pending_writes == 1
    connection.settle()
    assert len(_bodies(connection.wire.written)) == 1
    assert connection.one.state(HOME).head_seq == 2
    assert connection.wire.has_ended_writing or connection.wire.is_closed


def test_a_malformed_request_is_refused_after_the_earlier_answers(connection: OneConnection) -> None:
    connection.receive(append(HOME), append(HOME), b"nonsense\r\n\r\n", append(HOME))
    assert connection.wire.written == b""
    connection.settle()
    *written, refused = _bodies(connection.wire.written)
    assert [answer["first_seq"] for answer in written] == [2, 3]
    assert refused["error"]["code"] == "invalid_request"
    assert connection.one.state(HOME).head_seq == 3


def test_requests_of_a_client_that_does_not_read_wait(connection: OneConnection) -> None:
    connection.connection.pause_writing()
    connection.receive(append(HOME), look(HOME))
    connection.settle()
    assert connection.wire.written == b""
    assert connection.wire.is_reading_paused
    connection.connection.resume_writing()
    connection.settle()
    assert len(_bodies(connection.wire.written)) == 2
    assert not connection.wire.is_reading_paused


def test_a_large_body_is_assembled_and_the_requests_after_it_are_read(connection: OneConnection) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * LARGE_BODY_BYTES)
    head = append(HOME).partition(b"\r\n\r\n")[0].replace(b": 24", b": %d" % len(body)) + b"\r\n\r\n"
    sent = append(HOME) + head + body + append(HOME) + look(HOME)
    for at in range(0, len(sent), 50_000):
        connection.receive(sent[at : at + 50_000])
        connection.settle()
    heads = [answer["head_seq"] for answer in _bodies(connection.wire.written)]
    assert heads == [2, 3, 4, 4]
    assert len(connection.one.read(HOME, 2).records[0].data) == LARGE_BODY_BYTES + 2


def test_a_coded_body_starts_when_everything_before_it_is_answered(connection: OneConnection) -> None:
    connection.receive(append(HOME), CHUNKED, append(HOME), CHUNKED, look(HOME))
    assert connection.pending_writes == 1
    connection.settle()
    assert [answer["head_seq"] for answer in _bodies(connection.wire.written)] == [2, 3, 4, 5, 5]
    assert len(connection.connections) == 1


@pytest.mark.parametrize("size", [1, 7, len(CHUNKED) - 1, len(CHUNKED) + 1])
def test_a_coded_body_may_arrive_in_segments_and_the_next_request_follows_it(
    connection: OneConnection, size: int
) -> None:
    sent = CHUNKED + append(HOME) + ZIPPED + look(HOME)
    for at in range(0, len(sent), size):
        connection.receive(sent[at : at + size])
        connection.settle()
    assert [answer["head_seq"] for answer in _bodies(connection.wire.written)] == [2, 3, 4, 4]


def test_expect_continue_is_answered_in_turn_or_refused(connection: OneConnection) -> None:
    head, _, body = append(HOME, 1, "expect: 100-continue").partition(b"\r\n\r\n")
    connection.receive(append(HOME), head + b"\r\n\r\n")
    assert connection.wire.written == b""
    connection.settle()
    assert connection.wire.written.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    connection.wire.take()
    connection.receive(body)
    connection.settle()
    assert [answer["head_seq"] for answer in _bodies(connection.wire.written)] == [3]
    connection.wire.take()
    connection.receive(head.replace(b"/v0/topics/", b"/v0/nothing/") + b"\r\n\r\n")
    assert connection.wire.written.startswith(b"HTTP/1.1 404 ")
    assert connection.wire.is_closed or connection.wire.has_ended_writing


def test_a_malformed_coded_body_ends_the_connection_in_turn(connection: OneConnection) -> None:
    connection.receive(append(HOME), CHUNKED.replace(b"\r\n0\r\n", b"x0\r\n"), append(HOME))
    connection.settle()
    first, second = connection.wire.written.split(b"HTTP/1.1 ")[1:]
    assert (first[:3], second[:3]) == (b"200", b"400")
    assert connection.wire.is_closed or connection.wire.has_ended_writing
    assert connection.one.state(HOME).head_seq == 2


# -- the end -----------------------------------------------------------------------------------------------


def test_a_drain_closes_an_idle_connection_at_once(connection: OneConnection) -> None:
    connection.connection.drain()
    assert connection.wire.is_closed
    assert connection.wire.written == b""


def test_a_drain_answers_requests_in_progress_and_starts_no_more(connection: OneConnection) -> None:
    connection.receive(*(append(HOME) for _ in range(AHEAD_MAX + 5)))
    connection.dispatch.is_draining = True
    connection.connection.drain()
    assert connection.wire.written == b""
    connection.settle()
    assert len(_bodies(connection.wire.written)) == AHEAD_MAX
    assert connection.wire.written.count(b"connection: close\r\n") == 1
    assert connection.one.state(HOME).head_seq == 1 + AHEAD_MAX
    assert connection.wire.is_closed or connection.wire.has_ended_writing


def test_a_drain_cancels_long_polls(connection: OneConnection) -> None:
    timers = connection.one.loop.timer_count
    connection.receive(diff(HOME, b'{"from_seq":1,"wait_ms":30000}'))
    assert connection.one.loop.timer_count == timers + 1
    connection.dispatch.is_draining = True
    connection.connection.drain()
    assert _bodies(connection.wire.written)[0]["records"] == []
    assert connection.one.loop.timer_count == timers
    assert connection.wire.is_closed


def test_requests_in_progress_complete_after_the_client_disconnects(connection: OneConnection) -> None:
    connection.receive(append(HOME), append(HOME))
    connection.connection.connection_lost(None)
    connection.settle()
    assert connection.one.state(HOME).head_seq == 3
    assert connection.wire.written == b""
    assert connection.connections == set()


def test_a_disconnect_cancels_the_long_poll(connection: OneConnection) -> None:
    timers = connection.one.loop.timer_count
    connection.receive(diff(HOME, b'{"from_seq":1,"wait_ms":30000}'))
    connection.connection.connection_lost(None)
    assert connection.one.topic(HOME).waiters is None
    assert connection.one.loop.timer_count == timers
