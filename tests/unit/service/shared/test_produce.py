"""`POST /produce`: shapes, results of partitions, statuses and bounds, over SQLite and files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.brokers.shared_calls import SharedCalls
from topicsd.broker.write.batcher import BatchLimits
from topicsd.service.shared.partition_bodies import COUNTED_BYTES_MIN


@pytest.fixture
def calls(tmp_path: Path) -> SharedCalls:
    return SharedCalls(tmp_path)


def test_the_results_are_in_the_order_of_the_request(calls: SharedCalls) -> None:
    answer = calls.produce(
        ("orders", 3, ["a"]), ("orders", 0, ["b", {"base64": "AAE="}]), ("audit", 0, ["c"])
    )
    assert answer.status == 200
    results = answer.json["results"]
    assert list(answer.json) == ["results", "success_count", "error_count"]
    assert list(results[1]) == [
        *("topic", "partition", "ok", "start_offset", "end_offset", "count", "index_key", "wal_uri")
    ]
    assert [(one["topic"], one["partition"], one["start_offset"], one["end_offset"]) for one in results] == [
        *(("orders", 3, 1, 1), ("orders", 0, 1, 2), ("audit", 0, 1, 1))
    ]
    assert results[0]["index_key"] == "llog/orders/partitions/3/index/00000000000000000001"
    assert (results[1]["ok"], results[1]["count"]) == (True, 2)
    assert (answer.json["success_count"], answer.json["error_count"]) == (3, 0)


def test_the_uri_is_of_an_object_that_exists(calls: SharedCalls) -> None:
    (result,) = calls.produce(("orders", 0, ["a"])).json["results"]
    assert result["wal_uri"].startswith(f"{calls.store_url}/llog/wal-shared/")
    assert Path(result["wal_uri"].removeprefix("file://")).is_file()


def test_a_partition_that_is_known_is_not_looked_up_again(calls: SharedCalls) -> None:
    calls.produce(("orders", 0, ["a"]))
    before = calls.catalog.calls["topics"], calls.catalog.calls["create"]
    assert calls.produce(("orders", 0, ["b"])).json["results"][0]["start_offset"] == 2
    assert (calls.catalog.calls["topics"], calls.catalog.calls["create"]) == before


def test_two_groups_of_a_new_partition_keep_their_order(calls: SharedCalls) -> None:
    answer = calls.produce(("orders", 0, ["a"]), ("orders", 0, ["b", "c"]))
    assert [one["start_offset"] for one in answer.json["results"]] == [1, 2]
    assert calls.catalog.calls["create"] == 1
    values = [one["value"] for one in calls.consume(("orders", 0, 1)).json["results"][0]["records"]]
    assert values == ["a", "b", "c"]


def test_one_failure_undoes_nothing_of_the_others_and_is_409(calls: SharedCalls) -> None:
    calls.produce(("fenced", 0, ["a"]))
    calls.ask("fence", "fenced")
    answer = calls.produce(("fenced", 0, ["b"]), ("orders", 0, ["a"]))
    assert answer.status == 409
    failed, written = answer.json["results"]
    assert list(failed) == ["topic", "partition", "ok", "error_type", "error"]
    assert (failed["ok"], failed["error_type"]) == (False, "TopicFenced")
    assert (written["ok"], written["start_offset"]) == (True, 1)
    assert (answer.json["success_count"], answer.json["error_count"]) == (1, 1)


def test_a_full_queue_is_503_when_it_refuses_all_and_409_when_it_refuses_some(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path, BatchLimits(pending_bytes=100))
    calls.produce(("orders", 0, ["a"]))
    waiting = calls.begin("produce", body=_body(("orders", 0, ["x" * 200])))
    answer = calls.produce(("orders", 0, ["b"]), ("orders", 0, ["c"]))
    assert answer.status == 503
    assert {one["error_type"] for one in answer.json["results"]} == {"BackPressureRejected"}
    assert b"retry-after: 1\r\n" in answer.fields.lower()
    calls.wait_ms(1000)
    assert waiting.answer.status == 200
    mixed = calls.produce(("orders", 0, ["x" * 200]), ("orders", 0, ["c"]))
    assert mixed.status == 409
    assert [one["ok"] for one in mixed.json["results"]] == [True, False]
    counts = calls.broker.counts
    assert (counts.produce_requests, counts.produce_records) == (4, 3)
    assert (counts.produce_errors, counts.produce_throttled) == (3, 3)


def test_a_local_topic_of_the_name_is_a_failure_and_gets_no_second_topic(calls: SharedCalls) -> None:
    calls.local.add("orders")
    answer = calls.produce(("orders", 0, ["a"]), ("orders", 1, ["a"]))
    assert answer.status == 409
    assert [one["ok"] for one in answer.json["results"]] == [False, True]
    assert answer.json["results"][0]["error_type"] == "TopicExistsIncompatible"
    assert calls.catalog.topics(["orders"]) == [None]


def test_a_catalog_that_is_away_fails_the_partitions(calls: SharedCalls) -> None:
    calls.catalog.faults["topics"] = _faults("lost request")
    answer = calls.produce(("orders", 0, ["a"]))
    assert (answer.status, answer.json["results"][0]["error_type"]) == (409, "CatalogUnavailable")
    assert calls.produce(("orders", 0, ["a"])).status == 200


def test_a_lost_answer_of_the_creation_makes_no_second_topic(calls: SharedCalls) -> None:
    calls.catalog.faults["create"] = _faults("lost answer")
    assert calls.produce(("orders", 0, ["a"])).status == 409
    assert calls.produce(("orders", 0, ["a"])).json["results"][0]["start_offset"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topic_partitions"),
        ({"topic_partitions": []}, "topic_partitions"),
        ({"topic_partitions": {}}, "topic_partitions"),
        ([("", 0, ["a"])], "topic_partitions[0].topic"),
        ([("ok", 0, ["a"]), ("a b", 0, ["a"])], "topic_partitions[1].topic"),
        ([("orders:3", 0, ["a"])], "topic_partitions[0].topic"),
        ([("orders", -1, ["a"])], "topic_partitions[0].partition"),
        ([("orders", 1 << 31, ["a"])], "topic_partitions[0].partition"),
        ([("o" * 254, 10, ["a"])], "topic_partitions[0].partition"),
        ([("orders", "0", ["a"])], "topic_partitions[0].partition"),
        ([("orders", 0, [])], "topic_partitions[0].records"),
        ([("orders", 0, ["a", 1])], "topic_partitions[0].records[1]"),
        ([("orders", 0, [None])], "topic_partitions[0].records[0]"),
        ([("orders", 0, [{"base64": "A"}])], "topic_partitions[0].records[0]"),
        ([("orders", 0, [{"base64": "AAE=", "x": 1}])], "topic_partitions[0].records[0]"),
        ([("orders", 0, ["x" * 2000])], "topic_partitions[0].records[0]"),
        ([("orders", 0, ["a"] * 6), ("orders", 1, ["a"] * 5)], "records"),
    ],
)
def test_a_wrong_shape_is_400_names_the_field_and_writes_nothing(
    tmp_path: Path, body: Any, field: str
) -> None:
    calls = SharedCalls(tmp_path, max_record_bytes=1024, max_batch_records=10)
    answer = calls.ask("produce", body=_body(*body) if isinstance(body, list) else body)
    assert answer.status == 400
    assert (answer.field, answer.json["error"]["message"].startswith(field)) == (field, True)
    assert calls.catalog.calls["create"] == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"topic_partitions":[1]}', b"\xff", b"{} x"])
def test_a_malformed_body_is_400(calls: SharedCalls, body: bytes) -> None:
    assert calls.ask("produce", body=body).status == 400


def test_records_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path, max_batch_records=10)
    many = b'{"topic_partitions":[{"topic":"a","partition":0,"records":[%b""]}]}' % (b'"",' * 100_000)
    answer = calls.ask("produce", body=many)
    assert (answer.status, answer.code, answer.field) == (400, "batch_too_large", "records")
    empty = b'{"topic_partitions":[%b{}]}' % (b'{"records":[]},' * 100_000)
    assert calls.ask("produce", body=empty).code == "batch_too_large"
    # Commas in a text are no records.
    assert calls.produce(("a", 0, ["," * 10_000])).status == 200


def test_a_key_must_cover_each_topic(calls: SharedCalls) -> None:
    answer = calls.produce(("a.x", 0, ["a"]), ("b.x", 0, ["a"]), prefixes=("a.",))
    assert (answer.status, answer.code, answer.field) == (403, "forbidden", "topic_partitions[1].topic")
    assert calls.catalog.calls["create"] == 0


def test_text_and_bytes_come_back_as_they_were(calls: SharedCalls) -> None:
    texts = ["", "a,b", 'quote " and \\', "\u0000\n", "\U0001f600 ü", "x" * 100_000]
    data = base64.b64encode(bytes(range(256))).decode()
    assert calls.produce(("orders", 0, [*texts, {"base64": data}, {"base64": ""}])).status == 200
    (result,) = calls.consume(("orders", 0, 1)).json["results"]
    assert [one.get("value") for one in result["records"]] == [*texts, None, None]
    assert [one.get("base64") for one in result["records"][-2:]] == [data, ""]


@pytest.mark.parametrize(
    "records",
    [
        b'["a","b"]',
        b' [ "a" ,\n"b"\t, "" ]',
        b'["",",","\\",\\"","\\\\",""]',
        b'["\\ud83d\\ude00","\\u0000","\\/"]',
        '["ü","\U0001f600"]'.encode(),
        b'["a",{ "base64" : "AAE=" },"b"]',
        b'[{"base64":"AAE="},{"base64":""}]',
        b'["a",{"base64":"AA==","base64":"AAE="}]',
    ],
)
def test_records_are_kept_however_they_are_written(calls: SharedCalls, records: bytes) -> None:
    assert calls.ask("produce", body=_raw_body(records)).status == 200
    model = [{"value": one} if isinstance(one, str) else one for one in json.loads(records)]
    (result,) = calls.consume(("orders", 0, 1)).json["results"]
    records_read = [{key: one[key] for key in one if key != "offset"} for one in result["records"]]
    assert records_read == model
    assert [one["offset"] for one in result["records"]] == list(range(1, len(model) + 1))


def test_the_last_of_two_lists_counts(calls: SharedCalls) -> None:
    assert calls.ask("produce", body=_raw_body(b'[1],"records":["a","b"]')).status == 200
    assert calls.ask("produce", body=_raw_body(b'["a"],"records":[1]')).field.endswith("records[0]")
    (result,) = calls.consume(("orders", 0, 1)).json["results"]
    assert [one["value"] for one in result["records"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("records", "index"),
    [
        (b'["a",1]', 1),
        (b'["a","b",null]', 2),
        (b"[true]", 0),
        (b'["a",-1.5,"b"]', 1),
        (b'["a",["b"]]', 1),
        (b'["a",{}]', 1),
        (b'["a",{"base64":null}]', 1),
        (b'["a",{"base64":"AA ="}]', 1),
        (b'["a",{"Base64":"AAE="}]', 1),
    ],
)
def test_what_is_neither_text_nor_bytes_is_named(calls: SharedCalls, records: bytes, index: int) -> None:
    answer = calls.ask("produce", body=_raw_body(records))
    assert (answer.status, answer.field) == (400, f"topic_partitions[0].records[{index}]")
    assert calls.catalog.calls["create"] == 0


@pytest.mark.parametrize(
    "records",
    [b'["\xff"]', b'["a","\xed\xa0\x80"]', b'["a"', b'["a]', b'["a",]', b'["a" "b"]', b'["\\"]', b'"a"'],
)
def test_what_is_no_json_or_no_list_writes_nothing(calls: SharedCalls, records: bytes) -> None:
    assert calls.ask("produce", body=_raw_body(records)).status == 400
    assert calls.catalog.calls["create"] == 0


def test_a_body_of_any_size_has_at_most_so_many_records(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path, max_batch_records=10)
    for count in (10, 11, 100, COUNTED_BYTES_MIN):
        answer = calls.ask("produce", body=_raw_body(b"[%b]" % b",".join([b'""'] * count)))
        assert answer.status == (200 if count == 10 else 400)
        assert count == 10 or (answer.code, answer.field) == ("batch_too_large", "records")


def test_each_size_is_compared_with_its_bound(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path, max_record_bytes=10)
    assert calls.produce(("orders", 0, ["x" * 8, "y"])).status == 200
    answer = calls.produce(("orders", 0, ["x" * 8, "y" * 9]))
    assert (answer.code, answer.field) == ("record_too_large", "topic_partitions[0].records[1]")


def _raw_body(records: bytes) -> bytes:
    return b'{"topic_partitions":[{"topic":"orders","partition":0,"records":%b}]}' % records


def _body(*groups: tuple[str, Any, list[Any]]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic": topic, "partition": partition, "records": records}
            for topic, partition, records in groups
        ]
    }


def _faults(*faults: Any) -> Any:
    from collections import deque

    return deque(faults)
