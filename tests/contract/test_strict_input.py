"""Unknown names and wrong values are refused by the name of their field or parameter."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from shared.contract.endpoints import ENDPOINTS, Endpoint
from tests.contract.api import Api
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer

BODIES: dict[str, dict[str, Any]] = {
    "put_topic": {"ttl_ms": 1000},
    "append": {"records": [{"data": 1}]},
    "diff": {"after_seq": 0},
    "delete_records": {"before_seq": 1},
    "put_cursor": {"after_seq": 0},
    "put_schedule": {"cron": "@daily"},
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
    "redrive": {"max": 1},
    "move": {"shard": 0},
    "reshard": {"count": 1},
    "restore": {"folder": "0123456789abcdef"},
    "seal": {"accept_loss": False},
    "adopt": {"accept_loss": False},
    "put_router": {"source": "a", "dest": "b"},
    "create_watch": {"topics": {"a": {}}},
    "put_key": {"scopes": ["read"]},
    "rotate_key": {"overlap_ms": 0},
}


def _path(endpoint: Endpoint, topic: str) -> str:
    # Names of keys are shorter than those of all else.
    names = {":key": f"x{quote(topic[:60])}"}
    return "/".join(
        names.get(part, f"x{quote(topic)}") if part.startswith(":") else part
        for part in endpoint.pattern.split("/")
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.pattern}")
def test_every_endpoint_refuses_an_unknown_parameter(api: Api, endpoint: Endpoint) -> None:
    body = BODIES.get(endpoint.operation)
    known = next(iter(sorted(endpoint.parameters)), "")
    answer = api.client.ask(endpoint.method, f"{_path(endpoint, api.topic)}?{known}=1&{known}z=1", body)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert answer.json["error"]["detail"] == {"field": f"{known}z"}
    hint = f"did you mean {known}?" if known else "none is allowed"
    assert answer.message == f"{known}z: unknown parameter{',' if known else ';'} {hint}"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.pattern}")
def test_every_endpoint_refuses_a_repeated_parameter(api: Api, endpoint: Endpoint) -> None:
    body = BODIES.get(endpoint.operation)
    for name in sorted(endpoint.parameters):
        spelled = f"%{ord(name[0]):02x}{name[1:]}"
        for query in (f"{name}=1&{name}=1", f"{name}=&&{spelled}=2"):
            answer = api.client.ask(endpoint.method, f"{_path(endpoint, api.topic)}?{query}", body)
            assert (answer.status, answer.code) == (400, "invalid_request"), answer
            assert answer.json["error"]["detail"] == {"field": name}
            assert answer.message == f"{name}: must be given once"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.pattern}")
def test_every_body_refuses_an_unknown_field(api: Api, endpoint: Endpoint) -> None:
    # The body of a record is any bytes, and this server has no brokers (`test_shared_topics.py`).
    if not endpoint.takes_body or endpoint.is_broker or endpoint.operation == "append_record":
        return
    body = BODIES[endpoint.operation]
    known = next(iter(body), "")
    answer = api.client.ask(endpoint.method, _path(endpoint, api.topic), {**body, f"{known}z": 1})
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    hint = f", did you mean {known}?" if known else ""
    assert answer.message == f"{known}z: unknown field{hint}"
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize(
    ("rest", "body", "message"),
    [
        ("", {"records": [{"data": 1}], "expected_head": -5}, "expected_head: must be at least 0, got -5"),
        ("", {"records": [{"data": 1}], "create": 1}, "create: must be true, false or null, got a number"),
        ("/delete", {"seqs": [3, -4]}, "seqs[1]: must be at least 0, got -4"),
        ("/ack", {"node": "w", "seqs": [0, -1]}, "seqs[1]: must be at least 0, got -1"),
        ("/nack", {"node": "w", "seqs": [-1]}, "seqs[0]: must be at least 0, got -1"),
        ("/extend", {"node": "w", "seqs": [-1], "lease_ms": 1000}, "seqs[0]: must be at least 0, got -1"),
        ("/redrive", {"seqs": [-1]}, "seqs[0]: must be at least 0, got -1"),
    ],
)
def test_the_wrong_value_of_a_field_is_named(api: Api, rest: str, body: dict[str, Any], message: str) -> None:
    api.put(type="queue")
    assert api.refused(400, "invalid_request", "POST", rest, body).message == message


def test_names_in_a_query_are_decoded_before_they_are_compared(api: Api) -> None:
    api.append(1)
    assert api.call("GET", "?%74ouch=false").status == 200
    assert api.call("GET", "?%74ouchy=false").message == "touchy: unknown parameter, did you mean touch?"
    assert api.call("GET", "?" + "x" * 5000).message.startswith(
        f"{'x' * 64}...: unknown parameter; allowed: "
    )


def test_a_delete_with_a_body_deletes_nothing(api: Api) -> None:
    api.append(1)
    answer = api.refused(400, "invalid_request", "DELETE", "", {"match": ["tag", "Eq", "a"]})
    assert answer.message == (
        "the body must be empty: DELETE /v0/topics/:topic takes none; "
        "POST /v0/topics/:topic/delete deletes records"
    )
    assert api.state()["count"] == 1
    assert api.call("DELETE", "", {}).json["deleted"]


@pytest.mark.parametrize(
    ("op", "message", "detail"),
    [
        ("subscribe", {"topic": "t", "from": 3}, "from: unknown field, did you mean from_"),
        (
            "subscribe",
            {"topic": "t", "include_tagz": True},
            "include_tagz: unknown field, did you mean include_tags?",
        ),
        ("subscribe", {"topics": {"t": {"tial": True}}}, "topics.t.tial: unknown field, did you mean tail?"),
        (
            "unsubscribe",
            {"topic": "t", "all": True},
            "all: unknown field; allowed: op, request_id, topic, topics",
        ),
        ("publish", {"topik": "t", "records": []}, "topik: unknown field, did you mean topic?"),
        ("publish", {"topic": "t", "record": []}, "record: unknown field, did you mean records?"),
        (
            "publish",
            {"topic": "t", "records": [{"dta": 1}]},
            "records[0].dta: unknown field, did you mean data?",
        ),
        ("ping", {"data": 1}, "data: unknown field; allowed: op, request_id"),
    ],
)
def test_messages_of_a_web_socket_are_as_strict(
    server: HttpServer, op: str, message: Any, detail: str
) -> None:
    with WsClient(server.ports["fast"]) as socket:
        answer = socket.ask(op, **message, request_id=7)
    assert (answer["op"], answer["code"], answer["request_id"]) == ("error", "invalid_request", 7)
    assert answer["message"].startswith(detail)
