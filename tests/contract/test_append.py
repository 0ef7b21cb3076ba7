"""Append: `POST /v0/topics/:topic`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import HttpServer

ANSWER_FIELDS = [
    "topic",
    "first_seq",
    "last_seq",
    "seqs",
    "head_seq",
    "count",
    "created",
    "deduped",
    "durability",
    "performance",
]


def test_the_first_write_creates_and_answers_201_with_all_fields_in_order(api: Api) -> None:
    answer = api.call("POST", "", {"records": [{"data": 1}, {"data": None}]})
    assert answer.status == 201
    assert list(answer.json) == ANSWER_FIELDS
    fields = {name: answer.json[name] for name in ANSWER_FIELDS[:-1]}
    assert fields == {
        "topic": api.topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
        "durability": "disk",
    }
    assert isinstance(answer.json["performance"]["server_total_ms"], float)


def test_the_next_write_answers_200_and_continues_the_seqs(api: Api) -> None:
    api.append(1)
    answer = api.call("POST", "", {"records": [{"data": 1}] * 3})
    assert (answer.status, answer.json["created"]) == (200, False)
    assert (answer.json["first_seq"], answer.json["seqs"]) == (2, [2, 3, 4])


@pytest.mark.parametrize(("query", "has_seqs"), [("?return_seqs=false", False), ("?return_seqs=1", True)])
def test_seqs_are_left_out_when_they_are_not_wanted(api: Api, query: str, has_seqs: bool) -> None:
    answer = api.call("POST", query, {"records": [{"data": 1}] * 2}).json
    assert ("seqs" in answer) == has_seqs
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 2, 2)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_the_ack_names_its_class(api: Api, durability: str) -> None:
    assert api.append(1, config={"durability": durability})["durability"] == durability
    assert api.append(2)["durability"] == durability
    assert api.seqs() == [1, 2]


def test_a_record_may_name_its_own_node_and_the_others_have_that_of_the_call(api: Api) -> None:
    body = {"node": "n1", "records": [{"data": 1}, {"data": 2, "node": "n2"}, {"data": 3, "tag": "t"}]}
    api.call("POST", "", body)
    records = api.diff(include_tags=True)["records"]
    assert [record["$node"] for record in records] == ["n1", "n2", "n1"]
    assert [record.get("$tag") for record in records] == [None, None, "t"]


def test_create_false_writes_only_to_what_is_there(api: Api) -> None:
    body = {"records": [{"data": 1}], "create": False}
    assert api.topic in api.refused(404, "topic_not_found", "POST", "", body).message
    api.put()
    assert api.call("POST", "", body).status == 200


def test_config_counts_only_for_the_call_that_creates(api: Api) -> None:
    api.append(1, config={"cap_records": 2, "durable": True})
    assert api.state()["config"]["cap_records"] == 2
    assert api.append(2, config={"cap_records": 9})["created"] is False
    assert api.append(3, config={"type": "queue"})["created"] is False
    config = api.state()["config"]
    assert (config["cap_records"], config["durability"], config["type"]) == (2, "fsync", "log")


def test_a_refused_write_creates_no_topic(api: Api) -> None:
    api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1, "tag": "x" * 257}]})
    api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1}], "config": {"ttl_ms": -1}})
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "records"),
        ({"records": []}, "records"),
        ({"records": [{}]}, "data"),
        ({"records": [{"data": 1}, {"tag": "x"}]}, "records[1]"),
        ({"records": [1]}, "records[0]"),
        ({"records": {"data": 1}}, "records"),
        ({"records": [{"data": 1, "tag": 5}]}, "records[0].tag"),
        ({"records": [{"data": 1, "node": ["n"]}]}, "records[0].node"),
        ({"records": [{"data": 1, "meta": 5}]}, "records[0].meta"),
        ({"records": [{"data": 1, "meta": [1]}]}, "records[0].meta"),
        ({"records": [{"data": 1, "meta": {str(i): 1 for i in range(65)}}]}, "64"),
        ({"records": [{"data": 1, "meta": {"_topics_router": {}}}]}, "records[0].meta"),
        ({"records": [{"data": 1}, {"data": 1, "meta": {"k": "x" * 16_384}}]}, "records[1].meta"),
        ({"records": [{"data": 1, "tag": "é" * 129}]}, "256"),
        ({"records": [{"data": 1, "node": "n" * 129}]}, "128"),
        ({"records": [{"data": 1}], "node": "n" * 129}, "128"),
        ({"records": [{"data": 1}], "create": "yes"}, "create"),
        ({"records": [{"data": 1}], "config": []}, "config"),
        ({"records": [{"data": 1}], "idempotency_key": 5}, "idempotency_key"),
        ({"records": [{"data": 1}], "idempotency_key": "k" * 257}, "256"),
        ({"records": [{"data": 1}], "idempotency_key": ""}, "idempotency_key"),
        ([], "object"),
        (b"", "JSON"),
        (b"{", "JSON"),
        (b'{"records":[{"m\\u0065ta":5,"data":1}]}', "records[0].meta"),
        (b'{"records":[{"meta":{"\\u005ftopics_router":1},"data":1}]}', "records[0].meta"),
    ],
)
def test_a_refusal_names_the_field_and_the_bound(api: Api, body: object, message: str) -> None:
    assert message in api.refused(400, "invalid_request", "POST", "", body).message


def test_what_is_exactly_at_a_bound_is_taken(api: Api) -> None:
    record = {"data": 1, "tag": "t" * 256, "node": "n" * 128, "meta": {str(i): 1 for i in range(64)}}
    assert api.call("POST", "", {"records": [record], "idempotency_key": "k" * 256}).status == 201
    big = b'"%b"' % (b"x" * ((1 << 20) - 2))
    assert api.append_raw(b'{"data":%b}' % big)["first_seq"] == 2
    over = b'{"records":[{"data":%b}]}' % big.replace(b'"x', b'"xx')
    api.refused(400, "record_too_large", "POST", "", over)


def test_a_record_that_is_too_large_is_refused_with_its_place_and_the_bound(api: Api) -> None:
    body = {"records": [{"data": 1}, {"data": "x" * (1 << 20)}]}
    answer = api.refused(400, "record_too_large", "POST", "", body)
    assert "records[1]" in answer.message
    assert "1048576" in answer.message
    api.refused(404, "topic_not_found", "GET")


def test_ten_thousand_records_are_taken_and_one_more_is_not(api: Api) -> None:
    answer = api.append(*([0] * 10_000))
    assert (answer["count"], answer["last_seq"]) == (10_000, 10_000)
    refused = api.refused(400, "batch_too_large", "POST", "", {"records": [{"data": {}}] * 10_001})
    assert "10000" in refused.message
    assert api.state()["head_seq"] == 10_000


def test_a_meta_of_null_is_none(api: Api) -> None:
    api.append_raw(b'{"data":1,"meta":null,"tag":null,"node":null}')
    assert list(api.diff(include_tags=True)["records"][0]) == ["$seq", "$ts", "data"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"records": [{"data": 1}, {"data": 1, "tags": "x"}]},
            "records[1].tags: unknown field, did you mean tag?",
        ),
        (
            {"records": [{"data": 1}], "idempotencykey": "k"},
            "idempotencykey: unknown field, did you mean idempotency_key?",
        ),
        ({"records": [{"data": 1}], "config": {"ttl": 1}}, "config.ttl: unknown field, did you mean ttl_ms?"),
        ({"records": [{"data": 1}], "config": {"ttl_ms": -1}}, "config.ttl_ms: must be at least 0, got -1"),
        (
            {"records": [{"data": 1}], "config": {"cap_bytes": "big"}},
            'config.cap_bytes: must be a number of bytes or a size such as "64 MiB"',
        ),
        (
            {"records": [{"data": 1}], "config": {"paused": True}},
            'config.paused: only queues have it, and topic "{topic}" is a log; '
            'to create a queue, add "type":"queue"',
        ),
        (
            {"records": [{"data": 1}], "producer": {"id": "p", "seq": 1, "x": 1}},
            "producer.x: unknown field; allowed: id, seq",
        ),
        (
            {"records": [{"data": 1, "delay_ms": 1}]},
            "records[0].delay_ms: unknown field here; it belongs at the top level of the body",
        ),
        ({"records": [{"data": 1}], "ttl_ms": 1}, "ttl_ms: unknown field; it belongs in config"),
        ({"data": 1}, 'data: unknown field; it belongs in a record, as in {"records":[{"data":1}]}'),
    ],
)
def test_a_wrong_field_is_refused_and_nothing_is_written(
    api: Api, body: dict[str, object], message: str
) -> None:
    for padding in ("", "x" * 1000):
        sent = {"node": padding[:100], **body}
        answer = api.refused(400, "invalid_request", "POST", "", sent)
        assert answer.message == message.replace("{topic}", api.topic)
        assert answer.json["error"]["detail"] == {"field": message.partition(":")[0]}
    api.refused(404, "topic_not_found", "GET")


def test_a_full_topic_that_discards_nothing_refuses_with_what_it_holds(api: Api) -> None:
    api.append(1, 2, config={"cap_records": 2, "discard": "reject"})
    answer = api.refused(422, "topic_full", "POST", "", {"records": [{"data": 3}]})
    detail = answer.json["error"]["detail"]
    assert detail == {"cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    advice = "delete records, or raise cap_records"
    assert answer.message.endswith(f"is full: it holds 2 records, cap_records is 2; {advice}")
    answer = api.refused(400, "record_too_large", "POST", "", {"records": [{"data": 3}] * 3})
    assert answer.message == "records: must fit cap_records of the topic, which is 2, got 3 records"
    api.delete(before_seq=2)
    assert api.append(3)["first_seq"] == 3


def test_a_write_larger_than_the_cap_evicts_from_its_own_front(api: Api) -> None:
    api.append(1, config={"cap_records": 2})
    api.append(2, 3, 4)
    assert api.seqs(2) == [3, 4]
    assert api.state()["count"] == 2


def test_appends_that_are_sent_at_once_are_answered_in_their_order(api: Api) -> None:
    bodies = [b'{"records":[{"data":%d}]}' % n for n in range(50)]
    requests = [api.client.start("POST", api.path, body) for body in bodies]
    answers = [api.client.finish(one) for one in requests]
    assert [answer.json["first_seq"] for answer in answers] == list(range(1, 51))
    assert [answer.status for answer in answers] == [201] + [200] * 49


# -- idempotency -------------------------------------------------------------------------------------------


def _keyed(key: str | None, *data: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"records": [{"data": one} for one in data]}
    return body if key is None else {**body, "idempotency_key": key}


def test_a_repeat_under_a_key_answers_with_the_first_seqs(api: Api) -> None:
    first = api.call("POST", "", _keyed("k", 1, 2))
    api.append("between")
    again = api.call("POST", "", _keyed("k", 1, 2))
    assert (first.status, again.status) == (201, 200)
    assert again.json["seqs"] == first.json["seqs"] == [1, 2]
    assert (again.json["deduped"], again.json["created"], again.json["head_seq"]) == (True, False, 3)
    assert api.state()["head_seq"] == 3


def test_the_header_counts_when_the_body_has_no_key(api: Api) -> None:
    body = _keyed(None, 1)
    header = "Idempotency-Key: ключ".encode().decode("latin-1")
    assert api.call("POST", "", body, header).status == 201
    assert api.call("POST", "", _keyed("ключ", 1)).json["deduped"] is True
    assert api.call("POST", "", _keyed("other", 1), header).json["deduped"] is False


def test_a_key_in_the_header_has_the_same_bound(api: Api) -> None:
    answer = api.call("POST", "", _keyed(None, 1), "idempotency-key: " + "k" * 257)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "256" in answer.message


def test_the_same_key_with_other_records_is_a_mismatch(api: Api) -> None:
    api.call("POST", "", _keyed("k", 1))
    for body in (_keyed("k", 2), _keyed("k", 1, 1), {**_keyed("k", 1), "node": "n"}):
        api.refused(409, "idempotency_mismatch", "POST", "", body)


def test_a_key_is_forgotten_when_its_window_is_over(server: HttpServer, api: Api) -> None:
    api.put(idempotency_window_ms=1000)
    assert api.call("POST", "", _keyed("k", 1)).json["first_seq"] == 1
    server.pass_time(1001)
    again = api.call("POST", "", _keyed("k", 1)).json
    assert (again["first_seq"], again["deduped"]) == (2, False)


def test_repeats_that_are_sent_with_the_first_wait_for_its_outcome(api: Api) -> None:
    api.put(durable=True)
    body = b'{"records":[{"data":1}],"idempotency_key":"k"}'
    requests = [api.client.start("POST", api.path, body) for _ in range(5)]
    answers = [api.client.finish(one).json for one in requests]
    assert [answer["first_seq"] for answer in answers] == [1] * 5
    assert [answer["deduped"] for answer in answers] == [False, True, True, True, True]


def test_a_node_of_the_request_that_is_too_long_is_named_as_such(api: Api) -> None:
    """Not as that of the first record, which has none."""
    for node in ("n" * 129, "é" * 65):
        refused = api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1}], "node": node})
        assert refused.json["error"]["detail"] == {"field": "node", "max": 128}
        assert refused.message.startswith("node: ")
    body = {"records": [{"data": 1}, {"data": 1, "node": "n" * 129}], "node": "n" * 128}
    refused = api.refused(400, "invalid_request", "POST", "", body)
    assert refused.json["error"]["detail"]["field"] == "records[1].node"
