"""Readers that wait for records: the answer of each, which readers at one cursor share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from shared.http.head import Fields
from tests.harness.stage.shard_stage import ShardStage
from topicsd.service.call import Call

FIELDS = Fields(content_type="application/json")


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


def ask(stage: ShardStage, **body: Any) -> Reader:
    reader = Reader("t", "", FIELDS, json.dumps({"wait_ms": 1000, **body}).encode(), 0.0)
    stage.workers[0].handlers.start("diff", reader)
    return reader


@pytest.fixture
def stage() -> ShardStage:
    stage = ShardStage(1)
    stage.shards[0].append("t", 1)
    return stage


def test_readers_that_wait_at_one_cursor_share_the_same_bytes(stage: ShardStage) -> None:
    readers = [ask(stage, from_seq=1) for _ in range(50)]
    stage.shards[0].settle()
    assert not any(reader.status for reader in readers)
    stage.shards[0].append("t", 2, 3)
    stage.shards[0].settle()
    for reader in readers:
        assert [record["data"] for record in reader.json["records"]] == [2, 3]
        assert reader.json["next_from_seq"] == reader.json["head_seq"] == 3
        assert reader.parts[1] is readers[0].parts[1]
    assert stage.workers[0].handlers.counts.waited_reads.count == 50
    assert stage.shards[0].topic("t").waiters is None


def test_a_wait_that_times_out_returns_the_position_reached(stage: ShardStage) -> None:
    reader = ask(stage, from_seq=1, node="me")
    stage.shards[0].append("t", 2, node="me")
    stage.shards[0].settle()
    assert not reader.status
    stage.shards[0].pass_time(1000)
    answer = reader.json
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["lag"]) == (
        [],
        2,
        True,
        0,
    )
    assert stage.shards[0].topic("t").waiters is None


def test_a_topic_recreated_during_the_wait_is_reported(stage: ShardStage) -> None:
    stage.shards[0].delete_topic("t")
    stage.shards[0].put("t")
    reader = ask(stage, from_seq=0)
    stage.shards[0].shard.state.wake_queue.apply_pressure(coalesce_seconds=0.02, is_paused=False)
    stage.shards[0].delete_topic("t")
    stage.shards[0].put("t")
    assert not reader.status
    stage.shards[0].pass_time(50)
    assert reader.json["tombstone"]["reason"] == "recreated"
    assert reader.json["epoch"] == stage.shards[0].topic("t").epoch


def test_deleting_the_topic_ends_the_wait(stage: ShardStage) -> None:
    reader = ask(stage, from_seq=1)
    stage.shards[0].delete_topic("t")
    stage.shards[0].settle()
    assert reader.status == 404


def test_a_loss_ends_the_wait(stage: ShardStage) -> None:
    stage.shards[0].put("t", ttl_ms=10)
    stage.shards[0].append("t", 2)
    reader = ask(stage, from_seq=2, wait_ms=20_000)
    stage.shards[0].put("t", cap_records=1)
    stage.shards[0].append("t", 3, 4, 5)
    stage.shards[0].settle()
    answer = reader.json
    assert [record["$seq"] for record in answer["records"]] == [5]
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (3, 4)


def test_an_answered_or_cancelled_reader_follows_nothing(stage: ShardStage) -> None:
    answered, cancelled = ask(stage, from_seq=0), ask(stage, from_seq=1)
    assert answered.status
    assert cancelled.cancel_wait is not None
    cancelled.cancel_wait()
    assert cancelled.json["records"] == []
    assert stage.shards[0].topic("t").waiters is None
