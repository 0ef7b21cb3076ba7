"""Watch sessions between the processes, as one worker of two sees it: what it asks, and what it does then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from shared.contract.watch_request import WatchRequest, encode_watch_request
from shared.http.head import NO_FIELDS, Fields
from shared.ipc.board import WorkerState
from shared.ipc.link import FRONT, NEVER_SENT, LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from tests.harness.one_lane import AWAY, HOME, append, request
from tests.unit.service.shards.test_caps import Capped
from topicsd.service.call import Call
from topicsd.stream.sessions.sessions import SESSION_TTL_SECONDS
from topicsd.stream.stream import do_nothing

NOT_REACHED = (None, NEVER_SENT)
_pack = msgspec.msgpack.encode


class AnsweredOnce:
    """What takes the answer to a question over the link."""

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


class Way:
    """A stream that nobody reads."""

    def __init__(self) -> None:
        self.is_clogged = False
        self.on_ready = self.on_lost = do_nothing
        self.said = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.said += data

    def close(self) -> None:
        self.is_closed = True


class StreamCall(Call, kw_only=True, eq=False):
    """A request for a stream, and what became of it."""

    status: int = 0
    way: Way | None = None

    def send_parts(self, parts: Any, length: int, status: int = 200, fields: bytes = b"") -> None:
        assert not self.status
        self.status = status

    def open_stream(self, fields: bytes) -> Way:
        assert not self.status
        self.status, self.way = 200, Way()
        return self.way


def stream_call(wid: str, fields: Fields = NO_FIELDS) -> StreamCall:
    return StreamCall(wid, "", fields, b"", 0.0)


@pytest.fixture
def worker() -> Iterator[Capped]:
    one = Capped(max_topics=0)
    one.receive(append(HOME))
    assert one.told()[0][0] == 201
    yield one
    one.small.__exit__(None, None, None)


def wanted(*names: str, **changed: Any) -> bytes:
    count = len(names)
    plain = WatchRequest(
        list(names), [0] * count, [None] * count, "", [], 256, 4096, 15_000, False, True, True, False, False
    )
    return encode_watch_request(msgspec.structs.replace(plain, **changed))


def make(worker: Capped, payload: bytes) -> AnsweredOnce:
    told = AnsweredOnce()
    worker.dispatch.watching.creator.create_counted(payload, told)  # type: ignore[arg-type]
    worker.settle()
    return told


def session_of(worker: Capped) -> str:
    return str(make(worker, wanted(HOME)).json["wid"])


# -- a new session -------------------------------------------------------------------------------------------


def test_what_was_checked_goes_to_the_front_process_and_its_answer_back(worker: Capped) -> None:
    body = json.dumps({"topics": {HOME: {}, AWAY: {"tail": True}}}).encode()
    worker.receive(request("POST", "/v0/watch?lenient=1", body))
    ((peer, kind, payload, told),) = worker.links.asked
    assert (peer, kind) == (FRONT, LinkKind.MAKE_WATCH)
    assert payload == wanted(HOME, AWAY, from_seqs=[0, None], bytes_max=262_144, is_lenient=True)
    told(encode_answer(429, b"retry-after: 1\r\n", [b'{"as":"it is"}']))
    assert worker.told() == [(429, {"as": "it is"})]


@pytest.mark.parametrize("answer", NOT_REACHED)
def test_without_the_front_process_it_is_503(worker: Capped, answer: bytes | None) -> None:
    worker.receive(request("POST", "/v0/watch", json.dumps({"topics": {HOME: {}}}).encode()))
    worker.links.asked[0][3](answer)
    ((status, told),) = worker.told()
    assert (status, told["error"]["code"]) == (503, "not_ready")


def test_what_is_refused_is_not_asked_for(worker: Capped) -> None:
    worker.receive(request("POST", "/v0/watch", b'{"topics":{}}'))
    assert worker.told()[0][0] == 400
    assert worker.links.asked == []


def test_a_session_that_is_made_or_refused_is_no_longer_reserved(worker: Capped) -> None:
    told = make(worker, wanted(HOME))
    assert told.status == 200
    assert told.json["topics"][HOME]["head_seq"] == 1
    assert (worker.here.watch_sessions, worker.here.watch_session_grants_total) == (1, 1)
    worker.one.shard.log.shut()
    assert make(worker, wanted(HOME)).status == 503
    assert (worker.here.watch_sessions, worker.here.watch_session_grants_total) == (1, 2)


def test_topics_of_another_shard_are_one_question(worker: Capped) -> None:
    others = [AWAY]
    told = make(worker, wanted(HOME, *others))
    ((peer, kind, payload, answered),) = worker.links.asked
    assert (peer, kind, payload) == ("1", LinkKind.TOPIC_HEADS, _pack([(name, None) for name in others]))
    assert told.answers == []
    answered(_pack([[9, 4, 77]]))
    worker.settle()
    expected = {"from_seq": 0, "head_seq": 9, "earliest_seq": 4, "epoch": 77}
    assert told.json["topics"][AWAY] == expected
    assert list(told.json["topics"]) == [HOME, AWAY]


def test_a_topic_that_another_shard_does_not_have_is_404(worker: Capped) -> None:
    told = make(worker, wanted(HOME, AWAY))
    worker.links.asked[0][3](_pack([None]))
    assert (told.status, told.json["error"]["code"]) == (404, "topic_not_found")
    lenient = make(worker, wanted(HOME, AWAY, is_lenient=True))
    worker.links.asked[1][3](_pack([None]))
    worker.settle()
    assert list(lenient.json["topics"]) == [HOME]


@pytest.mark.parametrize("answer", NOT_REACHED)
def test_a_shard_that_does_not_answer_is_named(worker: Capped, answer: bytes | None) -> None:
    told = make(worker, wanted(HOME, AWAY))
    worker.links.asked[0][3](answer)
    assert (told.status, told.json["error"]["detail"]["shard"]) == (503, 1)
    worker.there.state = WorkerState.REPLAYING
    told = make(worker, wanted(HOME, AWAY))
    assert (told.status, told.json["error"]["detail"]["shard"]) == (503, 1)
    assert len(worker.links.asked) == 1
    assert (worker.here.watch_sessions, worker.here.watch_session_grants_total) == (0, 2)


# -- a stream ------------------------------------------------------------------------------------------------


def entering(worker: Capped, call: StreamCall) -> Any:
    """Ask for the stream; what takes the answer of the front process."""
    worker.links.asked.clear()
    worker.dispatch.watching.opener.open(call, None)
    ((peer, kind, payload, told),) = worker.links.asked
    assert (peer, kind, payload) == (FRONT, LinkKind.ENTER_STREAM, _pack([worker.here.pid, ""]))
    return told


def left(worker: Capped) -> int:
    return sum(kind is LinkKind.LEAVE_STREAM for _, kind, _, _ in worker.links.asked)


def test_a_stream_is_counted_before_it_begins_and_given_back_when_it_ends(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    told = entering(worker, call)
    assert call.status == 0
    told(_pack(""))
    assert call.way is not None
    assert worker.here.sse_connections == 1
    assert left(worker) == 0
    call.way.on_lost()
    assert (left(worker), worker.here.sse_connections) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "status"), [(_pack("max_sse_connections"), 429), (None, 503), (NEVER_SENT, 503)]
)
def test_a_stream_that_may_not_be_is_refused(worker: Capped, answer: bytes | None, status: int) -> None:
    call = stream_call(session_of(worker))
    entering(worker, call)(answer)
    assert (call.status, left(worker), worker.here.sse_connections) == (status, 0, 0)


def test_who_leaves_meanwhile_takes_no_place(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    told = entering(worker, call)
    assert call.hurry is not None
    call.hurry()
    assert (call.status, left(worker)) == (503, 0)
    told(_pack(""))
    assert (left(worker), worker.here.sse_connections, call.way) == (1, 0, None)


def test_a_session_that_ends_meanwhile_is_410(worker: Capped) -> None:
    call = stream_call(session_of(worker))
    told = entering(worker, call)
    worker.one.pass_time(SESSION_TTL_SECONDS * 1000)
    told(_pack(""))
    assert (call.status, left(worker)) == (410, 1)


def test_two_that_come_at_once_have_one_place(worker: Capped) -> None:
    wid = session_of(worker)
    first, second = stream_call(wid), stream_call(wid)
    answers = [entering(worker, first), entering(worker, second)]
    for told in answers:
        told(_pack(""))
    assert first.way is not None
    assert second.way is not None
    assert first.way.is_closed
    assert not second.way.is_closed
    assert (left(worker), worker.here.sse_connections) == (1, 1)
    third = stream_call(wid)
    worker.dispatch.watching.opener.open(third, None)
    assert third.way is not None
    assert (second.way.is_closed, left(worker)) == (True, 1)
    third.way.on_lost()
    assert (left(worker), worker.here.sse_connections) == (2, 0)


def test_when_the_process_ends_streams_end_and_none_begins(worker: Capped) -> None:
    wid = session_of(worker)
    first, second = stream_call(wid), stream_call(wid)
    entering(worker, first)(_pack(""))
    worker.dispatch.watching.drain()
    assert first.way is not None
    assert first.way.is_closed
    assert b'"shutting_down"' in first.way.said
    worker.dispatch.watching.opener.open(second, None)
    assert second.status == 503


class NoWayCall(StreamCall, kw_only=True, eq=False):
    """Its connection cannot be made a stream."""

    def open_stream(self, fields: bytes) -> Way:
        raise RuntimeError("the transport is closed")


class DeafWay(Way):
    def write(self, data: bytes) -> None:
        if self.said:
            raise RuntimeError("the transport is closed")
        super().write(data)


class DeafCall(StreamCall, kw_only=True, eq=False):
    """What is written behind the beginning fails."""

    def open_stream(self, fields: bytes) -> Way:
        self.status, self.way = 200, DeafWay()
        return self.way


@pytest.mark.parametrize(("kind", "status"), [(NoWayCall, 500), (DeafCall, 200)])
def test_a_stream_that_cannot_begin_is_over(worker: Capped, kind: type[StreamCall], status: int) -> None:
    wid = session_of(worker)
    failed, after = kind(wid, "", NO_FIELDS, b"", 0.0), stream_call(wid)
    entering(worker, failed)(_pack(""))
    assert (failed.status, left(worker), worker.here.sse_connections) == (status, 1, 0)
    assert failed.way is None or failed.way.is_closed
    entering(worker, after)(_pack(""))
    assert after.way is not None
    assert (left(worker), worker.here.sse_connections) == (0, 1)
    worker.settle()
    assert b"event: caught-up" in after.way.said
