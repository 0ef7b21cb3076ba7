"""A redrive does a bounded part: in time, at a rate, one at a time, while somebody hears the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.move_stage import FIELDS, Asked, MoveStage
from topicsd.service.queues.redrive import SECONDS_MAX
from topicsd.service.queues.transfer import MOVED_AT_ONCE

QUEUE, DEAD = "q0", "d1"


def begun(count: int) -> MoveStage:
    stage = MoveStage()
    stage.home(QUEUE).put(QUEUE, type="queue")
    stamp = {"$dead_letter_from": QUEUE, "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1}
    records = [{"data": number, "meta": stamp} for number in range(count)]
    if records:
        stage.request("append", DEAD, {"records": records})
    return stage


def test_a_rate_is_kept_and_the_answer_comes_in_time() -> None:
    stage = begun(30)
    told = stage.send("redrive", DEAD, {"rate": 2})
    stage.pass_time(2900)
    assert len(stage.records(QUEUE)) == 6
    assert not told.came
    stage.pass_time(round(SECONDS_MAX * 1000))
    status, answer = told.answer
    assert (status, answer["done"], answer["redriven"], answer["next_from_seq"]) == (200, False, 20, 20)
    rest = stage.request("redrive", DEAD, {"from_seq": answer["next_from_seq"]})
    assert rest is not None
    assert (rest[1]["done"], rest[1]["redriven"]) == (True, 10)
    assert sorted(data for data, _ in stage.records(QUEUE)) == list(range(30))


def test_a_topic_has_one_redrive_at_a_time() -> None:
    stage = begun(3)
    first = stage.send("redrive", DEAD, {"rate": 1})
    second = stage.send("redrive", DEAD, {})
    stage.settle()
    assert (second.answer[0], second.answer[1]["error"]["code"]) == (429, "throttled")
    stage.pass_time(4000)
    assert first.answer[1]["redriven"] == 3


def test_it_stops_when_nobody_hears_the_answer() -> None:
    stage = begun(10)
    answers: list[bytes] = []
    body = b'{"rate":2}'
    call = Asked(DEAD, "", FIELDS, body, 0.0, told=lambda status, answer: answers.append(answer))
    stage.start("redrive", call)
    stage.pass_time(1000)
    assert call.hurry is not None
    call.hurry()
    stage.pass_time(1000)
    assert msgspec.json.decode(answers[0])["done"] is False
    moved = len(stage.records(QUEUE))
    stage.pass_time(5000)
    assert 0 < len(stage.records(QUEUE)) == moved < 10


def test_it_stops_where_a_shard_is_away_and_what_was_in_doubt_is_moved_once() -> None:
    stage = begun(4)
    stage.loses_answers = True
    stopped = stage.request("redrive", DEAD, {"from_seq": 1})
    assert stopped is not None
    assert (stopped[1]["stopped_by"], stopped[1]["redriven"], stopped[1]["done"]) == ("in_doubt", 0, False)
    assert stopped[1]["next_from_seq"] == 1
    stage.loses_answers = False
    again = stage.request("redrive", DEAD, {})
    assert again is not None
    assert again[1]["done"]
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 1, 2, 3]
    assert not stage.records(DEAD)


@pytest.mark.parametrize(
    "wanted", [{"seqs": [4]}, {"seqs": [2, 4]}, {"seqs": [1]}, {"from_seq": 2}, {"max": 3}]
)
def test_what_was_in_doubt_together_is_moved_once_whatever_is_asked_for_next(wanted: dict[str, Any]) -> None:
    stage = begun(5)
    stage.loses_answers = True
    stopped = stage.request("redrive", DEAD, {"max": 4})
    assert stopped is not None
    assert stopped[1]["stopped_by"] == "in_doubt"
    stage.loses_answers = False
    if "from_seq" in wanted:
        stage.lose(1)
    stage.request("redrive", DEAD, wanted)
    rest = stage.request("redrive", DEAD, {})
    assert rest is not None
    assert rest[1]["done"]
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 1, 2, 3, 4]
    assert not stage.records(DEAD)


def test_many_go_at_once_also_of_several_queues_and_in_their_order() -> None:
    stage = begun(0)
    other = "other0"
    stage.home(other).put(other, type="queue")
    count = 2 * MOVED_AT_ONCE + 10
    stage.request("append", DEAD, {"records": [letter(n, (QUEUE, other)[n % 2]) for n in range(count)]})
    asked = stage.names_asked(0, "bring_back")
    answer = stage.request("redrive", DEAD, {"max": count})
    assert answer is not None
    assert answer[1]["queues"] == {QUEUE: count // 2, other: count // 2}
    assert [data for data, _ in stage.records(QUEUE)] == [*range(0, count, 2)]
    assert [data for data, _ in stage.records(other)] == [*range(1, count, 2)]
    assert len(asked) == 6


def test_what_its_queue_has_no_room_for_stays_and_what_it_has_room_for_goes() -> None:
    stage = begun(6)
    stage.home(QUEUE).put(QUEUE, cap_records=4, discard="reject")
    answer = stage.request("redrive", DEAD, {})
    assert answer is not None
    assert (answer[1]["redriven"], answer[1]["reasons"], answer[1]["done"]) == (4, {"topic_full": 2}, True)
    assert [data for data, _ in stage.records(DEAD)] == [4, 5]


def test_a_queue_that_is_not_there_is_asked_once_for_all() -> None:
    stage = begun(6)
    stage.home(QUEUE).delete_topic(QUEUE)
    asked = stage.names_asked(0, "bring_back")
    answer = stage.request("redrive", DEAD, {})
    assert answer is not None
    assert (answer[1]["reasons"], answer[1]["next_from_seq"]) == ({"topic_not_found": 6}, 6)
    assert len(asked) == 1


@pytest.mark.parametrize("rate", [7, 45, 1000])
def test_no_more_than_the_rate_go_in_any_second(rate: int) -> None:
    stage = begun(400)
    stage.send("redrive", DEAD, {"rate": rate})
    moved = [0]
    for _ in range(30):
        stage.pass_time(100)
        moved.append(len(stage.records(QUEUE)))
    in_a_second = [late - early for early, late in zip(moved, moved[10:], strict=False)]
    assert max(in_a_second) <= rate
    assert moved[-1] >= min(400, rate * 2)


def test_what_stays_is_told_once_where_it_was_stopped_in_between() -> None:
    stage = begun(0)
    away = "away0"
    stage.home(away).put(away, type="queue")
    records = [letter(0, QUEUE), {"data": 1}, letter(2, away), {"data": 3}, letter(4, QUEUE)]
    stage.request("append", DEAD, {"records": records})
    stage.loses_answers = True
    first = stage.request("redrive", DEAD, {})
    stage.loses_answers = False
    assert first is not None
    assert (first[1]["stopped_by"], first[1]["matched"], first[1]["next_from_seq"]) == ("in_doubt", 0, 0)
    second = stage.request("redrive", DEAD, {})
    assert second is not None
    assert (second[1]["redriven"], second[1]["reasons"]) == (3, {"no_origin": 2})
    assert sorted(data for data, _ in stage.records(QUEUE)) == [0, 4]


def letter(number: int, queue: str) -> dict[str, Any]:
    stamp = {"$dead_letter_from": queue, "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1}
    return {"data": number, "meta": stamp}
