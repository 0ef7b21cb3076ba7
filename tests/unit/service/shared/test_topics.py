"""The operations of `/v0/topics` on shared topics, against a broker on SQLite and files."""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.brokers.shared_calls import LOCAL, SharedCalls
from topicsd.service.shared.operations import FEATURES

DEFAULTS = {
    "placement": "shared",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "latency": "normal",
    "idempotency_window_ms": 120_000,
}
STATE_FIELDS = [
    "topic",
    "type",
    "placement",
    "log_state",
    "head_seq",
    "earliest_seq",
    "evict_floor",
    "next_seq",
    "count",
    "config",
    "config_version",
    "created_ts",
    "durable_seq",
    "epoch",
    "performance",
]


@pytest.fixture
def calls(tmp_path: Path) -> SharedCalls:
    return SharedCalls(tmp_path)


# -- create and configure


def test_a_put_creates_and_a_second_one_changes_what_it_names(calls: SharedCalls) -> None:
    created = calls.create("a", ttl_ms="1h", latency="low").json
    assert list(created) == ["topic", "created", "config", "performance"]
    assert created["config"] == {**DEFAULTS, "ttl_ms": 3_600_000, "latency": "low"}
    again = calls.ask("put_topic", "a", {"cap_bytes": "1 MiB"})
    assert (again.status, again.json["created"]) == (200, False)
    assert again.json["config"] == {**created["config"], "cap_bytes": 1 << 20}
    state = calls.ask("topic_state", "a").json
    assert (state["config"], state["config_version"]) == (again.json["config"], 2)


def test_a_put_that_changes_nothing_writes_nothing(calls: SharedCalls) -> None:
    config = calls.create("a", ttl_ms=5).json["config"]
    assert calls.ask("put_topic", "a", config).status == 200
    assert calls.catalog.calls["configure"] == 0


def test_changes_of_two_brokers_are_both_kept(tmp_path: Path) -> None:
    calls, other = SharedCalls(tmp_path), SharedCalls(tmp_path)
    calls.create("a")
    other.ask("topic_state", "a")
    waiting = other.call("a", {"ttl_ms": 7})
    other.operations.start("put_topic", waiting, lambda: None)
    calls.ask("put_topic", "a", {"cap_records": 9})
    other.wait_ms(50)
    config = waiting.answer.json["config"]
    assert (config["ttl_ms"], config["cap_records"]) == (7, 9)


@pytest.mark.parametrize(
    ("config", "status", "field"),
    [
        ({"ttl_ms": -1}, 400, "ttl_ms"),
        ({"ttl_ms": "soon"}, 400, "ttl_ms"),
        ({"cap_records": 1 << 63}, 400, "cap_records"),
        ({"latency": "lowest"}, 400, "latency"),
        ({"idempotency_window_ms": "6m"}, 400, "idempotency_window_ms"),
        ({"ttl": 1}, 400, "ttl"),
        ({"type": "queue"}, 409, "type"),
        ({"durability": "disk"}, 409, "durability"),
        ({"durable": False}, 409, "durable"),
        ({"discard": "reject"}, 409, "discard"),
        ({"dead_letter": "b"}, 409, "dead_letter"),
        ({"protect_cursors": True}, 409, "protect_cursors"),
        ({"priority": 5}, 409, "priority"),
        ({"schema": {}}, 409, "schema"),
        ({"schema_mode": "warn"}, 409, "schema_mode"),
        ({"placement": "local"}, 409, "placement"),
    ],
)
def test_a_wrong_configuration_names_the_field(
    calls: SharedCalls, config: dict[str, Any], status: int, field: str
) -> None:
    calls.create("a")
    answer = calls.ask("put_topic", "a", config)
    assert (answer.status, answer.json["error"]["detail"].get("field", field)) == (status, field)
    new = calls.ask("put_topic", "b", {"placement": "shared", **config})
    if field not in ("placement", "ttl", "latency"):
        assert new.status == status
        assert calls.catalog.topics(["b"]) == [None]


def test_what_a_shared_topic_does_anyway_may_be_said(calls: SharedCalls) -> None:
    calls.create("a", type="log", durability="fsync", durable=True, discard="old")


def test_a_name_of_a_local_topic_is_409(calls: SharedCalls) -> None:
    calls.local.add("a")
    answer = calls.ask("put_topic", "a", {"placement": "shared"})
    assert (answer.status, answer.code) == (409, "topic_exists_incompatible")
    assert calls.catalog.topics(["a"]) == [None]


def test_requests_during_the_creation_are_for_the_shared_topic(calls: SharedCalls) -> None:
    put = calls.call("a", {"placement": "shared"})
    append = calls.call("a", {"records": [{"data": 1}]})
    for operation, call in (("put_topic", put), ("append", append)):
        calls.operations.start(operation, call, partial(call.send, b"{}", LOCAL))
    calls.wait_ms(500)
    assert (put.answer.status, append.answer.status) == (201, 200)


# -- append


def test_an_append_answers_as_that_to_a_local_topic(calls: SharedCalls) -> None:
    calls.create("a")
    answer = calls.append("a", 1, {"b": 2})
    assert answer.status == 200
    assert list(answer.json) == [
        *("topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped"),
        *("durability", "performance"),
    ]
    body = answer.json
    assert (body["seqs"], body["head_seq"], body["count"], body["durability"]) == ([1, 2], 2, 2, "fsync")
    without = calls.ask("append", "a", {"records": [{"data": 1}]}, query="return_seqs=false").json
    assert ("seqs" in without, without["first_seq"]) == (False, 3)


def test_an_append_creates_a_shared_topic_only_when_it_says_so(calls: SharedCalls) -> None:
    assert calls.append("a", 1).status == LOCAL
    assert calls.append("a", 1, config={"ttl_ms": 5}).status == LOCAL
    created = calls.append("a", 1, config={"placement": "shared", "ttl_ms": 5})
    assert (created.status, created.json["created"], created.json["seqs"]) == (201, True, [1])
    assert calls.ask("topic_state", "a").json["config"]["ttl_ms"] == 5
    assert calls.append("b", 1, config={"placement": "shared"}, create=False).status == LOCAL
    refused = calls.append("b", 1, config={"placement": "shared", "ttl_ms": -1})
    assert (refused.status, refused.field) == (400, "config.ttl_ms")


def test_a_configuration_needs_the_scope_admin(calls: SharedCalls) -> None:
    body = {"records": [{"data": 1}], "config": {"placement": "shared"}}
    answer = calls.ask("append", "a", body, is_admin=False)
    assert (answer.status, answer.code, answer.field) == (403, "forbidden", "config")
    assert calls.catalog.topics(["a"]) == [None]


def test_a_key_is_recognised_by_any_broker(tmp_path: Path) -> None:
    calls, other = SharedCalls(tmp_path), SharedCalls(tmp_path)
    calls.create("a")
    first = calls.append("a", 1, 2, idempotency_key="k").json
    again = other.append("a", 1, 2, idempotency_key="k").json
    assert (again["seqs"], again["deduped"], first["deduped"]) == (first["seqs"], True, False)
    mismatch = other.append("a", 3, idempotency_key="k")
    assert (mismatch.status, mismatch.code) == (409, "idempotency_mismatch")


def test_keys_are_ignored_when_the_window_is_off(calls: SharedCalls) -> None:
    calls.create("a", idempotency_window_ms=0)
    assert [calls.append("a", 1, idempotency_key="k").json["seqs"] for _ in range(2)] == [[1], [2]]


def test_a_retry_that_nothing_would_recognise_is_in_doubt(calls: SharedCalls) -> None:
    calls.create("a", idempotency_window_ms=0)
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    answer = calls.ask("append", "a", body, retried_after_ms=100)
    assert (answer.status, answer.code) == (504, "in_doubt")
    calls.create("b")
    assert calls.ask("append", "b", body, retried_after_ms=100).status == 200


def test_the_numbers_of_a_producer_are_kept(calls: SharedCalls) -> None:
    calls.create("a")

    def write(number: int, *values: object) -> Any:
        return calls.append("a", *values, producer={"id": "p", "seq": number})

    assert write(7, 1).json["seqs"] == [1]
    assert (write(7, 1).json["seqs"], write(7, 1).json["deduped"]) == ([1], True)
    assert write(8, 2).json["seqs"] == [2]
    assert (write(7, 1).json["seqs"], write(7, 1).json["deduped"]) == ([], True)
    gap = write(10, 3)
    assert (gap.status, gap.code, gap.json["error"]["detail"]["next_seq"]) == (409, "producer_gap", 9)


@pytest.mark.parametrize(
    ("envelope", "status", "field"),
    [
        ({"records": []}, 400, "records"),
        ({"records": [{"data": 1}] * 11}, 400, "records"),
        ({"records": [{"data": 1}, {"data": "x" * 2000}]}, 400, "records[1]"),
        ({"records": [{"data": 1, "tag": "t" * 5000}]}, 400, "records[0].tag"),
        ({"records": [{"data": 1}], "idempotency_key": ""}, 400, "idempotency_key"),
        ({"records": [{"data": 1}], "producer": {"id": "", "seq": 1}}, 400, "producer.id"),
        ({"records": [{"data": 1}], "producer": {"id": "p", "seq": -1}}, 400, "producer.seq"),
        (
            {"records": [{"data": 1}], "idempotency_key": "k", "producer": {"id": "p", "seq": 1}},
            400,
            "producer",
        ),
        ({"records": [{"data": 1}], "delay_ms": 5}, 409, "delay_ms"),
        ({"records": [{"data": 1}], "not_before": "1m"}, 409, "not_before"),
        ({"records": [{"data": 1}], "expected_head": 0}, 409, "expected_head"),
    ],
)
def test_a_wrong_append_names_the_field_and_writes_nothing(
    tmp_path: Path, envelope: dict[str, Any], status: int, field: str
) -> None:
    calls = SharedCalls(tmp_path, max_record_bytes=1024, max_batch_records=10)
    calls.create("a")
    answer = calls.ask("append", "a", envelope)
    assert (answer.status, answer.field) == (status, field)
    assert calls.ask("topic_state", "a").json["head_seq"] == 0


def test_a_catalog_that_is_away_is_503_with_a_time_to_retry(calls: SharedCalls) -> None:
    calls.create("a")
    for operation, verb, body in (
        ("topic_state", "topics", None),
        ("put_topic", "configure", {"ttl_ms": 5}),
        ("fence", "fence", None),
        ("delete_topic", "forget", None),
    ):
        calls.catalog.faults[verb] = deque(["lost request"])
        answer = calls.ask(operation, "a", body)
        assert (answer.status, answer.code) == (503, "catalog_unavailable"), operation
        assert b"retry-after: 1" in answer.fields.lower()
    calls.catalog.faults["topics"] = deque(["lost request"])
    # It may be a shared topic, so no local one is created.
    assert calls.append("new", 1).code == "catalog_unavailable"


# -- state, trim, fence, delete


def test_the_state_has_the_members_that_mean_something(calls: SharedCalls) -> None:
    calls.create("a")
    calls.append("a", 1, 2, 3)
    calls.ask("delete_records", "a", {"before_seq": 2})
    state = calls.ask("topic_state", "a", query="last=1").json
    assert list(state) == [*STATE_FIELDS[:-1], "from_seq", "performance"]
    assert (state["head_seq"], state["earliest_seq"], state["count"], state["from_seq"]) == (3, 2, 2, 2)
    assert state["log_state"] == "OPEN"
    assert calls.ask("topic_state", "none").status == LOCAL


def test_records_are_deleted_from_the_front_only(calls: SharedCalls) -> None:
    calls.create("a")
    calls.append("a", 1, 2, 3)
    answer = calls.ask("delete_records", "a", {"before_seq": 3}).json
    assert list(answer) == ["topic", "deleted", "earliest_seq", "head_seq", "count", "performance"]
    assert (answer["deleted"], answer["earliest_seq"], answer["count"]) == (2, 3, 1)
    assert calls.ask("delete_records", "a", {"before_seq": 2}).json["deleted"] == 0
    assert calls.ask("delete_records", "a", {"before_seq": 99}).json["earliest_seq"] == 4
    for field in ("match", "seqs"):
        refused = calls.ask("delete_records", "a", {field: "x" if field == "match" else [1]})
        assert (refused.status, refused.code, refused.field) == (409, "not_supported", field)
    assert calls.ask("delete_records", "a", {}).field == "before_seq"


def test_a_fenced_topic_takes_no_records_until_it_is_open_again(calls: SharedCalls) -> None:
    calls.create("a")
    calls.append("a", 1)
    assert calls.ask("fence", "a").json["log_state"] == "FENCED"
    refused = calls.append("a", 2)
    assert (refused.status, refused.code) == (409, "topic_fenced")
    opened = calls.ask("unfence", "a").json
    assert (opened["log_state"], opened["head_seq"]) == ("OPEN", 1)
    assert calls.append("a", 2).json["seqs"] == [2]


def test_a_deleted_topic_is_gone_and_a_new_one_has_another_epoch(calls: SharedCalls) -> None:
    calls.create("a")
    epoch = calls.ask("topic_state", "a").json["epoch"]
    calls.append("a", 1)
    refused = calls.ask("delete_topic", "a", query="if_empty=true")
    assert (refused.status, refused.code) == (409, "topic_not_empty")
    deleted = calls.ask("delete_topic", "a").json
    assert (deleted["deleted"], deleted["routers_removed"]) == (True, [])
    assert calls.ask("delete_topic", "a").status == LOCAL
    calls.create("a")
    assert calls.ask("topic_state", "a").json["epoch"] != epoch
    assert calls.append("a", 1).json["seqs"] == [1]


@pytest.mark.parametrize("operation", sorted(FEATURES))
def test_what_a_shared_topic_does_not_have_is_409_and_named(calls: SharedCalls, operation: str) -> None:
    calls.create("a")
    answer = calls.ask(operation, "a", {})
    assert (answer.status, answer.code) == (409, "not_supported")
    assert answer.json["error"]["detail"]["feature"] == FEATURES[operation]
    assert calls.ask(operation, "none", {}).status == LOCAL


# -- names that are no shared topics


def test_the_catalog_is_asked_once_a_moment_for_a_name_that_it_does_not_have(calls: SharedCalls) -> None:
    for _ in range(3):
        assert calls.ask("topic_state", "none").status == LOCAL
    assert calls.catalog.calls["topics"] == 1
    # A request that may create a local topic asks each time.
    assert calls.append("none", 1).status == LOCAL
    assert calls.catalog.calls["topics"] == 2
    calls.wait_ms(1100)
    calls.ask("topic_state", "none")
    assert calls.catalog.calls["topics"] == 3


def test_a_topic_of_another_broker_is_known_after_a_moment_and_at_once_for_writes(tmp_path: Path) -> None:
    calls, other = SharedCalls(tmp_path), SharedCalls(tmp_path)
    assert calls.ask("topic_state", "a").status == LOCAL
    other.create("a")
    assert calls.append("a", 1).status == 200
    assert calls.ask("topic_state", "a").status == 200


# -- records of bytes


def test_a_body_of_bytes_is_appended_as_one_record_and_read_alone(calls: SharedCalls) -> None:
    calls.create("a")
    answer = calls.upload("a", b"\x00\xff", query="tag=t&node=n")
    assert (answer.status, answer.json["seqs"], answer.json["durability"]) == (200, [1], "fsync")
    [record] = calls.ask("diff", "a", {"after_seq": 0, "include_tags": True}).json["records"]
    assert (record["data_base64"], record["$tag"], record["$node"]) == ("AP8=", "t", "n")
    read = calls.ask("record", "a", item="1")
    assert (read.status, read.body, read.fields) == (
        *(200, b"\x00\xff"),
        b"content-type: application/octet-stream\r\n",
    )
    calls.append("a", {"n": 1})
    read = calls.ask("record", "a", item="2")
    assert (read.status, read.body, read.fields) == (200, b'{"n": 1}', b"")
    assert calls.upload("a", b"", query="return_seqs=false").json["last_seq"] == 3
    assert calls.ask("record", "a", item="3").body == b""


def test_a_key_recognises_a_body_of_bytes_at_any_broker(tmp_path: Path) -> None:
    calls, other = SharedCalls(tmp_path), SharedCalls(tmp_path)
    calls.create("a")
    first = calls.upload("a", b"1", key="k").json
    again = other.upload("a", b"1", key="k").json
    assert (again["seqs"], again["deduped"], first["deduped"]) == ([1], True, False)
    assert other.upload("a", b"2", key="k").code == "idempotency_mismatch"
    # The same bytes as JSON are other records.
    assert other.append("a", 1, idempotency_key="k").code == "idempotency_mismatch"


@pytest.mark.parametrize(
    ("data", "query", "status", "field"),
    [
        (b"x" * 1025, "", 413, None),
        (b"x", "tag=" + "t" * 5000, 400, "tag"),
        (b"x", "node=" + "n" * 5000, 400, "node"),
        (b"x", "create=maybe", 400, "create"),
        (b"x", "return_seqs=maybe", 400, "return_seqs"),
    ],
)
def test_a_wrong_body_of_bytes_writes_nothing(
    tmp_path: Path, data: bytes, query: str, status: int, field: str | None
) -> None:
    calls = SharedCalls(tmp_path, max_record_bytes=1024)
    calls.create("a")
    answer = calls.upload("a", data, query)
    assert answer.status == status, answer.body
    assert answer.json["error"].get("detail", {}).get("field") == field
    assert calls.ask("topic_state", "a").json["head_seq"] == 0
    assert calls.ask("append_record", "a", data[:1]).code == "unsupported_media_type"


def test_a_record_that_is_not_there_is_not_found(calls: SharedCalls) -> None:
    calls.create("a")
    for _ in range(3):
        calls.upload("a", b"x")
    calls.ask("delete_records", "a", {"before_seq": 2})
    for item, status in (("1", 404), ("2", 200), ("3", 200), ("4", 404), ("99", 404), ("0", 400), ("x", 400)):
        answer = calls.ask("record", "a", item=item)
        assert answer.status == status, item
        if status == 404:
            assert answer.code == "not_found"
    assert calls.upload("none", b'"placement"').status == LOCAL
    assert calls.ask("record", "none", item="1").status == LOCAL


# -- counts of requests


def test_requests_are_counted_by_kind_as_those_of_local_topics(calls: SharedCalls) -> None:
    calls.create("a")
    counts = calls.counts
    calls.append("a", 1, 2, 3)
    calls.upload("a", b"x")
    assert (counts.appends.count, counts.records_beyond_first) == (2, 2)
    calls.produce(("a", 0, ["x", "y"]), ("b", 0, ["z"]))
    assert (counts.appends.count, counts.records_beyond_first) == (3, 4)
    calls.ask("fence", "a")
    assert calls.append("a", 1).status == 409
    assert calls.produce(("a", 0, ["x"])).status == 409
    assert (counts.appends.count, counts.records_beyond_first) == (3, 4)
    assert (calls.broker.counts.produce_requests, calls.broker.counts.produce_errors) == (5, 2)
    calls.ask("diff", "a", {"after_seq": 0})
    calls.consume(("a", 0, 1))
    assert (counts.reads.count, counts.waited_reads.count, calls.broker.counts.consume_waits) == (2, 0, 0)
    calls.consume(("a", 0, 7), ("b", 0, 2), max_wait_ms=50)
    assert (counts.reads.count, counts.waited_reads.count, calls.broker.counts.consume_waits) == (2, 1, 1)
    assert calls.consume(("none", 0, 1)).status == 409
    assert (counts.reads.count, counts.waited_reads.count) == (2, 1)


def test_the_first_write_after_another_node_deleted_the_name_is_503_and_the_next_one_is_new(
    tmp_path: Path,
) -> None:
    calls, other = SharedCalls(tmp_path), SharedCalls(tmp_path)
    for name in ("a", "b"):
        calls.create(name)
        assert calls.append(name, 1).status == 200
        assert other.ask("delete_topic", name).status == 200
    first = calls.append("a", 2)
    assert (first.status, first.code) == (503, "not_ready")
    assert calls.append("a", 2).status == LOCAL
    (failure,) = calls.produce(("b", 0, ["x"])).json["results"]
    assert failure["error_type"] == "NotReady"
    (result,) = calls.produce(("b", 0, ["x"])).json["results"]
    assert (result["ok"], result["start_offset"]) == (True, 1)


NEWER = b'{"placement":"shared","tier":"cold","latency":"ultra","ttl_ms":3600000}'
UNREADABLE = b'{"placement":"shared","ttl_ms":"soon"}'


def test_a_configuration_of_a_newer_release_is_used_as_far_as_it_is_known(calls: SharedCalls) -> None:
    calls.catalog.create("a", 7, NEWER)
    assert calls.produce(("a", 0, ["x"])).status == 200
    assert calls.append("a", "y").status == 200
    assert calls.ask("topic_state", "a").json["config"]["latency"] == "ultra"
    config = calls.ask("put_topic", "a", {"ttl_ms": 5}).json["config"]
    assert (config["ttl_ms"], config["latency"]) == (5, "ultra")
    answer = calls.ask("put_topic", "a", {"latency": "ultra"})
    assert (answer.status, answer.field) == (400, "latency")


def test_a_configuration_that_cannot_be_read_fails_its_partition_only(
    calls: SharedCalls, quiet_log: None
) -> None:
    calls.catalog.create("a", 7, UNREADABLE)
    answer = calls.produce(("a", 0, ["x"]), ("b", 0, ["y"]))
    assert answer.status == 409
    assert [one["ok"] for one in answer.json["results"]] == [False, True]
    assert answer.json["results"][0]["error_type"] == "Internal"


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("put_topic", {"placement": "shared"}),
        ("append", {"records": [{"data": 1}], "config": {"placement": "shared"}}),
    ],
)
def test_a_creation_that_meets_a_configuration_that_cannot_be_read_is_answered(
    calls: SharedCalls, quiet_log: None, operation: str, body: Any
) -> None:
    call = calls.call("a", body)
    calls.operations.start(operation, call, lambda: None)
    while not calls.catalog.calls["topics"]:
        for thread in calls.threads:
            thread.run_one()
    calls.catalog.create("a", 7, UNREADABLE)
    calls.settle()
    assert (call.answer.status, call.answer.code) == (500, "internal")
