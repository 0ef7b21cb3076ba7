"""The mover of dead letters: what cannot go holds up nobody, and is tried again."""

from __future__ import annotations

from tests.harness.move_stage import MoveStage
from tests.unit.engine.test_read_damage import flip
from topicsd.http.dead_letters import AGAIN_SECONDS_MAX

QUEUE, DEAD = "q0", "d1"


def begun(*data: object) -> MoveStage:
    stage = MoveStage()
    stage.home(QUEUE).put(QUEUE, type="queue", max_deliveries=1, dead_letter=DEAD)
    stage.request("append", QUEUE, {"records": [{"data": one} for one in data]})
    return stage


def fail_all(stage: MoveStage) -> None:
    shard = stage.home(QUEUE)
    shard.nack(QUEUE, "w", *shard.claimed(QUEUE, "w", 100))
    assert shard.claimed(QUEUE, "w", 100) == []
    stage.settle()


def moved(stage: MoveStage) -> list[object]:
    return [data for data, _ in stage.records(DEAD)]


def test_one_that_is_too_large_for_its_destination_holds_up_no_other_one() -> None:
    stage = begun("x" * 5000, 2, "y" * 5000, 4)
    stage.home(DEAD).put(DEAD, cap_bytes=3000, discard="reject")
    fail_all(stage)
    assert moved(stage) == [2, 4]
    stage.home(DEAD).put(DEAD, cap_bytes=0)
    stage.pass_time(round(AGAIN_SECONDS_MAX * 1000))
    assert len(moved(stage)) == 4
    assert stage.home(QUEUE).state(QUEUE).count == 0


def test_one_that_cannot_be_read_holds_up_no_other_one() -> None:
    stage = begun(1, 2, 3)
    flip(stage.home(QUEUE), 1, topic=QUEUE)
    fail_all(stage)
    assert moved(stage) == [2, 3]
    queue = stage.home(QUEUE).topic(QUEUE).queue
    assert queue is not None
    assert [*queue.parked] == [1]
