"""Streams find shared topics, whichever process of the node they are opened at."""

from __future__ import annotations

from collections import deque

import pytest

from tests.harness.stage.broker_stage import BROKER, BrokerStage
from tests.harness.stage.topic_streams import TopicStreamClient, names_of, records_of
from topicsd.stream.shared.shared_search import POLL_SECONDS

POLL_MS = POLL_SECONDS * 1000 + 50

PROCESSES = pytest.mark.parametrize("process", [0, 1, BROKER], ids=["shard 0", "shard 1", "broker"])


def open_stream(stage: BrokerStage, process: int, **query: str) -> TopicStreamClient:
    client = TopicStreamClient(stage.workers[process], **query)
    stage.settle()
    return client


@PROCESSES
def test_shared_and_local_topics_are_found_when_they_are_created(process: int) -> None:
    stage = BrokerStage()
    stage.create_shared("a.old")
    stage.append_shared("a.old", b"1")
    client = open_stream(stage, process, topics="a.*,named")
    stage.pass_time(POLL_MS)
    assert records_of(client.read()) == [("a.old", 1)]
    for topic in ("a.new", "named", "b.new"):
        stage.create_shared(topic)
        stage.append_shared(topic, b"1")
    stage.owner("a.local").append("a.local", 1)
    stage.pass_time(2 * POLL_MS)
    assert sorted(records_of(client.read())) == [("a.local", 1), ("a.new", 1), ("named", 1)]


@PROCESSES
def test_a_shared_topic_that_is_created_again_is_followed_again(process: int) -> None:
    stage = BrokerStage()
    stage.create_shared("s")
    stage.append_shared("s", b"1")
    client = open_stream(stage, process, topic="s")
    stage.pass_time(POLL_MS)
    assert records_of(client.read()) == [("s", 1)]
    stage.delete_shared("s")
    stage.pass_time(POLL_MS)
    assert "topic-deleted" in names_of(client.read())
    stage.create_shared("s", 2 << 50)
    stage.append_shared("s", b"1")
    stage.pass_time(2 * POLL_MS)
    assert records_of(client.read()) == [("s", 1)]


def test_the_catalog_is_asked_only_while_a_stream_searches() -> None:
    stage = BrokerStage()
    clients = [open_stream(stage, 0, topics=topics) for topics in ("a*", "b*", "c,d")]
    stage.pass_time(POLL_MS)
    before = stage.catalog.calls.copy()
    stage.pass_time(4 * POLL_SECONDS * 1000)
    lists = stage.catalog.calls["list"] - before["list"]
    # Two prefixes in each round, however many streams search.
    assert 6 <= lists <= 8
    # The first name, and all others together.
    assert 6 <= stage.catalog.calls["topics"] - before["topics"] <= 8
    for client in clients:
        client.stream.on_lost()
    stage.pass_time(POLL_MS)
    before = stage.catalog.calls.copy()
    stage.pass_time(10_000)
    assert stage.catalog.calls["list"] == before["list"]


def test_a_search_survives_a_catalog_that_does_not_answer() -> None:
    stage = BrokerStage()
    client = open_stream(stage, 0, topics="a*")
    stage.pass_time(POLL_MS)
    stage.catalog.faults["list"] = deque(["lost request"] * 3)
    stage.create_shared("a1")
    stage.append_shared("a1", b"1")
    stage.pass_time(POLL_MS)
    assert records_of(client.read()) == []
    stage.pass_time(10 * POLL_MS)
    assert records_of(client.read()) == [("a1", 1)]
