"""Jobs that are written now and ready later, and queues that are paused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.queue.delay import DELAY_MS_MAX, NewJobs, new_jobs_frame, new_jobs_frame_bytes
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.job import Counts
from topicsd.engine.queue.lease_queue import COLLECTED_MAX
from topicsd.engine.topic_admin import SEEN_MAX


def queue(**config: Any) -> OneShard:
    stage = OneShard(segment_max_events=4)
    stage.put("q", type="queue", **config)
    return stage


def counts(stage: OneShard) -> Counts:
    queue = stage.state("q").queue
    assert queue is not None
    return queue


def job_json(stage: OneShard, seq: int) -> dict[str, object]:
    answer = explain(stage.shard.state, "q", seq)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("end", [OneShard.restart, OneShard.kill, OneShard.cut_power])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("order_by", [None, "tag"])
def test_a_delayed_job_is_ready_when_it_is_due_also_after_a_restart(
    end: Any, checkpoints: bool, order_by: str | None
) -> None:
    stage = queue(durable=True, order_by=order_by)
    stage.append("q", 1, 2, delay_ms=5000)
    stage.append("q", 3)
    stage.append("q", 4, not_before=stage.clock.now_ms() + 9000)
    if checkpoints:
        stage.checkpoint()
    end(stage)
    assert counts(stage) == Counts(1, 0, 3, 0, 0)
    assert job_json(stage, 2)["state"] == "delayed"
    assert stage.claimed("q", "a", 9) == [3]
    stage.pass_time(5000)
    assert counts(stage) == Counts(2, 1, 1, 0, 0)
    assert stage.claimed("q", "a", 9) == [1, 2]
    stage.pass_time(4000)
    assert stage.claimed("q", "a", 9) == [4]


def test_a_job_that_is_due_is_as_old_as_that() -> None:
    stage = queue()
    stage.append("q", 1, delay_ms=60_000)
    stage.pass_time(60_000)
    assert stage.state("q").oldest_ready_ms == 0
    stage.pass_time(500)
    assert stage.state("q").oldest_ready_ms == 500


def test_a_delayed_job_is_cancelled_by_its_seq_or_its_tag() -> None:
    stage = queue()
    for tag in ("x", "x", "y", None):
        stage.append("q", record(tag=tag), delay_ms=1000)
    assert stage.delete("q", seqs=[4, 17, 0, 4]).deleted == 1
    assert stage.delete("q", tag="x").deleted == 2
    assert counts(stage) == Counts(0, 0, 1, 0, 0)
    stage.pass_time(1000)
    assert stage.claimed("q", "a", 9) == [3]
    assert stage.delete("q", seqs=[1]).deleted == 0


@pytest.mark.parametrize("end", [OneShard.restart, OneShard.kill])
def test_records_deleted_by_their_seqs_stay_deleted(end: Any) -> None:
    stage = OneShard()
    stage.append("log", *range(6))
    assert stage.delete("log", seqs=[2, 5]).deleted == 2
    end(stage)
    assert stage.seqs("log") == [1, 3, 4, 6]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"delay_ms": -1}, "delay_ms: must be from 0 to"),
        ({"delay_ms": DELAY_MS_MAX + 1}, f"delay_ms: must be from 0 to {DELAY_MS_MAX}"),
        ({"not_before": -1}, "not_before: must be from 0 to"),
        ({"not_before": 1 << 62}, "not_before: must be from 0 to"),
        ({"delay_ms": 1, "not_before": 1}, "not_before: must not be sent with delay_ms"),
    ],
)
def test_a_delay_out_of_its_bounds_is_refused(request_: dict[str, int], field: str) -> None:
    stage = queue()
    refusal = stage.refused_append("q", 1, **request_)
    assert (refusal.code, refusal.message[: len(field)]) == ("invalid_request", field)
    assert stage.topic("q").next_seq == 1


def test_only_jobs_can_wait() -> None:
    stage = OneShard()
    stage.append("log", 1)
    assert "is a log" in stage.refused_append("log", 1, delay_ms=5).message
    assert "is a log" in stage.refused_append("new", 1, not_before=5).message
    assert "new" not in stage.shard.state.topics


def test_what_is_due_already_is_a_job_like_any_other() -> None:
    stage = queue()
    stage.append("q", 1, not_before=stage.clock.now_ms())
    stage.append("q", 2, delay_ms=0)
    assert not stage.topic("q").queue.known_jobs  # type: ignore[union-attr]
    assert stage.claimed("q", "a", 9) == [1, 2]


def test_an_ephemeral_queue_has_delayed_jobs_too() -> None:
    stage = queue(durability="ephemeral")
    stage.append("q", 1, delay_ms=10)
    assert counts(stage) == Counts(0, 0, 1, 0, 0)
    stage.pass_time(10)
    assert stage.claimed("q", "a", 9) == [1]


def test_a_repeat_under_its_key_delays_nothing_twice() -> None:
    stage = queue()
    for _ in range(2):
        assert stage.append("q", 1, delay_ms=1000, idempotency_key="k").first_seq == 1
        stage.pass_time(300)
    assert counts(stage) == Counts(0, 0, 1, 0, 0)
    stage.pass_time(400)
    assert stage.claimed("q", "a", 9) == [1]


@pytest.mark.parametrize("end", [OneShard.restart, OneShard.kill])
def test_a_paused_queue_hands_out_nothing_until_it_resumes(end: Any) -> None:
    stage = queue()
    stage.append("q", 1, 2, 3)
    assert stage.claimed("q", "a", 2, 1000) == [1, 2]
    stage.put("q", paused=True)
    assert stage.claimed("q", "b", 9) == []
    assert stage.ack("q", "a", 1).done == [1]
    assert stage.nack("q", "a", 2).done == [2]
    assert (job_json(stage, 3)["state"], job_json(stage, 3)["paused"]) == ("paused", True)
    stage.append("q", 4)
    end(stage)
    assert stage.claimed("q", "b", 9) == []
    assert counts(stage) == Counts(3, 0, 0, 0, 0)
    stage.put("q", paused=False)
    assert stage.claimed("q", "b", 9) == [2, 3, 4]


def test_each_job_says_why_it_is_not_delivered() -> None:
    stage = queue(max_deliveries=1, lease_ms=1000)
    stage.append("q", *range(5))
    stage.append("q", 6, delay_ms=7000)
    now = stage.clock.now_ms()
    assert stage.claimed("q", "a", 4) == [1, 2, 3, 4]
    stage.ack("q", "a", 1)
    stage.nack("q", "a", 2, reason="no disk")
    stage.nack("q", "a", 3, ms=5000, reason="later")
    assert stage.claimed("q", "b") == [5]
    whole = [job_json(stage, seq) for seq in range(8)]
    assert [one.pop("topic") for one in whole] == ["q"] * 8
    assert [one.pop("paused") for one in whole] == [False] * 8
    assert [one.pop("seq") for one in whole] == [*range(8)]
    assert whole == [
        {"state": "gone", "evict_floor": 1},
        {"state": "acked", "evict_floor": 1},
        {"state": "parked", "dead_letter": None, "deliveries": 1, "reason": "no disk"},
        {"state": "delayed", "until": now + 5000, "deliveries": 1, "reason": "later"},
        {"state": "in_flight", "node": "a", "deadline": now + 1000, "deliveries": 1},
        {"state": "in_flight", "node": "b", "deadline": now + 1000, "deliveries": 1},
        {"state": "delayed", "until": now + 7000, "deliveries": 0},
        {"state": "not_written", "head_seq": 6},
    ]
    stage.pass_time(1000)
    assert job_json(stage, 4) == {
        "topic": "q",
        "seq": 4,
        "state": "ready",
        "deliveries": 1,
        "reason": "lease expired at node a, 1 delivery",
        "paused": False,
    }


@pytest.mark.parametrize("end", [None, OneShard.restart, OneShard.kill])
def test_more_deliveries_free_what_was_parked_and_has_nowhere_to_go(end: Any) -> None:
    stage = queue(max_deliveries=1)
    stage.append("q", 1, 2)
    stage.claim("q", "a", 2)
    stage.nack("q", "a", 1)
    assert stage.claimed("q", "a", 1) == []
    assert counts(stage).parked == 1
    stage.put("q", max_deliveries=2)
    if end is not None:
        end(stage)
    assert counts(stage).parked == 0
    assert stage.claim("q", "b", 1).claimed[0][::2] == (1, 2)


@pytest.mark.parametrize("end", [None, OneShard.restart, OneShard.kill])
@pytest.mark.parametrize("is_named_first", [False, True])
def test_what_may_be_a_dead_letter_already_is_never_freed(end: Any, is_named_first: bool) -> None:
    stage = queue(max_deliveries=1, dead_letter="dead" if is_named_first else None)
    stage.append("q", 1)
    stage.claim("q", "a")
    stage.nack("q", "a", 1)
    assert stage.claimed("q", "a") == []
    stage.put("q", dead_letter="dead")
    stage.put("q", dead_letter=None)
    if end is not None:
        end(stage)
    stage.put("q", max_deliveries=0)
    assert counts(stage).parked == 1
    assert stage.claimed("q", "a") == []


@pytest.mark.parametrize("count", [1, 2, 100, 10_000])
def test_a_frame_of_delays_is_no_larger_than_it_is_taken_for(count: int) -> None:
    topic = queue().topic("q")
    frame = new_jobs_frame(topic, (1 << 62) - count, count, NewJobs((1 << 63) - 1, 9))
    assert len(frame) <= new_jobs_frame_bytes(count)


def test_of_very_many_that_are_due_at_once_a_look_sees_some_and_the_next_one_more() -> None:
    stage = queue()
    stage.append("q", *[1] * (COLLECTED_MAX + SEEN_MAX + 1), delay_ms=1000)
    stage.pass_time(1000)
    assert stage.claim("q", "a", 1).ready == COLLECTED_MAX - 1
    assert counts(stage) == Counts(COLLECTED_MAX + SEEN_MAX - 1, 1, 1, 0, 0)
    assert counts(stage).delayed == 0


def test_a_job_says_that_it_is_due_also_where_very_many_are() -> None:
    stage = queue(lease_ms=1000)
    stage.append("q", *[1] * 3 * COLLECTED_MAX)
    assert len(stage.claimed("q", "a", 3 * COLLECTED_MAX)) == 3 * COLLECTED_MAX
    stage.pass_time(1000)
    assert job_json(stage, 3 * COLLECTED_MAX)["state"] == "ready"
    assert counts(stage).ready == 3 * COLLECTED_MAX


@pytest.mark.parametrize("end", [None, OneShard.restart, OneShard.kill])
def test_a_claim_finds_what_is_behind_all_that_are_delayed(end: Any) -> None:
    stage = queue()
    for _ in range(3):
        stage.append("q", 1, 2, 3, delay_ms=60_000)
    if end is not None:
        end(stage)
    stage.append("q", 4)
    assert stage.claimed("q", "a", 9) == [10]
