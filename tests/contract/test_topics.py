"""Topics as wholes: PUT, GET and DELETE of `/v0/topics/:topic`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import HttpServer

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "protect_cursors": False,
    "order_by": None,
    "paused": False,
    "retry": None,
    "fair_by": None,
    "schema": None,
    "schema_mode": "reject",
}
STATE_FIELDS = [
    "topic",
    "type",
    "head_seq",
    "earliest_seq",
    "evict_floor",
    "next_seq",
    "count",
    "bytes",
    "config",
    "effective_priority",
    "last_write_ts",
    "last_read_ts",
    "durable_seq",
    "epoch",
    "shard",
    "performance",
]


def test_a_put_creates_with_every_default_and_answers_201(api: Api) -> None:
    answer = api.call("PUT", "", {})
    assert answer.status == 201
    assert list(answer.json) == ["topic", "created", "config", "performance"]
    assert (answer.json["topic"], answer.json["created"]) == (api.topic, True)
    assert answer.json["config"] == DEFAULTS


def test_a_put_needs_no_body(api: Api) -> None:
    assert api.call("PUT").status == 201
    assert api.state()["config"] == DEFAULTS


def test_a_second_put_answers_200_and_is_merged_over_what_there_is(api: Api) -> None:
    api.put(cap_records=5, ttl_ms=1000)
    answer = api.call("PUT", "", {"ttl_ms": 2000})
    assert (answer.status, answer.json["created"]) == (200, False)
    assert answer.json["config"] == {**DEFAULTS, "cap_records": 5, "ttl_ms": 2000}
    assert api.state()["config"] == answer.json["config"]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"priority": 5000}, {"priority": 1000}),
        ({"priority": -5000}, {"priority": -1000}),
        ({"type": "queue", "lease_ms": 1}, {"type": "queue", "lease_ms": 100}),
        ({"type": "queue", "lease_ms": 10**12}, {"type": "queue", "lease_ms": 86_400_000}),
        ({"type": "queue", "claim_jitter_ms": 9000}, {"type": "queue", "claim_jitter_ms": 5000}),
        ({"durable": True}, {"durability": "fsync", "durable": True}),
        ({"durable": True, "durability": "memory"}, {"durability": "memory", "durable": False}),
        ({"durability": "fsync"}, {"durability": "fsync", "durable": True}),
        ({"ttl_ms": "10m", "cap_bytes": "64 MiB"}, {"ttl_ms": 600_000, "cap_bytes": 64 << 20}),
        (
            {"type": "queue", "lease_ms": "1.5 s", "claim_jitter_ms": "10ms", "idempotency_window_ms": "1h"},
            {
                "type": "queue",
                "lease_ms": 1500,
                "claim_jitter_ms": 10,
                "idempotency_window_ms": 3_600_000,
            },
        ),
        (
            {"ttl_ms": None, "cap_records": None, "cap_bytes": None, "idempotency_window_ms": None},
            {"ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "idempotency_window_ms": 0},
        ),
        (
            {"type": "queue", "claim_jitter_ms": None, "max_deliveries": None},
            {"type": "queue", "claim_jitter_ms": 0, "max_deliveries": 0},
        ),
        (
            {"type": "queue", "retry": {"base_ms": "2s"}},
            {"type": "queue", "retry": {"base_ms": 2000, "factor": 2.0, "max_ms": 3_600_000}},
        ),
        ({"type": "queue", "dead_letter": "elsewhere"}, {"type": "queue", "dead_letter": "elsewhere"}),
    ],
)
def test_what_a_put_stores(api: Api, sent: dict[str, Any], stored: dict[str, Any]) -> None:
    assert api.put(**sent)["config"] == {**DEFAULTS, **stored}


@pytest.mark.parametrize(
    "sent",
    [
        {"lease_ms": 10},
        {"claim_jitter_ms": 10},
        {"max_deliveries": 3},
        {"dead_letter": "elsewhere"},
        {"leases_durable": True},
        {"order_by": "tag"},
        {"paused": True},
    ],
)
def test_what_is_for_queues_is_refused_for_a_log(api: Api, sent: dict[str, Any]) -> None:
    (field,) = sent
    message = f'{field}: only queues have it, and topic "{api.topic}" is a log'
    answer = api.refused(400, "invalid_request", "PUT", "", sent)
    assert answer.message == f'{message}; to create a queue, add "type":"queue"'
    api.refused(404, "topic_not_found", "GET")
    config = api.put()["config"]
    assert api.refused(400, "invalid_request", "PUT", "", sent).message == message
    # What a topic reports may be sent back.
    assert api.put(**config)["config"] == config


def test_null_is_not_quoted_as_a_text(api: Api) -> None:
    api.put(type="queue", order_by="tag")
    answer = api.refused(409, "topic_exists_incompatible", "PUT", "", {"order_by": None})
    assert answer.message == 'order_by: must stay "tag", got null: it cannot change'


def test_one_record_is_counted_in_the_singular(api: Api) -> None:
    api.append(1, config={"cap_records": 1, "discard": "reject"})
    answer = api.refused(422, "topic_full", "POST", "", {"records": [{"data": 2}]})
    assert "it holds 1 record, cap_records is 1;" in answer.message
    answer = api.refused(409, "topic_not_empty", "DELETE", "?if_empty=true")
    assert answer.message.endswith("is not empty: it holds 1 record")


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"ttl_ms": -1}, "ttl_ms"),
        ({"cap_records": -1}, "cap_records"),
        ({"cap_bytes": 1 << 63}, "cap_bytes"),
        ({"cap_bytes": 1.0}, "cap_bytes"),
        ({"ttl_ms": "60"}, 'ttl_ms: "60" has no unit: send a number of milliseconds'),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": "soon"}, 'ttl_ms: must be a number of milliseconds or a duration such as "10m"'),
        ({"ttl_ms": "0.5ms"}, "ttl_ms: must be a whole number of milliseconds"),
        ({"cap_bytes": "64 MB/s"}, 'cap_bytes: must be a number of bytes or a size such as "64 MiB"'),
        ({"cap_bytes": "9999999999 GiB"}, f"cap_bytes: must be at most {(1 << 63) - 1}"),
        ({"lease_ms": None}, "lease_ms"),
        ({"discard": "new"}, "discard"),
        ({"durability": "best"}, "durability"),
        ({"durable": 1}, "durable"),
        ({"type": "tree"}, "type"),
        ({"dead_letter": "a/b"}, "dead_letter"),
    ],
)
def test_a_put_that_is_refused_names_the_field_and_creates_nothing(
    api: Api, sent: dict[str, Any], field: str
) -> None:
    assert field in api.refused(400, "invalid_request", "PUT", "", sent).message
    api.refused(404, "topic_not_found", "GET")


def test_a_topic_is_not_its_own_dead_letter(api: Api) -> None:
    assert "dead_letter" in api.refused(400, "invalid_request", "PUT", "", {"dead_letter": api.topic}).message


@pytest.mark.parametrize(("first", "then"), [("disk", "ephemeral"), ("ephemeral", "memory")])
def test_a_topic_is_ephemeral_for_life_or_never(api: Api, first: str, then: str) -> None:
    api.put(durability=first)
    api.refused(409, "topic_exists_incompatible", "PUT", "", {"durability": then})
    assert api.state()["config"]["durability"] == first


def test_the_state_of_an_empty_topic_in_the_order_of_its_fields(api: Api) -> None:
    api.put()
    state = api.state()
    assert list(state) == STATE_FIELDS
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (0, 1, 1, 0)
    assert (state["bytes"], state["durable_seq"], state["type"]) == (0, 0, "log")


def test_the_state_follows_what_is_written(api: Api) -> None:
    api.append(1, 2, 3, config={"durable": True})
    state = api.state()
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 1, 4, 3)
    assert state["durable_seq"] == 3
    assert state["bytes"] > 0
    assert state["last_write_ts"] == api.diff()["records"][-1]["$ts"]


def test_the_state_has_the_floor_below_which_records_were_lost(api: Api) -> None:
    api.put(cap_records=2)
    api.append(*range(5))
    assert (api.state()["evict_floor"], api.state()["earliest_seq"]) == (4, 4)
    api.delete(before_seq=5)
    assert (api.state()["evict_floor"], api.state()["earliest_seq"]) == (4, 5)


def test_reading_is_consumption_and_looking_is_not(api: Api) -> None:
    api.append(1)
    assert api.state()["last_read_ts"] == 0
    assert api.call("GET", "?touch=false").json["last_read_ts"] == 0
    api.diff()
    assert api.state()["last_read_ts"] > 0


def test_looking_never_creates(api: Api) -> None:
    for _ in range(2):
        assert api.topic in api.refused(404, "topic_not_found", "GET").message


def test_head_is_get_without_the_body(api: Api) -> None:
    api.put()
    api.append(1)
    answer = api.call("HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.fields["content-length"]) > 300
    assert api.state()["head_seq"] == 1


def test_a_delete_takes_everything_and_the_next_topic_of_the_name_is_new(api: Api) -> None:
    api.append(1, 2)
    before = api.state()["epoch"]
    answer = api.call("DELETE")
    assert answer.status == 200
    assert list(answer.json) == ["topic", "deleted", "routers_removed", "performance"]
    assert (answer.json["deleted"], answer.json["routers_removed"]) == (True, [])
    api.refused(404, "topic_not_found", "GET")
    api.refused(404, "topic_not_found", "POST", "/diff", {})
    assert api.append("new")["first_seq"] == 1
    assert api.state()["epoch"] != before


def test_deleting_what_is_absent_is_no_error(api: Api) -> None:
    answer = api.call("DELETE")
    assert (answer.status, answer.json["deleted"]) == (200, False)


@pytest.mark.parametrize("query", ["?if_empty=true", "?if_empty=1"])
def test_a_topic_that_has_to_be_empty_is_deleted_once_it_is(api: Api, query: str) -> None:
    api.append(1)
    api.refused(409, "topic_not_empty", "DELETE", query)
    api.delete(before_seq=2)
    assert api.call("DELETE", query).json["deleted"] is True


def test_a_body_where_none_is_taken_is_read_and_refused(api: Api) -> None:
    api.append(1)
    for method in ("GET", "DELETE"):
        answer = api.client.ask(method, api.path, b"\x00 no JSON", content_type=None)
        assert (answer.status, answer.code) == (400, "invalid_request")
    assert api.state()["count"] == 1


def test_expired_records_are_gone_from_the_state(server: HttpServer, api: Api) -> None:
    api.append(1, config={"ttl_ms": 1000})
    server.pass_time(1001)
    state = api.state()
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (0, 2, 1)


def test_a_change_of_class_is_what_the_next_write_is_acked_with(api: Api) -> None:
    assert api.append(1)["durability"] == "disk"
    for durability in ("fsync", "memory", "disk"):
        api.put(durability=durability)
        assert api.append(1)["durability"] == durability
