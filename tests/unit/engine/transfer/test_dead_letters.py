"""The mover of dead letters: jobs that cannot move do not delay others, and are retried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.stage.transfer_shards import TransferShards
from tests.unit.engine.read.test_read_damage import flip
from topicsd.engine.queue.explain import explain
from topicsd.engine.transfer import dead_letters
from topicsd.engine.transfer.dead_letters import RETRY_SECONDS_MAX
from topicsd.engine.transfer.transfer import MOVED_AT_ONCE

QUEUE, DEAD = "q-0", "d1"


@pytest.fixture(params=[1, MOVED_AT_ONCE])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of jobs in one move."""
    count: int = request.param
    monkeypatch.setattr(dead_letters, "MOVED_AT_ONCE", count)
    return count


def queue_stage(*data: object, **settings: int) -> TransferShards:
    stage = TransferShards(**settings)
    stage.owner(QUEUE).put(QUEUE, type="queue", max_deliveries=1, dead_letter=DEAD)
    stage.request("append", QUEUE, {"records": [{"data": one} for one in data]})
    return stage


def fail_all(stage: TransferShards) -> None:
    shard = stage.owner(QUEUE)
    shard.nack(QUEUE, "w", *shard.claimed(QUEUE, "w", 100))
    assert shard.claimed(QUEUE, "w", 100) == []
    stage.settle()


def moved(stage: TransferShards) -> list[object]:
    return [data for data, _ in stage.records(DEAD)]


def test_a_job_too_large_for_its_destination_does_not_delay_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = queue_stage("x" * 5000, 2, "y" * 5000, 4)
    stage.owner(DEAD).put(DEAD, cap_bytes=3000, discard="reject")
    fail_all(stage)
    assert moved(stage) == [2, 4]
    (message,) = caplog.messages
    assert message.startswith("dead letters: jobs not moved, will retry: ")
    assert message.endswith("  queue=q-0 dead_letter=d1")
    stage.owner(DEAD).put(DEAD, cap_bytes=0)
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    assert len(moved(stage)) == 4
    assert stage.owner(QUEUE).state(QUEUE).count == 0


def test_an_unreadable_job_does_not_delay_others() -> None:
    stage = queue_stage(1, 2, 3)
    flip(stage.owner(QUEUE), 1, topic=QUEUE)
    fail_all(stage)
    assert moved(stage) == [2, 3]
    queue = stage.owner(QUEUE).topic(QUEUE).queue
    assert queue is not None
    assert [*queue.parked] == [1]


ENDS: dict[str, Callable[[TransferShards], object]] = {
    "no": lambda stage: None,
    "a kill": lambda stage: stage.lose(0),
    "a kill after a checkpoint": lambda stage: (stage.owner(QUEUE).checkpoint(), stage.lose(0)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_queue_knows_which_are_dead_letters(end: Callable[[TransferShards], object]) -> None:
    stage = queue_stage(1, 2, 3, 4)
    shard = stage.owner(QUEUE)
    shard.ack(QUEUE, "w", *shard.claimed(QUEUE, "w"))
    shard.delete(QUEUE, seqs=[1, 3])
    fail_all(stage)
    end(stage)
    answers = [explain(stage.owner(QUEUE).shard.state, QUEUE, seq) for seq in range(1, 5)]
    states = [answer["state"] for answer in answers if isinstance(answer, dict)]
    assert states == ["acked", "dead", "deleted", "dead"]


def test_an_evicted_job_is_not_reported_as_acked() -> None:
    stage = queue_stage(1, 2, 3)
    shard = stage.owner(QUEUE)
    shard.ack(QUEUE, "w", *shard.claimed(QUEUE, "w"))
    shard.put(QUEUE, cap_records=1)
    answers = [explain(shard.shard.state, QUEUE, seq) for seq in (1, 2, 3)]
    assert [answer["state"] for answer in answers if isinstance(answer, dict)] == ["gone", "gone", "ready"]


@pytest.mark.parametrize("loses_answers", [False, True])
def test_a_deleted_destination_is_created_again(loses_answers: bool, at_once: int) -> None:
    stage = queue_stage(1, 2)
    stage.is_losing_answers = loses_answers
    fail_all(stage)
    stage.is_losing_answers = False
    assert moved(stage) == ([1] if loses_answers and at_once == 1 else [1, 2])
    stage.owner(DEAD).delete_topic(DEAD)
    stage.request("append", QUEUE, {"records": [{"data": 3}]})
    fail_all(stage)
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    # Jobs in doubt move again: the topic that may have had them is deleted.
    assert moved(stage) == ([1, 2, 3] if loses_answers else [3])
    counts = stage.owner(QUEUE).state(QUEUE).queue
    assert counts is not None
    assert (counts.dead_lettered, counts.parked) == (3, 0)


OTHER = "e1"


def both(stage: TransferShards) -> tuple[list[object], list[object]]:
    """Return the records of the first dead-letter topic and of the one that replaced it."""
    topics = stage.owner(OTHER).shard.state.topics
    return tuple(
        [data for data, _ in stage.records(name)] if name in topics else [] for name in (DEAD, OTHER)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("named", [[OTHER], [None, OTHER], [OTHER, DEAD, OTHER]], ids=str)
def test_a_job_in_doubt_at_the_former_destination_ends_in_one_topic_only(
    named: list[str | None], end: Callable[[TransferShards], object], at_once: int
) -> None:
    stage = queue_stage(1, 2, 3)
    stage.is_losing_answers = True
    fail_all(stage)
    assert moved(stage) == [1, 2, 3][:at_once]
    for name in named:
        stage.owner(QUEUE).put(QUEUE, dead_letter=name)
        end(stage)
    stage.pass_time(2000)
    stage.is_losing_answers = False
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    assert both(stage) == ([1, 2, 3][:at_once], [1, 2, 3][at_once:])
    counts = stage.owner(QUEUE).state(QUEUE).queue
    assert counts is not None
    assert (counts.dead_lettered, counts.parked) == (3, 0)


def test_a_destination_changed_during_a_disk_read_is_used_after_the_former_one_is_checked(
    at_once: int,
) -> None:
    stage = queue_stage(1, 2, segment_max_events=1)
    stage.is_losing_answers = True
    fail_all(stage)
    shard = stage.owner(QUEUE)
    shard.checkpoint()
    stage.lose(0)
    stage.is_losing_answers = False
    shard.loop.run_turn()
    stage.clock.advance_ns(10**9)
    while not shard.copy_thread.pending:
        assert shard.loop.run_turn()
    reply = shard.send_put(QUEUE, dead_letter=OTHER)
    while not reply.has_answer:
        shard.loop.run_turn()
        shard.thread.run_one()
    assert shard.copy_thread.pending, "the job is still being read"
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    assert both(stage) == ([1, 2][:at_once], [1, 2][at_once:])


def test_a_deleted_former_destination_does_not_block_the_next() -> None:
    stage = queue_stage(1, 2)
    stage.is_losing_answers = True
    fail_all(stage)
    stage.is_losing_answers = False
    stage.owner(DEAD).delete_topic(DEAD)
    stage.owner(QUEUE).put(QUEUE, dead_letter=OTHER)
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    assert both(stage) == ([], [1, 2])
    assert DEAD not in stage.owner(DEAD).shard.state.topics


def test_a_job_that_did_not_fit_the_former_destination_moves_to_the_next() -> None:
    stage = queue_stage("x" * 500, "y" * 500, "z" * 500)
    stage.owner(DEAD).put(DEAD, cap_records=1, discard="reject")
    fail_all(stage)
    assert len(moved(stage)) == 1
    stage.owner(QUEUE).put(QUEUE, dead_letter=OTHER)
    stage.pass_time(round(RETRY_SECONDS_MAX * 1000))
    assert [len(one) for one in both(stage)] == [1, 2]


def test_many_jobs_move_in_few_requests_and_each_is_counted() -> None:
    count = 2 * MOVED_AT_ONCE + 5
    stage = queue_stage(*range(count))
    shard = stage.owner(QUEUE)
    shard.nack(QUEUE, "w", *shard.claimed(QUEUE, "w", count))
    while shard.state(QUEUE).count:
        shard.claim(QUEUE, "w", 1)
        stage.pass_time(100)
    assert moved(stage) == [*range(count)]
    assert len(stage.destinations(1)) <= 5
    counts = shard.state(QUEUE).queue
    assert counts is not None
    assert (counts.dead_lettered, counts.parked) == (count, 0)
