"""Readers that wait for records: the answer of each, which readers at one cursor share."""

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
    """A request for a diff, and its answer."""

    status: int = 0
    parts: list[bytes | memoryview] = msgspec.field(default_factory=list)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        assert not self.status, "answered twice"
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
        self.counts = RequestCounts(self.shard.clock)
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


def test_readers_that_wait_at_one_cursor_share_the_same_bytes(stage: Stage) -> None:
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


def test_a_wait_that_times_out_returns_the_position_reached(stage: Stage) -> None:
    reader = stage.ask(from_seq=1, node="me")
    stage.shard.append("t", 2, node="me")
    stage.shard.settle()
    assert not reader.status
    stage.shard.pass_time(1000)
    answer = reader.json
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["lag"]) == (
        [],
        2,
        True,
        0,
    )
    assert stage.shard.topic("t").waiters is None


def test_a_topic_recreated_during_the_wait_is_reported(stage: Stage) -> None:
    stage.shard.delete_topic("t")
    stage.shard.put("t")
    reader = stage.ask(from_seq=0)
    stage.shard.shard.state.wake_queue.apply_pressure(coalesce_seconds=0.02, is_paused=False)
    stage.shard.delete_topic("t")
    stage.shard.put("t")
    assert not reader.status
    stage.shard.pass_time(50)
    assert reader.json["tombstone"]["reason"] == "recreated"
    assert reader.json["epoch"] == stage.shard.topic("t").epoch


def test_deleting_the_topic_ends_the_wait(stage: Stage) -> None:
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
    answer = reader.json
    assert [record["$seq"] for record in answer["records"]] == [5]
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (3, 4)


def test_an_answered_or_cancelled_reader_follows_nothing(stage: Stage) -> None:
    answered, cancelled = stage.ask(from_seq=0), stage.ask(from_seq=1)
    assert answered.status
    assert cancelled.cancel_wait is not None
    cancelled.cancel_wait()
    assert cancelled.json["records"] == []
    assert stage.shard.topic("t").waiters is None
