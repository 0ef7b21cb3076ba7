"""Queues that go by tags: one job of a tag in flight, in the order of seqs, and the others flow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.job import Counts


def queue(*tags: str | None, **config: Any) -> OneShard:
    stage = OneShard(segment_max_events=4)
    stage.put("q", type="queue", order_by="tag", **config)
    if tags:
        stage.append("q", *[record(tag=tag) for tag in tags])
    return stage


def counts(stage: OneShard) -> Counts:
    queue = stage.state("q").queue
    assert queue is not None
    live = stage.topic("q").live_count
    assert queue.ready + queue.in_flight + queue.delayed + queue.parked + queue.blocked == live
    return queue


def blocked_by(stage: OneShard, seq: int) -> object:
    answer = explain(stage.shard.state, "q", seq)
    assert isinstance(answer, dict)
    return answer.get("blocked_by")


def test_one_of_a_tag_at_a_time_and_those_without_as_they_come() -> None:
    stage = queue("a", "a", "b", None, "a", None)
    assert counts(stage) == Counts(4, 0, 0, 0, 0, 2)
    assert stage.claimed("q", "w", 9) == [1, 3, 4, 6]
    assert counts(stage) == Counts(0, 4, 0, 0, 0, 2)
    assert [blocked_by(stage, seq) for seq in (2, 5, 1)] == [1, 1, None]
    stage.ack("q", "w", 1, 4)
    assert stage.claimed("q", "w", 9) == [2]
    stage.append("q", record(tag="b"))
    assert stage.claimed("q", "w", 9) == []
    stage.ack("q", "w", 3)
    assert stage.claimed("q", "w", 9) == [7]


def test_what_failed_comes_before_what_stands_behind_it_and_while_it_is_delayed_its_tag_waits() -> None:
    stage = queue("a", "a", "b")
    stage.claim("q", "w", 1, 1000)
    stage.nack("q", "w", 1, ms=500)
    assert counts(stage) == Counts(1, 0, 1, 0, 0, 1)
    assert stage.claimed("q", "w", 9) == [3]
    stage.pass_time(500)
    assert stage.claimed("q", "w", 9, 1000) == [1]
    stage.pass_time(1000)
    assert stage.claimed("q", "v", 9) == [1]
    assert blocked_by(stage, 2) == 1


def test_a_delayed_job_holds_up_those_of_its_tag_behind_it() -> None:
    stage = queue()
    stage.append("q", record(tag="a"), delay_ms=100)
    stage.append("q", record(tag="a"), record(tag="b"))
    stage.append("q", record(tag="b"), delay_ms=50)
    assert counts(stage) == Counts(1, 0, 2, 0, 0, 1)
    stage.pass_time(50)
    assert counts(stage) == Counts(1, 0, 1, 0, 0, 2)
    assert stage.claimed("q", "w", 9) == [3]
    stage.pass_time(50)
    assert stage.claimed("q", "w", 9) == [1]
    assert [blocked_by(stage, seq) for seq in (2, 4)] == [1, 3]


@pytest.mark.parametrize("deleted", [{"seqs": [1]}, {"before_seq": 2}])
def test_a_deleted_job_blocks_no_other_job(deleted: dict[str, Any]) -> None:
    stage = queue("a", "a", "a")
    stage.claim("q", "w")
    stage.delete("q", **deleted)
    assert stage.claimed("q", "w", 9) == [2]
    stage.delete("q", seqs=[3])
    assert counts(stage) == Counts(0, 1, 0, 0, 0, 0)
    stage.put("q", cap_records=1)
    stage.append("q", *[record(tag="a")] * 3)
    assert counts(stage) == Counts(1, 0, 0, 0, 0, 0)
    assert stage.claimed("q", "w", 9) == [6]


def test_a_lane_continues_without_a_parked_job_and_takes_it_back_in_its_position() -> None:
    stage = queue("a", "a", "a", max_deliveries=1)
    stage.claim("q", "w")
    stage.nack("q", "w", 1)
    assert stage.claimed("q", "w", 9) == [2]
    assert counts(stage) == Counts(0, 1, 0, 1, 0, 1)
    stage.put("q", max_deliveries=5)
    assert counts(stage) == Counts(0, 1, 0, 0, 0, 2)
    assert [blocked_by(stage, seq) for seq in (1, 3)] == [2, 1]
    stage.ack("q", "w", 2)
    assert stage.claimed("q", "w", 9) == [1]
    stage.ack("q", "w", 1)
    assert stage.claimed("q", "w", 9) == [3]


def test_who_comes_late_ends_a_job_that_stands_behind_another_by_now_but_does_not_keep_it() -> None:
    stage = queue("a", "a", max_deliveries=1)
    stage.claim("q", "w")
    stage.nack("q", "w", 1)
    assert stage.claimed("q", "w", 9, 1000) == [2]
    stage.put("q", max_deliveries=5)
    stage.pass_time(1000)
    assert counts(stage) == Counts(1, 0, 0, 0, 0, 1)
    assert stage.extend("q", "w", 2, ms=1000).skipped == [2]
    assert stage.ack("q", "w", 2).done == [2]
    assert stage.claimed("q", "w", 9) == [1]


@pytest.mark.parametrize("end", [OneShard.restart, OneShard.kill, OneShard.cut_power])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_order_holds_over_a_restart(end: Any, checkpoints: bool) -> None:
    stage = queue(*["a", None, "a", "b", "b", "a"] * 3, leases_durable=True, durable=True)
    assert stage.claimed("q", "w", 2) == [1, 2]
    if checkpoints:
        stage.checkpoint()
    assert stage.claimed("q", "w", 2) == [4, 8]
    stage.ack("q", "w", 4)
    before = counts(stage)
    end(stage)
    assert counts(stage) == before
    assert stage.claimed("q", "v", 9) == [5, 14]
    assert stage.ack("q", "w", 1).done == [1]
    assert stage.claimed("q", "v", 9) == [3]
    stage.ack("q", "v", 3, 5)
    got = []
    while claimed := stage.claimed("q", "v", 9):
        got += claimed
        stage.ack("q", "v", *claimed)
    assert got == [6, 10, 7, 11, 9, 16, 12, 17, 13, 15, 18]


def test_the_order_of_a_queue_never_changes() -> None:
    stage = queue("a")
    assert stage.send_put("q", order_by=None).code == "topic_exists_incompatible"
    assert stage.put("q", order_by="tag", lease_ms=500).config.lease_ms == 500
    stage.put("p", type="queue")
    assert stage.send_put("p", order_by="tag").code == "topic_exists_incompatible"


def test_what_comes_and_goes_is_not_remembered() -> None:
    stage = queue()
    stage.append("q", record(tag="old"), None)
    for _ in range(300):
        answer = stage.append("q", record(tag="a"), record(tag="old"), 3)
        stage.delete("q", seqs=[answer.first_seq, answer.first_seq + 1, answer.last_seq])
    state = stage.topic("q").queue
    assert state is not None
    assert state.order is not None
    lane = state.order.lane_of(1)
    assert lane is not None
    assert len(lane.seqs) < 150
    assert len(state._ready._fresh) < 150
    assert len(state.order._lanes) == 1
