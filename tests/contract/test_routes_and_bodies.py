"""What every route has in common: paths, names, queries, kinds of content, what is not there or not built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer, HttpClient
from tests.harness.server.http_server import HttpServer

RECORDS = b'{"records":[{"data":1}]}'


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[HttpClient]:
    with server.connect(lane) as one:
        yield one


def _is(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.code) == (status, code) and list(answer.json) == ["error"]


NAMES = ["..", ".", "a%2Fb", "%2e%2e", "a%00", "a%0d%0aX:%201", "a;p=1", "", "a b".replace(" ", "%20"), ":"]
NAMES += ["%C3%A9", "a+b", "a%25", "a" * 256, "-a", "_a", "a>b", "a%", "%zz", "a%ff"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_400_for_every_method(client: HttpClient, name: str) -> None:
    for method, body in (("GET", None), ("PUT", b"{}"), ("POST", RECORDS), ("DELETE", None)):
        assert _is(client.ask(method, f"/v0/topics/{name}", body), 400, "invalid_request")
    assert _is(client.ask("POST", f"/v0/topics/{name}/diff", b"{}"), 400, "invalid_request")


def test_a_name_is_decoded_once(api: Api) -> None:
    api.append(1)
    encoded = "".join(f"%{ord(letter):02x}" for letter in api.topic)
    assert api.client.ask("GET", f"/v0/topics/{encoded}").json["topic"] == api.topic
    twice = encoded.replace("%", "%25")
    assert _is(api.client.ask("GET", f"/v0/topics/{twice}"), 400, "invalid_request")


@pytest.mark.parametrize("name", ["a", "A" * 255, "9.x:y_z-1"])
def test_a_name_by_the_rule_is_taken(client: HttpClient, name: str) -> None:
    assert client.ask("POST", f"/v0/topics/{name}", RECORDS).status in (200, 201)


PATHS = [
    "/v0/",
    "/v1/topics/a",
    "/v0/topics/a/",
    "//v0/topics/a",
    "/v0/./topics/a",
    "/V0/topics/a",
]
PATHS += [
    "/v0/topics/../health/x",
    "/v0/topics/a/%64iff",
    "/v0/topics/a/diff/x",
    "/v0/topics/a//diff",
    "/v0/to",
]
PATHS += ["/v0/topics/a%2Fdiff/x", "/v0%2Ftopics/a"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_none_is_404(client: HttpClient, path: str) -> None:
    for method, body in (("GET", None), ("POST", b"{}")):
        assert _is(client.ask(method, path, body), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("OPTIONS", "/v0/topics/a", "DELETE, GET, HEAD, POST, PUT"),
        ("GET", "/v0/topics/a/diff", "POST"),
        ("HEAD", "/v0/topics/a/diff", "POST"),
        ("DELETE", "/v0/topics/a/delete", "POST"),
        ("POST", "/v0/topics", "GET, HEAD"),
        ("PUT", "/v0/health", "GET, HEAD"),
        ("POST", "/v0/topics/a/work", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405_with_those_that_it_has(
    client: HttpClient, method: str, path: str, allow: str
) -> None:
    answer = client.ask(method, path)
    assert (answer.status, answer.fields["allow"]) == (405, allow)
    if method != "HEAD":
        assert answer.code == "method_not_allowed"
        assert method in answer.message


@pytest.mark.parametrize("value", ["yes", "", "TRUE", "2", "nul%00"])
@pytest.mark.parametrize(
    ("method", "name", "body"),
    [("POST", "return_seqs", RECORDS), ("GET", "touch", None), ("DELETE", "if_empty", None)],
)
def test_a_boolean_in_a_query_that_is_none_is_400(
    api: Api, method: str, name: str, body: bytes | None, value: str
) -> None:
    answer = api.call(method, f"?{name}={value}", body)
    assert _is(answer, 400, "invalid_request")
    assert name in answer.message
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize("query", ["?", "?return_seqs=false", "?return%5fseqs=0"])
def test_a_query_is_decoded(api: Api, query: str) -> None:
    answer = api.call("POST", query, RECORDS)
    assert ("seqs" in answer.json) == (query == "?")


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/jsonp", "application/x-www-form-urlencoded", "json"]
)
def test_a_body_of_another_kind_is_415(api: Api, content_type: str | None) -> None:
    for method, rest, body in (("POST", "", RECORDS), ("PUT", "", b"{}"), ("POST", "/diff", b"{}")):
        answer = api.client.ask(method, api.path + rest, body, content_type=content_type)
        assert _is(answer, 415, "unsupported_media_type")
        assert "application/json" in answer.message
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json;x=y"]
)
def test_a_body_of_json_may_say_more_about_itself(api: Api, content_type: str) -> None:
    assert api.client.ask("POST", api.path, RECORDS, content_type=content_type).status == 201


@pytest.mark.parametrize(
    ("method", "rest", "body", "field"),
    [
        ("POST", "", b'{"records":[{"data":1},{"data":1,"tag":5}]}', "records[1].tag"),
        ("POST", "", b'{"records":[{"tag":"x"}]}', "records[0].data"),
        ("POST", "", b'{"records":{}}', "records"),
        ("POST", "/diff", b'{"from_seq":"1"}', "from_seq"),
        ("POST", "/delete", b'{"before_seq":1.5}', "before_seq"),
        ("PUT", "", b'{"priority":"high"}', "priority"),
    ],
)
def test_a_field_of_another_type_is_named(api: Api, method: str, rest: str, body: bytes, field: str) -> None:
    answer = api.refused(400, "invalid_request", method, rest, body)
    assert answer.message.startswith(f"{field}: ")
    assert answer.json["error"]["detail"] == {"field": field}


def test_a_word_that_is_none_of_a_field_is_refused_with_those_that_are(api: Api) -> None:
    answer = api.refused(400, "invalid_request", "PUT", "", {"durability": "none"})
    assert answer.message == ('durability: must be one of "disk", "ephemeral", "fsync", "memory", got "none"')
    config = {"discard": "new"}
    answer = api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1}], "config": config})
    assert answer.message.startswith("config.discard: ")
    assert answer.message.endswith('must be one of "old", "reject", got "new"')


def test_an_empty_body_is_refused(api: Api) -> None:
    assert "got an empty body" in api.refused(400, "invalid_request", "POST", "", b"").message


def test_a_request_is_no_line_in_the_log(
    server: HttpServer, lane: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with server.connect(lane) as client:
        assert client.ask("GET", f"/v0/topics/{topic}").status == 404
        assert client.ask("POST", f"/v0/topics/{topic}", RECORDS).status == 201
    assert "/v0/topics" not in caplog.text


def test_every_answer_is_json_with_performance(api: Api) -> None:
    answers = [
        (api.call("PUT", "", {}), []),
        (api.call("POST", "", {"records": [{"data": 1}]}), ["wal_append_ms"]),
        (api.call("POST", "/diff", {}), ["records_scanned"]),
        (api.call("POST", "/delete", {"before_seq": 1}), ["records_scanned"]),
        (api.call("GET"), []),
        (api.call("PUT", "", {"durability": "fsync"}), []),
        (api.call("POST", "", {"records": [{"data": 1}]}), ["wal_append_ms", "fsync_ms"]),
        (api.call("DELETE"), []),
    ]
    for answer, measured in answers:
        assert answer.status < 300
        assert list(answer.json["performance"]) == ["server_total_ms", *measured]
        assert answer.json["performance"]["server_total_ms"] >= 0
        assert set(answer.fields) == {"content-type", "content-length"}


def test_all_lanes_give_the_same_answers(server: HttpServer) -> None:
    requests = [
        ("PUT", "", b'{"durable":true}'),
        ("POST", "", b'{"records":[{"data":{"a":1.0},"tag":"t","node":"n","meta":{}}]}'),
        ("POST", "/diff", b'{"include_tags":true}'),
        ("POST", "/diff", b'{"limit":"x"}'),
        ("POST", "/delete", b'{"match":"t"}'),
        ("PATCH", "", None),
        ("POST", "/claim", b"{}"),
        ("GET", "", None),
        ("GET", "/nothing", None),
        ("DELETE", "", None),
        ("GET", "", None),
    ]
    shapes = []
    for lane in server.ports:
        with server.connect(lane) as client:
            answers = [client.ask(method, f"/v0/topics/same{rest}", body) for method, rest, body in requests]
        shapes.append([_timeless(answer) for answer in answers])
    assert shapes[0] == shapes[1] == shapes[2]


def _timeless(answer: Answer) -> object:
    status, fields, body = answer.shape
    for name in ("last_write_ts", "last_read_ts", "effective_priority", "epoch"):
        body.pop(name, None)
    for record in body.get("records", ()):
        record.pop("$ts")
    return status, fields, body
