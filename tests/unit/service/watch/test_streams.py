"""Watch sessions across processes, in one worker of two: its requests, and how it uses the answers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from shared.contract.api_keys import parse_keys
from shared.contract.reader_options import ReaderOptions
from shared.http.head import NO_FIELDS, Fields
from shared.ipc.board import WorkerState
from shared.ipc.link import NEVER_SENT, SUPERVISOR
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from shared.ipc.watch_request import WatchRequest, encode_watch_request
from tests.harness.stage.one_connection import AWAY, HOME, Capped, append, request
from topicsd.service.call import Call
from topicsd.stream.sessions import SESSION_TTL_SECONDS
from topicsd.stream.stream import noop

NO_ANSWERS = (None, NEVER_SENT)
_pack = msgspec.msgpack.encode


class SingleAnswer:
    """Receives the answer of a link request, once."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bytes]] = []

    def __call__(self, answer: bytes) -> None:
        self.answers.append(decode_answer(answer))
        assert len(self.answers) == 1

    @property
    def status(self) -> int:
        return self.answers[0][0]

    @property
    def json(self) -> Any:
        return json.loads(self.answers[0][2])


class FakeClientStream:
    """A client stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.is_paused = False
        self.on_ready = self.on_lost = noop
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True


class StreamCall(Call, kw_only=True, eq=False):
    """A request for a stream, and its outcome."""

    status: int = 0
    stream: FakeClientStream | None = None

    def send_parts(self, parts: Any, length: int, status: int = 200, fields: bytes = b"") -> None:
        assert not self.status
        self.status = status

    def open_stream(self, fields: bytes) -> FakeClientStream:
        assert not self.status
        self.status, self.stream = 200, FakeClientStream()
        return self.stream


def stream_call(wid: str, fields: Fields = NO_FIELDS) -> StreamCall:
    return StreamCall(wid, "", fields, b"", 0.0)


@pytest.fixture
def worker() -> Capped:
    one = Capped(max_topics=0)
    one.receive(append(HOME))
    assert one.responses()[0][0] == 201
    return one


def encoded_request(*names: str, **changed: Any) -> bytes:
    count = len(names)
    options = ReaderOptions(bytes_max=262_144, with_tags=False)
    plain = WatchRequest(list(names), [0] * count, [None] * count, "", options, 15_000, is_lenient=False)
    return encode_watch_request(msgspec.structs.replace(plain, **changed))


def make(worker: Capped, payload: bytes) -> SingleAnswer:
    answer = SingleAnswer()
    worker.dispatch.streams.creator.create_counted(payload, answer)  # type: ignore[arg-type]
    worker.settle()
    return answer


def session_of(worker: Capped) -> str:
    return str(make(worker, encoded_request(HOME)).json["wid"])


# -- a new session -------------------------------------------------------------------------------------------


def test_a_checked_request_goes_to_the_supervisor_and_its_answer_to_the_client(worker: Capped) -> None:
    body = json.dumps({"topics": {HOME: {}, AWAY: {"tail": True}}}).encode()
    worker.receive(request("POST", "/v0/watch?lenient=1", body))
    ((peer, kind, payload, on_answer),) = worker.links.requests
    assert (peer, kind) == (SUPERVISOR, LinkKind.CREATE_SESSION)
    assert payload == encoded_request(HOME, AWAY, positions=[0, None], is_lenient=True)
    on_answer(encode_answer(429, b"retry-after: 1\r\n", [b'{"as":"it is"}']))
    assert worker.responses() == [(429, {"as": "it is"})]


@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_a_session_request_without_a_supervisor_is_503(worker: Capped, answer: bytes | None) -> None:
    worker.receive(request("POST", "/v0/watch", json.dumps({"topics": {HOME: {}}}).encode()))
    worker.links.requests[0][3](answer)
    ((status, body),) = worker.responses()
    assert (status, body["error"]["code"]) == (503, "not_ready")


def test_a_refused_request_does_not_reach_the_supervisor(worker: Capped) -> None:
    worker.receive(request("POST", "/v0/watch", b'{"topics":{}}'))
    assert worker.responses()[0][0] == 400
    assert worker.links.requests == []


def test_a_created_or_refused_session_ends_its_reservation(worker: Capped) -> None:
    answer = make(worker, encoded_request(HOME))
    assert answer.status == 200
    assert answer.json["topics"][HOME]["head_seq"] == 1
    assert (worker.own_slot.watch_sessions, worker.own_slot.watch_session_grants_total) == (1, 1)
    worker.one.shard.log.refuse_and_flush()
    assert make(worker, encoded_request(HOME)).status == 503
    assert (worker.own_slot.watch_sessions, worker.own_slot.watch_session_grants_total) == (1, 2)


def test_topics_of_another_shard_are_looked_up_in_one_request(worker: Capped) -> None:
    others = [AWAY]
    answer = make(worker, encoded_request(HOME, *others))
    ((peer, kind, payload, on_heads),) = worker.links.requests
    assert (peer, kind, payload) == ("1", LinkKind.TOPIC_HEADS, _pack([(name, None) for name in others]))
    assert answer.answers == []
    on_heads(_pack([[9, 4, 77]]))
    worker.settle()
    expected = {"from_seq": 0, "head_seq": 9, "earliest_seq": 4, "epoch": 77}
    assert answer.json["topics"][AWAY] == expected
    assert list(answer.json["topics"]) == [HOME, AWAY]


def test_a_topic_that_another_shard_does_not_have_is_404(worker: Capped) -> None:
    answer = make(worker, encoded_request(HOME, AWAY))
    worker.links.requests[0][3](_pack([None]))
    assert (answer.status, answer.json["error"]["code"]) == (404, "topic_not_found")
    lenient = make(worker, encoded_request(HOME, AWAY, is_lenient=True))
    worker.links.requests[1][3](_pack([None]))
    worker.settle()
    assert list(lenient.json["topics"]) == [HOME]


@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_a_shard_that_does_not_answer_is_named(worker: Capped, answer: bytes | None) -> None:
    session_answer = make(worker, encoded_request(HOME, AWAY))
    worker.links.requests[0][3](answer)
    assert (session_answer.status, session_answer.json["error"]["detail"]["shard"]) == (503, 1)
    worker.other_slot.state = WorkerState.REPLAYING
    session_answer = make(worker, encoded_request(HOME, AWAY))
    assert (session_answer.status, session_answer.json["error"]["detail"]["shard"]) == (503, 1)
    assert len(worker.links.requests) == 1
    assert (worker.own_slot.watch_sessions, worker.own_slot.watch_session_grants_total) == (0, 2)


# -- a stream ------------------------------------------------------------------------------------------------


def request_permit(worker: Capped, call: StreamCall) -> Any:
    """Request the stream; return the callback for the answer of the supervisor."""
    worker.links.requests.clear()
    worker.dispatch.streams.opener.open(call, None)
    ((peer, kind, payload, on_permit),) = worker.links.requests
    assert (peer, kind, payload) == (SUPERVISOR, LinkKind.ENTER_STREAM, _pack([worker.own_slot.pid, ""]))
    return on_permit


def returned_permits(worker: Capped) -> int:
    return sum(kind is LinkKind.LEAVE_STREAM for _, kind, _, _ in worker.links.requests)


def test_a_stream_is_counted_before_it_opens_and_its_permit_returned_when_it_ends(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    on_permit = request_permit(worker, call)
    assert call.status == 0
    on_permit(_pack(""))
    assert call.stream is not None
    assert worker.own_slot.sse_connections == 1
    assert returned_permits(worker) == 0
    call.stream.on_lost()
    assert (returned_permits(worker), worker.own_slot.sse_connections) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "status"), [(_pack("max_sse_connections"), 429), (None, 503), (NEVER_SENT, 503)]
)
def test_a_stream_without_a_permit_is_refused(worker: Capped, answer: bytes | None, status: int) -> None:
    call = stream_call(session_of(worker))
    request_permit(worker, call)(answer)
    assert (call.status, returned_permits(worker), worker.own_slot.sse_connections) == (status, 0, 0)


def test_a_client_that_disconnects_meanwhile_takes_no_permit(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    on_permit = request_permit(worker, call)
    assert call.cancel_wait is not None
    call.cancel_wait()
    assert (call.status, returned_permits(worker)) == (503, 0)
    on_permit(_pack(""))
    assert (returned_permits(worker), worker.own_slot.sse_connections, call.stream) == (1, 0, None)


def test_a_session_that_expires_meanwhile_is_410(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    on_permit = request_permit(worker, call)
    worker.one.pass_time(SESSION_TTL_SECONDS * 1000)
    on_permit(_pack(""))
    assert (call.status, returned_permits(worker)) == (410, 1)


def test_a_key_that_is_revoked_meanwhile_opens_no_stream(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    on_permit = request_permit(worker, call)
    worker.dispatch.change_keys(parse_keys("another-key-of-16-chars"))
    on_permit(_pack(""))
    assert (call.status, call.stream, returned_permits(worker)) == (401, None, 1)


def test_a_drain_that_begins_meanwhile_refuses_the_stream(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    on_permit = request_permit(worker, call)
    worker.dispatch.streams.drain()
    on_permit(_pack(""))
    assert (call.status, call.stream, returned_permits(worker)) == (503, None, 1)


def test_a_wrong_last_event_id_returns_the_permit_unless_another_stream_has_it(worker: Capped) -> None:
    wid = session_of(worker)
    wrong = Fields(last_event_id="wrong")
    call = stream_call(wid, wrong)
    request_permit(worker, call)(_pack(""))
    assert (call.status, returned_permits(worker)) == (400, 1)
    first, second = stream_call(wid), stream_call(wid, wrong)
    request_permit(worker, first)(_pack(""))
    worker.dispatch.streams.opener.open(second, None)
    assert first.stream is not None
    assert (second.status, first.stream.is_closed, returned_permits(worker)) == (400, False, 0)


def test_two_concurrent_streams_of_a_session_share_one_permit(worker: Capped) -> None:
    wid = session_of(worker)
    first, second = stream_call(wid), stream_call(wid)
    callbacks = [request_permit(worker, first), request_permit(worker, second)]
    for on_permit in callbacks:
        on_permit(_pack(""))
    assert first.stream is not None
    assert second.stream is not None
    assert first.stream.is_closed
    assert not second.stream.is_closed
    assert (returned_permits(worker), worker.own_slot.sse_connections) == (1, 1)
    third = stream_call(wid)
    worker.dispatch.streams.opener.open(third, None)
    assert third.stream is not None
    assert (second.stream.is_closed, returned_permits(worker)) == (True, 1)
    third.stream.on_lost()
    assert (returned_permits(worker), worker.own_slot.sse_connections) == (2, 0)


def test_a_drain_ends_streams_and_refuses_new_ones(worker: Capped) -> None:
    wid = session_of(worker)
    first, second = stream_call(wid), stream_call(wid)
    request_permit(worker, first)(_pack(""))
    worker.dispatch.streams.drain()
    assert first.stream is not None
    assert first.stream.is_closed
    assert b'"shutting_down"' in first.stream.written
    worker.dispatch.streams.opener.open(second, None)
    assert second.status == 503


class FailingOpenCall(StreamCall, kw_only=True, eq=False):
    """A call whose connection cannot become a stream."""

    def open_stream(self, fields: bytes) -> FakeClientStream:
        raise RuntimeError("the transport is closed")


class FailingWriteStream(FakeClientStream):
    def write(self, data: bytes) -> None:
        if self.written:
            raise RuntimeError("the transport is closed")
        super().write(data)


class FailingWriteCall(StreamCall, kw_only=True, eq=False):
    """A call whose stream fails at the second write."""

    def open_stream(self, fields: bytes) -> FakeClientStream:
        self.status, self.stream = 200, FailingWriteStream()
        return self.stream


@pytest.mark.parametrize(("kind", "status"), [(FailingOpenCall, 500), (FailingWriteCall, 200)])
def test_a_stream_that_fails_to_open_returns_its_permit(
    worker: Capped, kind: type[StreamCall], status: int
) -> None:
    wid = session_of(worker)
    failed, after = kind(wid, "", NO_FIELDS, b"", 0.0), stream_call(wid)
    request_permit(worker, failed)(_pack(""))
    assert (failed.status, returned_permits(worker), worker.own_slot.sse_connections) == (status, 1, 0)
    assert failed.stream is None or failed.stream.is_closed
    request_permit(worker, after)(_pack(""))
    assert after.stream is not None
    assert (returned_permits(worker), worker.own_slot.sse_connections) == (0, 1)
    worker.settle()
    assert b"event: caught-up" in after.stream.written
