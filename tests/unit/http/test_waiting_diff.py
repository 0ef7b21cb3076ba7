"""Readers that wait for records: what each is told, and that those at one cursor share what they are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from shared.http.head import NO_FIELDS
from tests.harness.one_shard import OneShard
from topicsd.service.call import Call
from topicsd.service.diff import Diff
from topicsd.service.request_counts import RequestCounts
from topicsd.stream.feeds import Feeds


class Reader(Call, kw_only=True, eq=False):
    """A request for a diff, and what it was told."""

    status: int = 0
    parts: list[bytes | memoryview] = msgspec.field(default_factory=list)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        assert not self.status, "it is told twice"
        self.status, self.parts = status, list(parts)
        assert sum(map(len, parts)) == length

    @property
    def json(self) -> Any:
        assert self.status == 200
        return json.loads(b"".join(self.parts))


class Stage:
    def __init__(self) -> None:
        self.shard = OneShard()
        state = self.shard.shard.state
        self.feeds = Feeds(state, self.shard.loop)
        self.counts = RequestCounts()
        self._diff = Diff(state, self.shard.settings, self.shard.loop, self.counts, self.feeds)

    def ask(self, **body: Any) -> Reader:
        reader = Reader("t", "", NO_FIELDS, json.dumps({"wait_ms": 1000, **body}).encode(), 0.0)
        self._diff.start(reader)
        return reader


@pytest.fixture
def stage() -> Stage:
    one = Stage()
    one.shard.append("t", 1)
    return one


def test_those_who_wait_at_one_cursor_are_given_the_same_bytes(stage: Stage) -> None:
    readers = [stage.ask(from_seq=1) for _ in range(50)]
    stage.shard.settle()
    assert not any(reader.status for reader in readers)
    stage.shard.append("t", 2, 3)
    stage.shard.settle()
    for reader in readers:
        assert [record["data"] for record in reader.json["records"]] == [2, 3]
        assert reader.json["next_from_seq"] == reader.json["head_seq"] == 3
        assert reader.parts[1] is readers[0].parts[1]
    assert stage.counts.waited_reads.count == 50
    assert stage.shard.topic("t").waiters is None


def test_a_wait_that_ends_says_how_far_it_looked(stage: Stage) -> None:
    reader = stage.ask(from_seq=1, node="me")
    stage.shard.append("t", 2, node="me")
    stage.shard.settle()
    assert not reader.status
    stage.shard.pass_time(1000)
    told = reader.json
    assert (told["records"], told["next_from_seq"], told["caught_up"], told["lag"]) == ([], 2, True, 0)
    assert stage.shard.topic("t").waiters is None


def test_a_topic_that_was_made_anew_before_anybody_looked_is_told(stage: Stage) -> None:
    stage.shard.delete_topic("t")
    stage.shard.put("t")
    reader = stage.ask(from_seq=0)
    stage.shard.shard.state.watch.obey(coalesce_seconds=0.02, pauses=False)
    stage.shard.delete_topic("t")
    stage.shard.put("t")
    assert not reader.status
    stage.shard.pass_time(50)
    assert reader.json["tombstone"]["reason"] == "recreated"
    assert reader.json["epoch"] == stage.shard.topic("t").epoch


def test_a_topic_that_is_deleted_is_not_waited_for(stage: Stage) -> None:
    reader = stage.ask(from_seq=1)
    stage.shard.delete_topic("t")
    stage.shard.settle()
    assert reader.status == 404


def test_a_loss_ends_the_wait(stage: Stage) -> None:
    stage.shard.put("t", ttl_ms=10)
    stage.shard.append("t", 2)
    reader = stage.ask(from_seq=2, wait_ms=20_000)
    stage.shard.put("t", cap_records=1)
    stage.shard.append("t", 3, 4, 5)
    stage.shard.settle()
    told = reader.json
    assert [record["$seq"] for record in told["records"]] == [5]
    assert (told["tombstone"]["gap_from"], told["tombstone"]["gap_to"]) == (3, 4)


def test_nothing_is_followed_for_who_is_answered_or_gone(stage: Stage) -> None:
    answered, hurried = stage.ask(from_seq=0), stage.ask(from_seq=1)
    assert answered.status
    assert hurried.hurry is not None
    hurried.hurry()
    assert hurried.json["records"] == []
    assert stage.shard.topic("t").waiters is None
