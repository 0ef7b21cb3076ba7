"""WebSocket subscriptions to patterns, and to topics that do not exist yet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.contract.api_keys import READ, ApiKey
from tests.harness.stage.feed_shards import FeedShards
from tests.harness.stage.one_socket import RecordedWire, texts_in
from topicsd.http.websocket.session import WsSession


class Socket:
    def __init__(self, stage: FeedShards, key: ApiKey | None = None) -> None:
        self._stage = stage
        self._wire = RecordedWire()
        self.session = WsSession(self._wire, stage.workers[0], stage.feeds, key)

    def say(self, op: str, **fields: Any) -> list[Any]:
        self.session.receive(json.dumps({"op": op, **fields}).encode())
        return self.take()

    def take(self) -> list[Any]:
        self._stage.settle()
        written, self._wire.written = self._wire.written, b""
        return texts_in(written)


def records_of(messages: list[Any]) -> list[tuple[str, int]]:
    return [
        (message["topic"], record["$seq"])
        for message in messages
        if message["op"] == "record"
        for record in message["records"]
    ]


def both(stage: FeedShards, prefix: str) -> list[str]:
    """Return a name with this prefix for each shard."""
    return [
        next(name for at in range(100) if stage.number_of(name := f"{prefix}{at}") == number)
        for number in (0, 1)
    ]


@pytest.fixture(name="stage")
def _stage() -> FeedShards:
    return FeedShards()


def test_topics_that_do_not_exist_are_refused_unless_the_client_waits(stage: FeedShards) -> None:
    topics = both(stage, "t")
    socket = Socket(stage)
    (refusal,) = socket.say("subscribe", topics=topics)
    assert (refusal["op"], refusal["code"]) == ("error", "topic_not_found")
    (subscribed,) = socket.say("subscribe", topics=topics, missing="wait")
    assert (subscribed["topics"], subscribed["waiting"]) == ({}, topics)
    for topic in topics:
        stage.owner(topic).append(topic, 1, 2)
        messages = socket.take()
        assert messages[0] == {"op": "topic_found", "topic": topic}
        assert records_of(messages) == [(topic, 1), (topic, 2)]


def test_a_pattern_follows_topics_of_all_shards(stage: FeedShards) -> None:
    old, new, others = both(stage, "a.old"), both(stage, "a.new"), both(stage, "b")
    for topic in old:
        stage.owner(topic).append(topic, 1)
    socket = Socket(stage)
    subscribed, *messages = socket.say("subscribe", topics={"a.*": {"tail": True}, old[0]: {}})
    assert (sorted(subscribed["topics"]), subscribed["patterns"]) == (sorted(old), ["a.*"])
    assert records_of(messages) == [(old[0], 1)]
    for topic in (*old, *new, *others):
        stage.owner(topic).append(topic, 2)
    received = records_of(socket.take())
    assert sorted(received) == sorted([(topic, 2) for topic in old] + [(topic, 1) for topic in new])


def test_a_topic_is_followed_again_after_it_was_deleted(stage: FeedShards) -> None:
    for topic in both(stage, "a."):
        stage.owner(topic).append(topic, 1)
        socket = Socket(stage)
        socket.say("subscribe", topics=["a.*"])
        stage.owner(topic).delete_topic(topic)
        assert [message["op"] for message in socket.take()] == ["topic_deleted"]
        stage.owner(topic).append(topic, 1)
        assert records_of(socket.take()) == [(topic, 1)]
        socket.session.lost()


def test_unsubscribing_a_pattern_drops_its_topics(stage: FeedShards) -> None:
    first, second = both(stage, "a.")
    socket = Socket(stage)
    stage.owner(first).append(first, 1)
    socket.say("subscribe", topics=["a.*"])
    stage.owner(second).append(second, 1)
    socket.take()
    (unsubscribed,) = socket.say("unsubscribe", topics=["a.*"])
    assert sorted(unsubscribed["topics"]) == sorted([first, second])
    for topic in (first, second, "a.new"):
        stage.owner(topic).append(topic, 2)
    assert socket.take() == []


def test_a_pattern_finds_only_what_the_key_covers(stage: FeedShards) -> None:
    key = ApiKey("k", frozenset({READ}), ("a.x",))
    covered, outside = both(stage, "a.x"), both(stage, "a.y")
    socket = Socket(stage, key)
    socket.say("subscribe", topics=["a.*"])
    for topic in (*outside, *covered):
        stage.owner(topic).append(topic, 1)
    messages = socket.take()
    assert sorted(records_of(messages)) == [(topic, 1) for topic in sorted(covered)]
    assert not any(topic in str(messages) for topic in outside)
    (refusal,) = socket.say("subscribe", topics=["b*"])
    assert refusal["code"] == "forbidden"


def test_the_number_of_topics_is_bounded() -> None:
    stage = FeedShards(max_watch_topics=2)
    socket = Socket(stage)
    socket.say("subscribe", topics=["a*"])
    for number in range(4):
        stage.owner(f"a{number}").append(f"a{number}", 1)
    messages = socket.take()
    assert len(records_of(messages)) == 2
    assert [message["max"] for message in messages if message["op"] == "topic_limit"] == [2]
    (refusal,) = Socket(stage).say("subscribe", topics=["a*"])
    assert (refusal["op"], refusal["code"]) == ("error", "invalid_request")


def test_a_socket_that_is_lost_searches_no_more(stage: FeedShards) -> None:
    socket = Socket(stage)
    socket.say("subscribe", topics=["a.*", "later"], missing="wait")
    socket.session.lost()
    stage.settle()
    before = stage.link.call_count
    for topic in (*both(stage, "a."), "later"):
        stage.owner(topic).append(topic, 1)
    stage.settle()
    assert stage.link.call_count == before
