"""A redrive does a bounded part: in time, at a rate, one at a time, while somebody hears the answer."""

from __future__ import annotations

import msgspec

from tests.harness.move_stage import FIELDS, Asked, MoveStage
from topicsd.http.redrive import SECONDS_MAX

QUEUE, DEAD = "q0", "d1"


def begun(count: int) -> MoveStage:
    stage = MoveStage()
    stage.home(QUEUE).put(QUEUE, type="queue")
    stamp = {"$dead_letter_from": QUEUE, "$dead_letter_deliveries": 1, "$dead_letter_src_seq": 1}
    records = [{"data": number, "meta": stamp} for number in range(count)]
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
