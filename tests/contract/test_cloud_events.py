"""CloudEvents 1.0: structured, in batches and in the binary mode, appended and read back."""

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
    # Every answer in JSON ends with a line end.
    assert read.body.endswith(b"]\n")
    assert events(api, after_seq=6).body == b"[]\n"


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
            assert binary(api, b"text", "text/plain", id="7").json["seqs"] == [len(WHOLE) + 1]
            last = {**PLAIN, "id": "7", "datacontenttype": "text/plain", "data": "text"}
            assert json.loads(events(api, after_seq=len(WHOLE)).body) == [last]


def binary(api: Api, body: bytes | None, content_type: str | None, **attributes: str) -> Answer:
    """Append an event in the binary mode, whose attributes are header fields."""
    fields = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.new", **attributes}
    lines = [f"ce-{name.replace('__', '-')}: {value}" for name, value in fields.items() if value]
    return api.client.ask("POST", api.path, body, *lines, content_type=content_type)


@pytest.mark.parametrize(
    ("body", "content_type", "data"),
    [
        (b'{"n":[1.50]}', "application/json", {"data": {"n": [1.5]}}),
        (b' "text" ', "application/vnd.shop+json; charset=UTF-8", {"data": "text"}),
        (b"null", "text/json", {"data": None}),
        (b"7", None, {"data": 7}),
        ("gr\u00fcn".encode(), "text/plain", {"data": "gr\u00fcn"}),
        ("gr\u00fcn".encode("latin-1"), "text/plain; charset=latin-1", {"data_base64": "Z3L8bg=="}),
        (b"\x00\xff", "image/gif", {"data_base64": "AP8="}),
        (b"", "text/plain", {}),
        (None, None, {}),
    ],
)
def test_an_event_in_header_fields_is_read_back_in_json(
    api: Api, body: bytes | None, content_type: str | None, data: dict[str, Any]
) -> None:
    answer = binary(api, body, content_type, time="2026-01-31T12:00:00Z", myext="7")
    assert (answer.status, answer.json["seqs"]) == (201, [1]), answer
    event = {**PLAIN, "time": "2026-01-31T12:00:00Z", "myext": "7", **data}
    if content_type is not None:
        event["datacontenttype"] = content_type
    assert json.loads(events(api).body) == [event]
    record = api.diff(include_tags=True)["records"][0]
    assert (record["$tag"], record.get("data")) == ("order.new", data.get("data"))


def test_values_of_header_fields_are_decoded(api: Api) -> None:
    assert (
        binary(api, b"1", "application/json", subject="Euro%20%E2%82%AC %zz", ext='"a \\"b\\""').status == 201
    )
    event = json.loads(events(api).body)[0]
    assert (event["subject"], event["ext"]) == ("Euro \u20ac %zz", 'a "b"')


def test_a_key_makes_an_event_in_header_fields_repeatable(api: Api) -> None:
    lines = [f"ce-{name}: {value}" for name, value in PLAIN.items()]
    for is_repeated in (False, True):
        answer = api.call("POST", "?return_seqs=false", {"n": 1}, *lines, "idempotency-key: k")
        assert answer.json["deduped"] is is_repeated
        assert "seqs" not in answer.json


def test_a_content_type_of_events_precedes_header_fields(api: Api) -> None:
    assert binary(api, json.dumps({**PLAIN, "id": "2"}).encode(), EVENT, id="1").status == 201
    assert json.loads(events(api).body)[0]["id"] == "2"


@pytest.mark.parametrize(
    ("body", "content_type", "attributes", "message"),
    [
        (b"1", "application/json", {"specversion": "0.3"}, 'ce-specversion: must be "1.0", got "0.3"'),
        (b"1", "application/json", {"specversion": ""}, "ce-specversion: is required"),
        (b"1", "application/json", {"id": ""}, "ce-id: is required"),
        (None, "application/json", {"source": ""}, "ce-source: is required"),
        (b"1", "application/json", {"type": "%00"}, "ce-type: must be UTF-8 after percent-decoding"),
        (b"1", "application/json", {"subject": "%ff"}, "ce-subject: must be UTF-8 after percent-decoding"),
        (b"1", "application/json", {"my__ext": "1"}, "ce-my-ext: must have a name of"),
        (b"1", "application/json", {"datacontenttype": "a/b"}, "ce-datacontenttype: must be sent as"),
        (b"1", "application/json", {"data": "1"}, "ce-data: must not be sent"),
        (b"1", "application/json", {"type": "x" * 257}, "records[0].tag: must be at most 256"),
        (b"{", "application/json", {}, "the body must be JSON, as its content type is"),
        (b"1 2", "application/json", {}, "the body must be JSON, as its content type is"),
        (b"[" * 201 + b"]" * 201, "application/json", {}, "records[0].data: must be nested"),
        (b"[" * 2000 + b"]" * 2000, "application/json", {}, "the body must be JSON, as its content type is"),
        (b"\xff", "application/json", {}, "the body must be UTF-8"),
        (b"\xff", "text/plain", {}, "the body must be UTF-8"),
    ],
)
def test_a_wrong_event_in_header_fields_is_refused(
    api: Api, body: bytes | None, content_type: str, attributes: dict[str, str], message: str
) -> None:
    answer = binary(api, body, content_type, **attributes)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert answer.message.startswith(message), answer.message
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.http1
def test_an_attribute_is_sent_once(api: Api) -> None:
    answer = api.client.ask("POST", api.path, b"1", "ce-id: 1", "ce-id: 2")
    assert (answer.status, answer.message) == (400, "ce-id: must be sent once")


def test_other_requests_ignore_attributes(api: Api) -> None:
    api.append(1)
    answer = api.call("POST", "/diff", {"after_seq": 0}, "ce-specversion: 1.0", "ce-id: 1")
    assert len(answer.json["records"]) == 1
