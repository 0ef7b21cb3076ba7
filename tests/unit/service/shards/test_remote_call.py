"""Requests for another shard: sent once or retried, and answered once, even if the link fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.contract.errors import INTERNAL
from shared.http.answer import CLOSE
from shared.ipc import remote_request
from shared.ipc.link import HEADER, LARGE_PAYLOAD_BYTES, NEVER_SENT, Done, Link
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import RemoteRequest, decode_answer, decode_remote_request, encode_answer
from shared.runtime.body_memory import SHARED_BYTES_MIN, SharedBody
from tests.harness.stage.one_connection import AWAY, HOME, OneConnection, append, diff, look, request
from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http1.stream import ConnectionStream
from topicsd.service.shards.remote_call import RETRY_SECONDS, RETRY_SECONDS_MAX

AGAIN_MS = int(RETRY_SECONDS * 1000)
KEYED = append(AWAY, 1, "idempotency-key: k")
BODY_WITH_KEY = b'{"records":[{"data":1}],"idempotency_key":"k"}'
KEYED_IN_BODY = request("POST", f"/v0/topics/{AWAY}", BODY_WITH_KEY, "x: y")


@pytest.fixture
def connection() -> OneConnection:
    connection = OneConnection()
    connection.one.append(HOME, 0)
    return connection


def _status(connection: OneConnection) -> int:
    written = connection.wire.written
    return int(written.split(b" ")[1]) if written else 0


def _error(connection: OneConnection) -> dict[str, Any]:
    return dict(json.loads(connection.wire.written.partition(b"\r\n\r\n")[2])["error"])


def _answer(connection: OneConnection, answer: bytes | None, which: int = -1) -> None:
    done: Done = connection.links.requests[which][3]
    done(answer)


def _remote_request(connection: OneConnection, which: int = -1) -> RemoteRequest:
    return decode_remote_request(connection.links.requests[which][2])


# -- a link that dies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [KEYED, KEYED_IN_BODY], ids=["header", "body"])
def test_a_keyed_append_is_retried_until_its_owner_is_back(connection: OneConnection, sent: bytes) -> None:
    connection.receive(sent, append(HOME))
    assert _remote_request(connection).retried_after_ms == 0
    _answer(connection, None)
    for n, outcome in enumerate((NEVER_SENT, NEVER_SENT, None), 1):
        connection.one.pass_time(AGAIN_MS)
        assert len(connection.links.requests) == 1 + n
        assert n * AGAIN_MS <= _remote_request(connection).retried_after_ms <= n * AGAIN_MS + 1
        _answer(connection, outcome)
        assert connection.wire.written == b""
    connection.one.pass_time(AGAIN_MS)
    _answer(connection, encode_answer(200, b"", [b'{"deduped":true}']))
    connection.settle()
    assert connection.wire.written.count(b"HTTP/1.1 200 OK") == 2
    connection.one.pass_time(10_000)
    assert len(connection.links.requests) == 5


def test_retries_end_when_the_owner_stays_away(connection: OneConnection) -> None:
    connection.receive(KEYED)
    _answer(connection, None)
    for _ in range(int(RETRY_SECONDS_MAX / RETRY_SECONDS) + 1):
        assert connection.wire.written == b""
        connection.one.pass_time(AGAIN_MS)
        _answer(connection, NEVER_SENT)
    assert _status(connection) == 504
    assert "same idempotency key" in _error(connection)["message"]
    call_count = len(connection.links.requests)
    connection.one.pass_time(10_000)
    assert len(connection.links.requests) == call_count


def test_retries_end_when_the_client_disconnects_or_the_process_drains(connection: OneConnection) -> None:
    timers = connection.one.loop.timer_count
    connection.receive(KEYED)
    _answer(connection, None)
    assert connection.one.loop.timer_count == timers + 1
    connection.dispatch.is_draining = True
    connection.connection.drain()
    assert _status(connection) == 504
    assert connection.one.loop.timer_count == timers

    other = OneConnection()
    timers = other.one.loop.timer_count
    other.receive(KEYED)
    _answer(other, None)
    other.connection.connection_lost(None)
    assert other.one.loop.timer_count == timers
    assert other.wire.written == b""


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (append(AWAY), 504, "send an idempotency key"),
        (request("PUT", f"/v0/topics/{AWAY}", b"{}"), 504, "may or may not have been made"),
        (request("DELETE", f"/v0/topics/{AWAY}", b""), 504, "may or may not have been made"),
        (
            request("POST", f"/v0/topics/{AWAY}/delete", b'{"before_seq":2}'),
            504,
            "may or may not have been made",
        ),
        (diff(AWAY), 503, "shard 1 does not answer"),
        (look(AWAY), 503, "shard 1 does not answer"),
        (request("GET", "/v0/topics", b""), 503, "the supervisor does not answer"),
    ],
)
def test_a_lost_link_leaves_writes_in_doubt_and_reads_unavailable(
    connection: OneConnection, sent: bytes, status: int, text: str
) -> None:
    connection.receive(sent)
    _answer(connection, None)
    assert _status(connection) == status
    error = _error(connection)
    assert error["code"] == ("in_doubt" if status == 504 else "not_ready")
    assert text in error["message"]
    assert b"\r\nretry-after: 1\r\n" in connection.wire.written


@pytest.mark.parametrize("sent", [KEYED, append(AWAY), request("DELETE", f"/v0/topics/{AWAY}", b"")])
def test_a_request_that_was_never_sent_is_503_at_once(connection: OneConnection, sent: bytes) -> None:
    connection.receive(sent)
    _answer(connection, NEVER_SENT)
    assert (_status(connection), _error(connection)["code"]) == (503, "not_ready")


def test_a_large_body_is_sent_separately_on_each_attempt_and_read_for_its_key(
    connection: OneConnection,
) -> None:
    body = b'{"records":[{"data":"%b"}],"idempotency_key":"k"}' % (b"x" * LARGE_PAYLOAD_BYTES)
    connection.receive(request("POST", f"/v0/topics/{AWAY}", body))
    for _ in range(2):
        assert (_remote_request(connection).body, connection.links.bodies[-1]) == (b"", body)
        _answer(connection, None)
        connection.one.pass_time(AGAIN_MS)
    assert len(connection.links.requests) == 3


def _receive_in_two(connection: OneConnection, topic: str, body: bytes) -> None:
    """Send head and body separately, as a socket delivers a large request."""
    sent = request("POST", f"/v0/topics/{topic}", body)
    connection.receive(sent[: -len(body)])
    connection.receive(body)


def test_a_shared_body_is_sent_on_each_attempt_and_read_for_its_key(connection: OneConnection) -> None:
    body = b'{"records":[{"data":"%b"}],"idempotency_key":"k"}' % (b"x" * SHARED_BYTES_MIN)
    _receive_in_two(connection, AWAY, body)
    for _ in range(2):
        body_part = connection.links.bodies[-1]
        assert isinstance(body_part, SharedBody)
        assert (_remote_request(connection).body, body_part.content()) == (b"", body)
        _answer(connection, None)
        connection.one.pass_time(AGAIN_MS)
    assert len(connection.links.requests) == 3
    unkeyed = body.replace(b"idempotency_key", b"node")
    other = OneConnection()
    _receive_in_two(other, AWAY, unkeyed)
    _answer(other, None)
    assert _status(other) == 504


def test_a_large_body_for_this_shard_is_not_shared(connection: OneConnection) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * SHARED_BYTES_MIN)
    _receive_in_two(connection, HOME, body)
    assert connection.links.requests == []
    assert _error(connection)["code"] == "record_too_large"


def test_a_body_for_the_supervisor_is_refused_by_the_worker(connection: OneConnection) -> None:
    for size in (10, LARGE_PAYLOAD_BYTES):
        connection.receive(request("GET", "/v0/topics", b"x" * size))
        answer = connection.wire.take().partition(b"\r\n\r\n")[2]
        assert json.loads(answer)["error"]["message"] == "the body must be empty: GET /v0/topics takes none"
    connection.receive(request("GET", "/v0/topics", b"{}"))
    assert (_remote_request(connection).body, connection.links.bodies[-1]) == (b"", b"")


# -- at the owner ------------------------------------------------------------------------------------------


class Peer:
    """Another process that sends requests to this one, over a link whose wire the test holds."""

    def __init__(self, connection: OneConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shared.ipc.link.asyncio.get_running_loop", lambda: connection.one.loop)
        self.link = Link(lambda kind, payload, request: connection.dispatch.answer_link(payload, request))
        self.wire = RecordingTransport()
        self.link.connection_made(self.wire)
        self._connection = connection

    def request(
        self, operation: str, body: bytes, key: str = "", retried_after_ms: int = 0, name: str = HOME
    ) -> None:
        self.send_request(
            RemoteRequest(operation, name, "", "application/json", "", key, body, (), retried_after_ms)
        )

    def send_request(self, request: RemoteRequest) -> None:
        self.receive(LinkKind.REQUEST, remote_request.encode_remote_request(request))

    def receive(self, kind: LinkKind, payload: bytes) -> None:
        self.link.data_received(HEADER.pack(len(payload), kind, 1) + payload)

    def answer(self) -> tuple[int, bytes, Any] | None:
        self._connection.settle()
        written = self.wire.take()
        if not written:
            return None
        status, fields, body = decode_answer(written[HEADER.size :])
        return status, fields, json.loads(body)


@pytest.fixture
def peer(connection: OneConnection, monkeypatch: pytest.MonkeyPatch) -> Peer:
    return Peer(connection, monkeypatch)


def test_a_retried_write_is_applied_once(peer: Peer) -> None:
    body = b'{"records":[{"data":1}]}'
    peer.request("append", body, "k")
    first = peer.answer()
    peer.request("append", body, "k", retried_after_ms=500)
    again = peer.answer()
    assert first is not None
    assert again is not None
    assert (first[2]["first_seq"], first[2]["deduped"]) == (2, False)
    assert (again[0], again[2]["first_seq"], again[2]["deduped"]) == (200, 2, True)


def test_a_separate_body_belongs_to_the_next_request(peer: Peer) -> None:
    peer.receive(LinkKind.BODY, b'{"records":[{"data":1}]}')
    peer.request("append", b"")
    answer = peer.answer()
    assert answer is not None
    assert (answer[0], answer[2]["first_seq"]) == (200, 2)


def test_the_owner_applies_the_prefixes_of_a_key_to_names_in_a_body(peer: Peer) -> None:
    keyed = OneConnection(keys=f"key-of-an-owner::{AWAY}|orders.")
    body = b'{"dead_letter":"private"}'
    sent = request("PUT", f"/v0/topics/{AWAY}", body, "authorization: Bearer key-of-an-owner")
    keyed.receive(sent)
    remote_request = _remote_request(keyed)
    assert remote_request.prefixes == (AWAY, "orders.")
    remote_request.name = HOME
    peer.send_request(remote_request)
    answer = peer.answer()
    assert answer is not None
    assert (answer[0], answer[2]["error"]["detail"]) == (403, {"field": "dead_letter", "topic": "private"})


def test_a_retry_after_the_window_of_its_key_is_in_doubt_and_not_applied(
    connection: OneConnection, peer: Peer
) -> None:
    connection.one.put(HOME, idempotency_window_ms=300)
    peer.request("append", b'{"records":[{"data":1}]}', "k", retried_after_ms=300)
    answer = peer.answer()
    assert answer is not None
    assert (answer[0], answer[2]["error"]["code"]) == (504, "in_doubt")
    assert connection.one.state(HOME).head_seq == 1
    peer.request("append", b'{"records":[{"data":1}]}', "k", retried_after_ms=299)
    answer = peer.answer()
    assert answer is not None
    assert answer[0] == 200


def test_a_wait_ends_when_the_requesting_process_cancels_it_or_disconnects(
    connection: OneConnection, peer: Peer
) -> None:
    timers = connection.one.loop.timer_count
    wait = b'{"from_seq":1,"wait_ms":30000}'
    peer.request("diff", wait)
    assert peer.answer() is None
    peer.receive(LinkKind.CANCEL_WAIT, b"")
    answer = peer.answer()
    assert answer is not None
    assert (answer[0], answer[2]["records"]) == (200, [])
    peer.request("diff", wait)
    assert connection.one.loop.timer_count == timers + 1
    peer.link.connection_lost(None)
    assert connection.one.loop.timer_count == timers
    assert connection.one.topic(HOME).waiters is None


def test_an_open_stream_is_not_cancelled_until_its_client_disconnects(connection: OneConnection) -> None:
    wid = connection.dispatch.streams.ids.make(1, bytes(16))
    connection.receive(request("GET", f"/v0/watch/{wid}", b""))
    (link_call,) = connection.links.calls
    assert link_call.on_part is not None
    link_call.on_part(b"content-type: text/event-stream\r\n")
    assert not link_call.is_wait_cancelled
    link_call.on_part(b"retry: 2000\n\n")
    assert connection.wire.written.endswith(b"\r\n\r\nretry: 2000\n\n")
    assert isinstance(connection.wire.protocol, ConnectionStream)
    connection.wire.protocol.connection_lost(None)
    assert link_call.is_wait_cancelled
    _answer(connection, NEVER_SENT)
    assert not connection.connections


def test_a_wait_ends_when_its_owner_drains(connection: OneConnection, peer: Peer) -> None:
    peer.request("diff", b'{"from_seq":1,"wait_ms":30000}')
    connection.dispatch.drain()
    # The requesting process may stop too, and then cancels the wait itself.
    assert peer.answer() is None
    connection.one.pass_time(400)
    answer = peer.answer()
    assert answer is not None
    assert answer[2]["records"] == []
    peer.request("diff", b'{"from_seq":1,"wait_ms":30000}')
    assert peer.answer() is not None


def test_an_unexpected_error_closes_the_connection_of_the_client(
    connection: OneConnection, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(operation: str, call: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(connection.dispatch.handlers, "start", broken)
    peer.request("diff", b"{}")
    answer = peer.answer()
    assert answer is not None
    assert (answer[0], answer[1], answer[2]["error"]["code"]) == (500, CLOSE, INTERNAL)
    connection.receive(append(AWAY), append(AWAY))
    _answer(connection, encode_answer(500, CLOSE, [b"{}"]), 0)
    assert connection.wire.written.count(CLOSE) == 1
    assert connection.wire.is_closed or connection.wire.has_ended_writing


# -- at the client ------------------------------------------------------------------------------------------


def test_a_client_that_disconnects_cancels_its_remote_wait(connection: OneConnection) -> None:
    connection.receive(diff(AWAY, b'{"wait_ms":30000}'))
    assert not connection.links.calls[0].is_wait_cancelled
    connection.connection.connection_lost(None)
    assert connection.links.calls[0].is_wait_cancelled


def test_a_response_has_one_content_type(connection: OneConnection) -> None:
    connection.receive(request("GET", "/v0/metrics", b""))
    _answer(connection, encode_answer(200, b"content-type: text/plain\r\n", [b"x 1\n"]))
    assert connection.wire.written.count(b"content-type: ") == 1
    assert b"\r\ncontent-type: text/plain\r\n" in connection.wire.written


def test_the_requests_in_flight_of_a_key_are_bounded() -> None:
    connection = OneConnection(keys="a-key-of-16-chars,b-key-of-16-chars", max_inflight_per_key=2)
    a, b = (f"authorization: Bearer {one}-key-of-16-chars" for one in "ab")
    connection.receive(*(append(AWAY, n, a) for n in range(3)), append(AWAY, 1, b))
    assert len(connection.links.requests) == 3
    for which in range(3):
        _answer(connection, encode_answer(200, b"", [b"{}"]), which)
    first, second, refused, fourth = connection.wire.written.split(b"HTTP/1.1 ")[1:]
    assert [one[:3] for one in (first, second, refused, fourth)] == [b"200", b"200", b"429", b"200"]
    assert b'"limit":"max_inflight_per_key","max":2' in refused
    assert b"\r\nretry-after: 1\r\n" in refused
    connection.wire.take()
    connection.receive(append(AWAY, 1, a))
    _answer(connection, encode_answer(200, b"", [b"{}"]))
    assert _status(connection) == 200


def test_a_refusal_names_the_shard() -> None:
    connection = OneConnection()
    connection.receive(look(AWAY))
    _answer(connection, NEVER_SENT)
    assert _error(connection)["detail"] == {"shard": 1, "retry_after_ms": 1000}
