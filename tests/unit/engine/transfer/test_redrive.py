"""A redrive does bounded work: in time, at a rate, one per topic, while its client is connected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.stage.transfer_shards import FIELDS, FakeCall, TransferShards
from topicsd.engine.transfer.redrive import SECONDS_MAX
from topicsd.engine.transfer.transfer import MOVED_AT_ONCE

QUEUE, DEAD = "q-0", "d1"


def dead_letter_stage(count: int) -> TransferShards:
    stage = TransferShards()
    stage.owner(QUEUE).put(QUEUE, type="queue")
    stamp = {"$dead_letter_from": QUEUE, "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1}
    records = [{"data": number, "meta": stamp} for number in range(count)]
    if records:
        stage.request("append", DEAD, {"records": records})
    return stage


def test_the_rate_is_kept_and_the_response_arrives_in_time() -> None:
    stage = dead_letter_stage(30)
    reply = stage.send("redrive", DEAD, {"rate": 2})
    stage.pass_time(2900)
    assert len(stage.records(QUEUE)) == 6
    assert not reply.has_answer
    stage.pass_time(round(SECONDS_MAX * 1000))
    status, answer = reply.answer
    assert (status, answer["done"], answer["redriven"], answer["next_from_seq"]) == (200, False, 20, 20)
    rest = stage.request("redrive", DEAD, {"from_seq": answer["next_from_seq"]})
    assert rest is not None
    assert (rest[1]["done"], rest[1]["redriven"]) == (True, 10)
    assert sorted(data for data, _ in stage.records(QUEUE)) == list(range(30))


def test_a_topic_has_one_redrive_at_a_time() -> None:
    stage = dead_letter_stage(3)
    first = stage.send("redrive", DEAD, {"rate": 1})
    second = stage.send("redrive", DEAD, {})
    stage.settle()
    assert (second.answer[0], second.answer[1]["error"]["code"]) == (429, "throttled")
    stage.pass_time(4000)
    assert first.answer[1]["redriven"] == 3


def test_a_redrive_stops_when_its_client_disconnects() -> None:
    stage = dead_letter_stage(10)
    answers: list[bytes] = []
    body = b'{"rate":2}'
    call = FakeCall(DEAD, "", FIELDS, body, 0.0, send_answer=lambda status, answer: answers.append(answer))
    stage.start("redrive", call)
    stage.pass_time(1000)
    assert call.cancel_wait is not None
    call.cancel_wait()
    stage.pass_time(1000)
    assert msgspec.json.decode(answers[0])["done"] is False
    moved = len(stage.records(QUEUE))
    stage.pass_time(5000)
    assert 0 < len(stage.records(QUEUE)) == moved < 10


def test_a_redrive_stops_at_an_unavailable_shard_and_moves_records_in_doubt_once() -> None:
    stage = dead_letter_stage(4)
    stage.is_losing_answers = True
    stopped = stage.request("redrive", DEAD, {"from_seq": 1})
    assert stopped is not None
    assert (stopped[1]["stopped_by"], stopped[1]["redriven"], stopped[1]["done"]) == ("in_doubt", 0, False)
    assert stopped[1]["next_from_seq"] == 1
    stage.is_losing_answers = False
    again = stage.request("redrive", DEAD, {})
    assert again is not None
    assert again[1]["done"]
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 1, 2, 3]
    assert not stage.records(DEAD)


@pytest.mark.parametrize(
    "selection", [{"seqs": [4]}, {"seqs": [2, 4]}, {"seqs": [1]}, {"from_seq": 2}, {"max": 3}]
)
def test_records_in_doubt_move_once_whatever_the_next_redrive_selects(selection: dict[str, Any]) -> None:
    stage = dead_letter_stage(5)
    stage.is_losing_answers = True
    stopped = stage.request("redrive", DEAD, {"max": 4})
    assert stopped is not None
    assert stopped[1]["stopped_by"] == "in_doubt"
    stage.is_losing_answers = False
    if "from_seq" in selection:
        stage.lose(1)
    stage.request("redrive", DEAD, selection)
    rest = stage.request("redrive", DEAD, {})
    assert rest is not None
    assert rest[1]["done"]
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 1, 2, 3, 4]
    assert not stage.records(DEAD)


def test_many_records_of_several_queues_move_in_few_requests_and_in_order() -> None:
    stage = dead_letter_stage(0)
    other = "spare0"
    stage.owner(other).put(other, type="queue")
    count = 2 * MOVED_AT_ONCE + 10
    stage.request("append", DEAD, {"records": [dead_letter(n, (QUEUE, other)[n % 2]) for n in range(count)]})
    answer = stage.request("redrive", DEAD, {"max": count})
    assert answer is not None
    assert answer[1]["queues"] == {QUEUE: count // 2, other: count // 2}
    assert [data for data, _ in stage.records(QUEUE)] == [*range(0, count, 2)]
    assert [data for data, _ in stage.records(other)] == [*range(1, count, 2)]
    assert len(stage.destinations(0)) == 6


def test_records_that_do_not_fit_their_queue_stay_and_the_others_move() -> None:
    stage = dead_letter_stage(6)
    stage.owner(QUEUE).put(QUEUE, cap_records=4, discard="reject")
    answer = stage.request("redrive", DEAD, {})
    assert answer is not None
    assert (answer[1]["redriven"], answer[1]["reasons"], answer[1]["done"]) == (4, {"topic_full": 2}, True)
    assert [data for data, _ in stage.records(DEAD)] == [4, 5]


def test_a_missing_queue_is_tried_once_for_all_records() -> None:
    stage = dead_letter_stage(6)
    stage.owner(QUEUE).delete_topic(QUEUE)
    answer = stage.request("redrive", DEAD, {})
    assert answer is not None
    assert (answer[1]["reasons"], answer[1]["next_from_seq"]) == ({"topic_not_found": 6}, 6)
    assert len(stage.destinations(0)) == 1


@pytest.mark.parametrize("step_ms", [10, 100], ids=["exact timers", "late timers"])
@pytest.mark.parametrize("queues", [[QUEUE], [QUEUE, QUEUE, "spare0"]], ids=["one queue", "two queues"])
@pytest.mark.parametrize("rate", [1, 7, 29, 45, 1000])
def test_the_rate_holds_in_every_second(rate: int, queues: list[str], step_ms: int) -> None:
    stage = dead_letter_stage(0)
    for queue in dict.fromkeys(queues):
        stage.owner(queue).put(queue, type="queue")
    records = [dead_letter(n, queues[n % len(queues)]) for n in range(400)]
    stage.request("append", DEAD, {"records": records})
    stage.send("redrive", DEAD, {"rate": rate})
    moved = [0]
    for _ in range(4000 // step_ms):
        stage.clock.advance(step_ms)
        stage.settle()
        moved.append(400 - len(stage.records(DEAD)))
    in_a_second = [late - early for early, late in zip(moved, moved[1000 // step_ms :], strict=False)]
    assert max(in_a_second) <= rate
    # A timer that is late by up to 100 ms delays each move.
    assert moved[-1] >= min(400, rate * (3 if step_ms == 10 else 2))


def test_records_that_stay_are_reported_once_across_a_stop() -> None:
    stage = dead_letter_stage(0)
    away = "second0"
    stage.owner(away).put(away, type="queue")
    records = [dead_letter(0, QUEUE), {"data": 1}, dead_letter(2, away), {"data": 3}, dead_letter(4, QUEUE)]
    stage.request("append", DEAD, {"records": records})
    stage.is_losing_answers = True
    first = stage.request("redrive", DEAD, {})
    stage.is_losing_answers = False
    assert first is not None
    assert (first[1]["stopped_by"], first[1]["matched"], first[1]["next_from_seq"]) == ("in_doubt", 0, 0)
    second = stage.request("redrive", DEAD, {})
    assert second is not None
    assert (second[1]["redriven"], second[1]["reasons"]) == (3, {"no_origin": 2})
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 4]


def dead_letter(number: int, queue: str) -> dict[str, Any]:
    stamp = {"$dead_letter_from": queue, "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1}
    return {"data": number, "meta": stamp}
