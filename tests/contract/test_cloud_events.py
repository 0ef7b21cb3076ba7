"""CloudEvents 1.0: structured and in batches, appended and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.whole_server import WholeServer

EVENT = "application/cloudevents+json"
EVENTS = "application/cloudevents-batch+json"
PLAIN: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.new"}
WHOLE: list[dict[str, Any]] = [
    {**PLAIN, "data": {"n": [1.5]}, "subject": "s", "time": "2026-01-31T12:00:00Z"},
    {**PLAIN, "id": "2", "datacontenttype": "text/plain", "data": "text", "myext": 7, "flag": True},
    {**PLAIN, "id": "3", "datacontenttype": "image/gif", "data_base64": "AAE="},
    {**PLAIN, "id": "4", "dataschema": "http://s/1"},
    {**PLAIN, "id": "5", "data_base64": ""},
    {**PLAIN, "id": "6", "data": 0},
]


def send(api: Api, body: object, content_type: str, *fields: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.client.finish(api.client.start("POST", api.path, data, *fields, content_type=content_type))


def events(api: Api, **body: object) -> Answer:
    return api.call("POST", "/diff", body, f"accept: {EVENTS}")


def test_events_are_read_back_as_they_were_sent(api: Api) -> None:
    answer = send(api, WHOLE, f"{EVENTS}; charset=utf-8")
    assert (answer.status, answer.json["seqs"]) == (201, [1, 2, 3, 4, 5, 6])
    read = events(api)
    assert (read.status, read.fields["content-type"]) == (200, EVENTS)
    assert json.loads(read.body) == WHOLE
    assert read.fields["topics-next-from-seq"] == "6"
    assert json.loads(events(api, after_seq=6).body) == []


@pytest.mark.parametrize("event", WHOLE, ids=lambda event: event["id"])
def test_one_event_is_one_record(api: Api, event: dict[str, Any]) -> None:
    assert send(api, event, EVENT).json["seqs"] == [1]
    assert json.loads(events(api).body) == [event]


def test_the_data_is_the_data_and_the_type_the_tag(api: Api) -> None:
    send(api, WHOLE, EVENTS)
    records = api.diff(include_tags=True)["records"]
    assert [one.get("data") for one in records] == [{"n": [1.5]}, "text", None, None, None, 0]
    assert records[2]["data_base64"] == "AAE="
    assert {one["$tag"] for one in records} == {"order.new"}
    assert records[0]["meta"]["cloudevents"]["subject"] == "s"


def test_a_key_makes_events_repeatable(api: Api) -> None:
    assert send(api, WHOLE, EVENTS, "idempotency-key: k").json["deduped"] is False
    assert send(api, WHOLE, EVENTS, "idempotency-key: k").json["deduped"] is True


def test_any_record_is_read_as_an_event(api: Api) -> None:
    api.append_raw(b'{"data":1,"tag":"t","meta":{"m":1}}')
    api.append(2)
    first, second = json.loads(events(api).body)
    assert (first["specversion"], first["source"]) == ("1.0", f"/v0/topics/{api.topic}")
    assert (first["type"], first["data"], second["type"]) == ("t", 1, "topicsd.record")
    assert first["id"] != second["id"]
    assert first["time"].endswith("Z")
    assert send(api, [first, second], EVENTS).json["count"] == 2
    assert json.loads(events(api, after_seq=2).body) == [first, second]


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        ([PLAIN], EVENT, "the body must be one CloudEvent"),
        (PLAIN, EVENTS, "the body must be a list of CloudEvents"),
        (b"{", EVENT, "the body must be one CloudEvent"),
        (b"\xff", EVENT, "the body must be UTF-8"),
        ([], EVENTS, "records: must not be empty"),
        ([PLAIN, {**PLAIN, "id": ""}], EVENTS, "events[1].id: must be a string, and not empty"),
        ({**PLAIN, "specversion": "0.3"}, EVENT, "events[0].specversion: must be"),
        ({**PLAIN, "source": None}, EVENT, "events[0].source: is required"),
        ({**PLAIN, "my_ext": 1}, EVENT, "events[0].my_ext: must have a name of"),
        ({**PLAIN, "ext": {}}, EVENT, "events[0].ext: must be a string, a number or a boolean"),
        ({**PLAIN, "time": 5}, EVENT, "events[0].time: must be a string"),
        ({**PLAIN, "data": 1, "data_base64": ""}, EVENT, "events[0].data_base64: must not be sent with data"),
        ({**PLAIN, "type": "x" * 257}, EVENT, "records[0].tag: must be at most 256"),
    ],
)
def test_a_wrong_event_is_refused(api: Api, body: object, content_type: str, message: str) -> None:
    answer = send(api, body, content_type)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert answer.message.startswith(message), answer.message
    api.refused(404, "topic_not_found", "GET")


def test_only_an_append_takes_events(api: Api) -> None:
    answer = api.client.finish(api.client.start("POST", f"{api.path}/diff", b"{}", content_type=EVENT))
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


def test_events_of_topics_of_any_shard_and_of_shared_topics(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    flags = (f"--store-url=file://{tmp_path / 'store'}", "--batch-max-delay-ms=10")
    with WholeServer(tmp_path, *flags, shards=2) as server, RawClient(server.port) as client:
        for shard, config in ((0, {}), (1, {}), (0, {"placement": "shared"})):
            api = Api(client, server.topic_of(shard, f"t{shard}{len(config)}"))
            api.put(**config)
            assert send(api, WHOLE, EVENTS).json["count"] == len(WHOLE)
            assert json.loads(events(api).body) == WHOLE
