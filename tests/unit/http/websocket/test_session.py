"""The operations of a WebSocket session: their number, their order, and how they end."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contract.api_keys import ALL_SCOPES, ApiKey
from shared.contract.names import topic_id
from shared.http.answer import CLOSE
from shared.ipc.placement import shard_of
from tests.harness.stage.one_connection import AWAY, HOME, SHARDS
from tests.harness.stage.one_socket import OneSocket
from topicsd.http.http1.connection import AHEAD_MAX
from topicsd.http.websocket import frames as ws_frames

POSITION = [5, 1, 3]
STATE = {"head_seq": 5, "earliest_seq": 1, "epoch": 3}


def _kinds(messages: list[Any]) -> list[str]:
    return [one["op"] for one in messages]


def test_publishes_in_progress_are_bounded_like_appends() -> None:
    socket = OneSocket()
    for number in range(AHEAD_MAX):
        socket.publish(AWAY, request_id=number)
    assert socket.session.is_busy
    assert socket.request_count == AHEAD_MAX
    socket.answer(3, {"topic": AWAY})
    assert socket.settle() == [{"op": "ack", "request_id": 3, "topic": AWAY}]
    assert (socket.session.is_busy, socket.wire.resume_count) == (False, 1)


def test_another_operation_waits_for_the_publishes_before_it() -> None:
    socket = OneSocket()
    socket.publish(AWAY)
    socket.publish(HOME)
    socket.say("subscribe", topic=HOME)
    assert socket.session.is_busy
    assert _kinds(socket.settle()) == ["ack"]
    socket.answer(0, {"topic": AWAY})
    assert _kinds(socket.settle()) == ["ack", "subscribed", "record", "caught_up"]
    assert not socket.session.is_busy


def test_a_ping_is_answered_at_once() -> None:
    socket = OneSocket()
    socket.publish(AWAY)
    socket.say("ping", request_id=1)
    assert socket.take() == [{"op": "pong", "request_id": 1}]


def test_messages_after_a_subscribe_wait_until_all_topics_are_looked_up() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topics=[AWAY, HOME], tail=True, request_id="s")
    assert socket.settle() == []
    assert socket.session.is_busy
    socket.answer_heads(0, POSITION)
    (subscribed, *_) = socket.settle()
    assert subscribed["topics"] == {
        AWAY: {"from_seq": 5, **STATE},
        HOME: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1, "epoch": subscribed["topics"][HOME]["epoch"]},
    }
    assert not socket.session.is_busy


def test_a_subscribe_succeeds_for_all_topics_or_none() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topics=[HOME, AWAY], request_id="s")
    socket.lose_answer(0)
    (error,) = socket.settle()
    assert (error["op"], error["request_id"], error["code"]) == ("error", "s", "not_ready")
    assert (error["message"], error["detail"]["shard"]) == ("shard 1 does not answer", 1)
    socket.publish(HOME)
    assert _kinds(socket.settle()) == ["ack"]


def test_nothing_is_sent_after_the_client_disconnected() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topic=HOME)
    socket.settle()
    socket.publish(AWAY)
    socket.publish(HOME)
    socket.session.lost()
    socket.session.lost()
    socket.answer(0, {"topic": AWAY})
    assert socket.settle() == []
    assert socket.worker.one.state(HOME).head_seq == 2, "the publish in progress must complete"

    socket = OneSocket()
    socket.say("subscribe", topic=AWAY)
    socket.session.lost()
    socket.answer_heads(0, POSITION)
    assert socket.settle() == []


def test_a_subscribe_reports_its_first_topic_that_is_invalid_or_missing() -> None:
    socket = OneSocket()
    for names, code in (([HOME, AWAY, "a b"], "topic_not_found"), (["a b", HOME], "invalid_request")):
        socket.say("subscribe", topics=names)
        while socket.session.is_busy:
            *_, payload, _ = socket.worker.links.requests[-1]
            socket.answer_heads(-1, *[None] * len(msgspec.msgpack.decode(payload)))
        (error,) = socket.settle()
        assert error["code"] == code


def test_a_drain_answers_operations_in_progress_and_sends_the_cursors() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topic=HOME)
    socket.settle()
    socket.publish(AWAY)
    socket.session.drain()
    assert socket.session.is_busy
    assert socket.settle() == []
    socket.answer(0, {"topic": AWAY})
    ack, error = socket.settle()
    assert ack["op"] == "ack"
    epoch = socket.worker.one.state(HOME).epoch
    assert error["code"] == "shutting_down"
    assert error["cursors"] == {HOME: {"from_seq": 1, "epoch": epoch}}
    assert [code for code, _ in socket.wire.closed] == [ws_frames.GOING_AWAY]


def test_a_drain_ends_an_idle_socket_at_once() -> None:
    socket = OneSocket()
    socket.session.drain()
    assert _kinds(socket.take()) == ["error"]
    assert [code for code, _ in socket.wire.closed] == [ws_frames.GOING_AWAY]


def test_an_unexpected_error_ends_the_socket_after_its_answer() -> None:
    socket = OneSocket()
    socket.publish(AWAY, request_id=1)
    error = {"code": "internal", "message": "unexpected error, 1234 in the log"}
    socket.answer(0, {"error": error}, 500, CLOSE)
    assert socket.settle() == [{"op": "error", "request_id": 1, **error}]
    assert [code for code, _ in socket.wire.closed] == [ws_frames.INTERNAL_ERROR]


def test_publishes_count_as_requests_of_their_key() -> None:
    key = ApiKey("12345678", ALL_SCOPES, ())
    socket = OneSocket(key=key, max_inflight_per_key=2)
    for number in range(3):
        socket.publish(AWAY, request_id=number)
    (error,) = socket.take()
    assert (error["request_id"], error["code"], error["detail"]["limit"]) == (
        2,
        "throttled",
        "max_inflight_per_key",
    )
    socket.answer(0, {"topic": AWAY})
    socket.take()
    socket.publish(AWAY)
    assert socket.take() == []


def test_a_paused_socket_receives_no_records() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topic=HOME, tail=True)
    socket.settle()
    socket.wire.is_paused = True
    for _ in range(3):
        socket.publish(HOME)
        assert _kinds(socket.settle()) == ["ack"]
    socket.wire.is_paused = False
    socket.session.ready()
    record, caught_up = socket.settle()
    assert [one["$seq"] for one in record["records"]] == [2, 3, 4]
    assert caught_up["op"] == "caught_up"


def test_a_topic_unsubscribed_while_paused_is_not_delivered() -> None:
    socket = OneSocket()
    socket.publish(HOME)
    socket.settle()
    socket.say("subscribe", topic=HOME, tail=True)
    socket.settle()
    socket.wire.is_paused = True
    socket.publish(HOME)
    socket.settle()
    socket.say("unsubscribe", topic=HOME)
    socket.wire.is_paused = False
    socket.take()
    socket.session.ready()
    assert socket.settle() == []


def test_a_subscribe_to_many_topics_is_one_request_to_each_shard() -> None:
    key = ApiKey("12345678", ALL_SCOPES, ())
    socket = OneSocket(key=key, max_inflight_per_key=1)
    names = [name for name in (f"n{n}" for n in range(40)) if shard_of(topic_id(name), SHARDS) == 1]
    socket.say("subscribe", topics=names)
    assert socket.request_count == 1
    socket.answer_heads(0, *[POSITION] * len(names))
    assert _kinds(socket.take()) == ["subscribed"]
