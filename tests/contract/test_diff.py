"""Read: `POST /v0/topics/:topic/diff`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import HttpServer
from tests.harness.server.processes import wait_until

ANSWER_FIELDS = [
    "topic",
    "epoch",
    "records",
    "next_from_seq",
    "head_seq",
    "earliest_seq",
    "caught_up",
    "tombstone",
    "lag",
    "performance",
]


def test_a_diff_answers_with_all_fields_in_order(api: Api) -> None:
    api.append(1, 2, 3)
    answer = api.diff()
    assert list(answer) == ANSWER_FIELDS
    assert (answer["next_from_seq"], answer["head_seq"], answer["earliest_seq"]) == (3, 3, 1)
    assert (answer["caught_up"], answer["tombstone"], answer["lag"]) == (True, None, 0)
    assert answer["epoch"] == api.state()["epoch"]


def test_a_diff_needs_no_body(api: Api) -> None:
    api.append(1)
    assert [one["data"] for one in api.call("POST", "/diff").json["records"]] == [1]


def test_a_record_has_its_fields_in_order_and_only_those_that_it_has(api: Api) -> None:
    api.append_raw(b'{"meta":{"m":1},"data":{"d":1},"tag":"t","node":"n"}')
    api.append(None)
    full, bare = api.diff(include_tags=True)["records"]
    assert list(full) == ["$seq", "$ts", "$node", "$tag", "meta", "data"]
    assert (full["$node"], full["$tag"], full["meta"], full["data"]) == ("n", "t", {"m": 1}, {"d": 1})
    assert bare == {"$seq": 2, "$ts": bare["$ts"], "data": None}


def test_tags_are_left_out_unless_asked_for_and_meta_comes_unless_not(api: Api) -> None:
    api.append_raw(b'{"meta":{"m":1},"data":1,"tag":"t"}')
    assert list(api.diff()["records"][0]) == ["$seq", "$ts", "meta", "data"]
    assert list(api.diff(include_meta=False)["records"][0]) == ["$seq", "$ts", "data"]


VERBATIM = [
    b'{"b":1,"a":2,"b":3}',
    b"18446744073709551616",
    b"-9223372036854775809",
    b"0.1000000000000000000000000000000000000000000001",
    b"1e400",
    b"-0",
    b"1E+5",
    b'"\\u00e9 \\/ \\u0000 \\ud83d\\ude00"',
    '"é \U0001f600 "'.encode(),
    b'{ "spaced" : [ 1 ,\t2 ] }',
    b'""',
    b"[]",
    b"{}",
    b"true",
    b"1" * 5000,
    b"[" * 128 + b"]" * 128,
]


@pytest.mark.parametrize("data", VERBATIM, ids=range(len(VERBATIM)))
def test_data_comes_back_byte_for_byte(api: Api, data: bytes) -> None:
    api.append_raw(b'{"data": %b }' % data)
    assert b',"data":%b}]' % data in api.call("POST", "/diff").body


def test_meta_comes_back_byte_for_byte(api: Api) -> None:
    meta = b'{ "z":1.000, "a":1e400, "z":18446744073709551616 }'
    api.append_raw(b'{"data":1,"meta":%b}' % meta)
    assert b',"meta":%b,"data":1}' % meta in api.call("POST", "/diff").body


def test_the_limit_bounds_an_answer_and_the_cursor_says_how_far_it_went(api: Api) -> None:
    api.append(*range(10))
    answer = api.diff(2, limit=3)
    assert [record["$seq"] for record in answer["records"]] == [3, 4, 5]
    assert (answer["next_from_seq"], answer["caught_up"], answer["lag"]) == (5, False, 5)


@pytest.mark.parametrize(("limit", "count"), [(0, 256), (None, 256), (1000, 1000), (5000, 1000)])
def test_a_limit_of_zero_is_the_default_and_one_over_the_maximum_is_clamped(
    api: Api, limit: int | None, count: int
) -> None:
    api.append(*range(1100))
    options = {} if limit is None else {"limit": limit}
    assert len(api.diff(**options)["records"]) == count


def test_an_answer_is_bounded_by_bytes_and_has_at_least_one_record(api: Api) -> None:
    api.append("x" * 600_000)
    api.append("y" * 600_000)
    first = api.diff()
    assert [record["$seq"] for record in first["records"]] == [1]
    assert api.seqs(first["next_from_seq"]) == [2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"from_seq": -1}, "from_seq"),
        ({"from_seq": 1.0}, "from_seq"),
        ({"from_seq": "1"}, "from_seq"),
        ({"from_seq": True}, "from_seq"),
        ({"from_seq": None}, "from_seq"),
        ({"from_seq": 1 << 63}, str((1 << 63) - 1)),
        ({"from_seq": 1 << 70}, str((1 << 63) - 1)),
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"node": 5}, "node"),
        ({"node": ["a", 5]}, "node"),
        ({"include_tags": 1}, "include_tags"),
        ({"include_meta": "no"}, "include_meta"),
        ({"epoch": "e"}, "epoch"),
        ([], "object"),
    ],
)
def test_a_refusal_names_the_field(api: Api, body: object, message: str) -> None:
    api.put()
    assert message in api.refused(400, "invalid_request", "POST", "/diff", body).message


def test_own_records_are_passed_over_and_still_move_the_cursor(api: Api) -> None:
    api.call("POST", "", {"records": [{"data": n, "node": node} for n, node in enumerate("abcab")]})
    assert api.seqs(node="a") == [2, 3, 5]
    assert api.seqs(node=["a", "b"]) == [3]
    answer = api.diff(3, node=["a", "b", "c"])
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 5, True)
    api.put(dedupe_node=False)
    assert api.seqs(node="a") == [1, 2, 3, 4, 5]


def test_deleted_records_are_passed_over_in_silence(api: Api) -> None:
    api.append(1, 2, 3)
    api.delete(before_seq=3)
    answer = api.diff()
    assert [record["$seq"] for record in answer["records"]] == [3]
    assert answer["tombstone"] is None


# -- what is missing ---------------------------------------------------------------------------------------


def _tombstone(answer: Any) -> tuple[int, int, str]:
    tombstone = answer["tombstone"]
    assert list(tombstone) == [
        "gap_from",
        "gap_to",
        "reason",
        "missed_estimate",
        "earliest_seq",
        "head_seq",
    ]
    return tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]


def test_records_evicted_by_a_cap_are_reported_and_reading_continues_after_them(api: Api) -> None:
    api.append(*range(5), config={"cap_records": 2})
    answer = api.diff(1)
    assert _tombstone(answer) == (2, 3, "cap")
    assert answer["tombstone"]["missed_estimate"] == 2
    assert [record["$seq"] for record in answer["records"]] == [4, 5]
    assert api.diff(3)["tombstone"] is None


def test_expired_records_are_reported(server: HttpServer, api: Api) -> None:
    api.append(1, 2, config={"ttl_ms": 5000})
    server.pass_time(5001)
    answer = api.diff()
    assert _tombstone(answer) == (1, 2, "ttl")
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 2, True)


def test_a_cursor_ahead_of_the_head_is_of_another_incarnation(api: Api) -> None:
    api.append(1, 2)
    answer = api.diff(7)
    assert _tombstone(answer) == (1, 2, "recreated")
    assert [record["$seq"] for record in answer["records"]] == [1, 2]


@pytest.mark.parametrize("body", [{}, {"wait_ms": 2000}, {"wait_ms": 2000, "node": "n"}])
def test_a_position_past_the_head_is_refused_with_the_head(api: Api, body: dict[str, object]) -> None:
    api.append(1, 2)
    epoch = api.state()["epoch"]
    answer = api.refused(409, "position_past_head", "POST", "/diff", {"from_seq": 3, "epoch": epoch, **body})
    error = answer.json["error"]
    assert error["message"] == (
        f'position 3 is past the head of topic "{api.topic}", which is 2: '
        "continue from the next_from_seq of the last answer, at most 2"
    )
    assert error["detail"] == {"topic": api.topic, "head_seq": 2, "epoch": epoch}
    assert api.diff(2, epoch=epoch)["caught_up"] is True


def test_another_epoch_is_reported_also_when_the_new_head_is_past_the_cursor(api: Api) -> None:
    api.append(1)
    before = api.diff()["epoch"]
    api.call("DELETE")
    api.append(*range(5))
    assert _tombstone(api.diff(1, epoch=before)) == (1, 5, "recreated")
    assert api.diff(1, epoch=api.state()["epoch"])["tombstone"] is None


# -- waiting -----------------------------------------------------------------------------------------------


def test_a_wait_ends_empty_when_nothing_came(api: Api) -> None:
    api.append(1)
    answer = api.diff(1, wait_ms=30)
    assert (answer["records"], answer["caught_up"], answer["next_from_seq"]) == ([], True, 1)
    assert answer["performance"]["server_total_ms"] >= 25


def test_a_wait_does_not_wait_when_there_is_something(api: Api) -> None:
    api.append(1)
    assert api.diff(0, wait_ms=20_000)["performance"]["server_total_ms"] < 10_000


def test_a_waiting_reader_is_answered_as_soon_as_something_is_written(
    server: HttpServer, lane: str, api: Api
) -> None:
    api.append(1)
    with server.connect(lane) as reader:
        request = reader.start("POST", api.path + "/diff", b'{"from_seq":1,"wait_ms":30000}')
        _wait_for_a_waiting_reader(server, api.topic)
        api.append(2)
        assert [record["$seq"] for record in reader.finish(request).json["records"]] == [2]


def test_own_records_do_not_wake_a_waiting_reader(server: HttpServer, lane: str, api: Api) -> None:
    api.append(1)
    with server.connect(lane) as reader:
        body = b'{"from_seq":1,"wait_ms":30000,"node":"me"}'
        request = reader.start("POST", api.path + "/diff", body)
        _wait_for_a_waiting_reader(server, api.topic)
        api.append("own", node="me")
        api.append("other", node="you")
        answer = reader.finish(request).json
        assert [record["data"] for record in answer["records"]] == ["other"]
        assert answer["next_from_seq"] == 3


def test_a_waiting_reader_hears_that_its_topic_is_gone(server: HttpServer, lane: str, api: Api) -> None:
    api.put()
    with server.connect(lane) as reader:
        request = reader.start("POST", api.path + "/diff", b'{"wait_ms":30000}')
        _wait_for_a_waiting_reader(server, api.topic)
        api.call("DELETE")
        assert reader.finish(request).code == "topic_not_found"


def test_a_reader_that_hangs_up_is_waited_for_no_longer(server: HttpServer, lane: str, api: Api) -> None:
    api.put()
    with server.connect(lane) as reader:
        reader.start("POST", api.path + "/diff", b'{"wait_ms":30000}')
        _wait_for_a_waiting_reader(server, api.topic)
    wait_until(lambda: server.run(lambda: server.shard.state.topics[api.topic].waiters is None))
    assert api.append(1)["first_seq"] == 1


def _wait_for_a_waiting_reader(server: HttpServer, topic: str) -> None:
    wait_until(lambda: server.run(lambda: bool(server.shard.state.topics[topic].waiters)))


def test_an_answer_says_how_many_records_were_looked_at(api: Api) -> None:
    api.append(*range(5), node="me")
    api.append(*range(3), node="you")

    def scanned(*args: Any, **options: Any) -> int:
        return int(api.diff(*args, **options)["performance"]["records_scanned"])

    assert scanned() == 8
    assert scanned(6) == 2
    assert scanned(8) == 0
    assert scanned(limit=3) == 3
    assert scanned(node="me") == 8
    assert scanned(8, wait_ms=1) == 0
    assert api.delete(before_seq=5)["performance"]["records_scanned"] == 4
    assert scanned() == 4


def test_an_answer_from_memory_took_no_log(api: Api) -> None:
    api.call("PUT", "", {"durability": "ephemeral"})
    answer = api.call("POST", "", {"records": [{"data": 1}]})
    assert list(answer.json["performance"]) == ["server_total_ms"]
