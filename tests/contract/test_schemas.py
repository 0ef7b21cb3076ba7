"""Schemas: `schema` and `schema_mode` of a topic, over every way in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
LINES = "application/x-ndjson"
EVENT = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}


def refusal(answer: Answer, path: str, rule: str, index: int | None = 0) -> str:
    """Check a refusal of a record; return its message."""
    assert (answer.status, answer.code) == (422, "schema_mismatch"), answer
    detail = answer.json["error"]["detail"]
    assert (detail["path"], detail["rule"], detail.get("index")) == (path, rule, index)
    message = answer.message
    assert isinstance(message, str)
    return message


def test_a_record_that_breaks_the_schema_is_refused_with_the_path_and_the_rule(api: Api) -> None:
    config = api.put(schema=ORDER)["config"]
    assert (config["schema"], config["schema_mode"]) == (ORDER, "reject")
    assert api.state()["config"]["schema"] == ORDER
    answer = api.call("POST", "", {"records": [{"data": {"id": 1}}, {"data": {"id": "x"}}]})
    message = refusal(answer, "/id", "type", 1)
    assert message.startswith(f'records[1].data: breaks the schema of topic "{api.topic}" at /id: "x" is not')
    assert api.state()["head_seq"] == 0
    assert api.append({"id": 1})["first_seq"] == 1


def test_every_kind_of_body_is_checked(api: Api) -> None:
    api.put(schema=ORDER)
    refusal(api.call("POST", "", {"records": [{"data_base64": "AA=="}]}), "", "bytes")
    refusal(api.upload(b'{"id":1}'), "", "bytes")
    refusal(api.upload(b"text", content_type="text/plain"), "", "type")
    event = {**EVENT, "data": {"id": "x"}}
    for kind, body in (("cloudevents", event), ("cloudevents-batch", [event])):
        answer = api.client.ask(
            "POST", api.path, json.dumps(body).encode(), content_type=f"application/{kind}+json"
        )
        refusal(answer, "/id", "type")
    answer = api.upload(b'{"id":1}\n\n{"id":2}\n{"x":1}\n', content_type=LINES)
    assert refusal(answer, "", "required", None).startswith("line 4: data: breaks the schema")
    assert answer.json["error"]["detail"]["line"] == 4
    assert answer.json["error"]["detail"]["written"]["count"] == 0
    assert api.state()["head_seq"] == 0
    assert api.upload(b'{"id":1}\n{"id":2}\n', content_type=LINES).status == 200


@pytest.mark.http1
def test_a_publish_is_checked(server: HttpServer, lane: str, api: Api) -> None:
    api.put(schema=ORDER)
    with WsClient(server.ports[lane]) as socket:
        records = [{"data": {"id": 1}}, {"data": {}}]
        message = socket.ask("publish", topic=api.topic, records=records, request_id=7)
        assert (message["code"], message["request_id"]) == ("schema_mismatch", 7)
        assert (message["detail"]["index"], message["detail"]["rule"]) == (1, "required")
        assert socket.ask("publish", topic=api.topic, records=records[:1])["first_seq"] == 1


def test_warn_accepts_what_off_does_not_check(api: Api) -> None:
    api.put(schema=ORDER, schema_mode="warn")
    api.append("x", {"id": 1})
    assert api.put(schema_mode="off")["config"]["schema"] == ORDER
    api.append("y")
    assert api.state()["head_seq"] == 3
    api.put(schema_mode="reject")
    api.refused(422, "schema_mismatch", "POST", "", {"records": [{"data": "z"}]})
    assert api.put(schema=None)["config"]["schema"] is None
    api.append("z")


def test_jobs_are_checked_too(api: Api) -> None:
    api.put(type="queue", schema=ORDER)
    refusal(api.call("POST", "", {"records": [{"data": 1}], "delay_ms": 1000}), "", "type")
    assert api.append({"id": 1})["first_seq"] == 1


def test_a_change_that_may_reject_valid_records_needs_force(api: Api) -> None:
    api.put(schema=ORDER)
    stricter = {**ORDER, "required": ["id", "n"]}
    answer = api.refused(409, "topic_exists_incompatible", "PUT", "", {"schema": stricter})
    assert answer.json["error"]["detail"] == {"field": "schema", "path": "/required"}
    assert '"force":true' in answer.message
    assert api.state()["config"]["schema"] == ORDER
    forced = api.put(schema=stricter, force=True)["config"]
    assert forced["schema"] == stricter
    assert "force" not in forced
    api.put(schema={**ORDER, "required": []})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"schema": {"type": "strin"}}, "schema: must be JSON Schema 2020-12, and is not at /type: "),
        (
            {"schema": {"$ref": "http://127.0.0.1:1/x"}},
            "schema: each $ref must name a part of the same document",
        ),
        ({"schema": True}, "schema: must be an object or null"),
        ({"schema": [1]}, "schema: must be an object or null"),
        ({"schema": {"title": "x" * (64 << 10)}}, "schema: must be at most 64 KiB (65536 bytes)"),
        ({"schema_mode": "strict"}, "schema_mode: must be "),
        ({"schema_mode": None}, "schema_mode: must be "),
        ({"force": True}, "force: must be sent with schema"),
    ],
)
def test_what_is_no_schema_is_refused(api: Api, config: dict[str, Any], message: str) -> None:
    answer = api.refused(400, "invalid_request", "PUT", "", config)
    assert answer.message.startswith(message), answer.message
    body = {"records": [{"data": 1}], "config": config}
    answer = api.refused(400, "invalid_request", "POST", "", body)
    assert answer.message.startswith("config." + message), answer.message


def test_a_write_brings_the_schema_of_its_new_topic(api: Api) -> None:
    body = {"records": [{"data": 1}], "config": {"schema": ORDER}}
    refusal(api.call("POST", "", body), "", "type")
    assert api.call("GET").status == 404
    assert api.append({"id": 1}, config={"schema": ORDER})["created"]
