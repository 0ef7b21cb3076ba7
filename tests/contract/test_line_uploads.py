"""Uploads of lines: `application/x-ndjson` to `/v0/topics/:topic/records`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shared.http.client_speed import IDLE_SECONDS
from tests.contract.api import Api
from tests.harness.clients.h2_client import H2Client, request_headers
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.http_server import ALL_PORTS, HttpServer
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer
from topicsd.service.records.line_upload import BATCH_BYTES, BATCH_LINES_MAX

LINES = "application/x-ndjson"
MANY = b"".join(b'{"n":%d,"text":"%b"}\n' % (number, b"x" * 100) for number in range(20_000))
"""More than two batches are long."""


def upload(api: Api, body: bytes, query: str = "", *fields: str, is_chunked: bool = False) -> Answer:
    target = f"{api.path}/records{query}"
    return api.client.finish(
        api.client.start("POST", target, body, *fields, content_type=LINES, is_chunked=is_chunked)
    )


def all_data(api: Api) -> list[Any]:
    data: list[Any] = []
    seq, head = 0, api.state()["head_seq"]
    while seq < head:
        answer = api.diff(seq, limit=1000)
        data += [record["data"] for record in answer["records"]]
        seq = answer["next_from_seq"]
    return data


def test_each_line_is_a_record(api: Api) -> None:
    answer = upload(api, b'1\n"a"\r\n\n \t\n{"b": [1.0]}  \nnull')
    assert answer.status == 201
    body = answer.json
    del body["performance"]
    assert body == {
        "topic": api.topic,
        "lines": 6,
        "count": 4,
        "first_seq": 1,
        "last_seq": 4,
        "head_seq": 4,
        "batches": 1,
        "created": True,
        "deduped_count": 0,
        "durability": "disk",
    }
    assert all_data(api) == [1, "a", {"b": [1.0]}, None]
    assert upload(api, b"5\n").json["first_seq"] == 5


def test_lines_can_be_whole_records(api: Api) -> None:
    lines = b'{"data":1,"tag":"a","node":"n","meta":{"m":1}}\n{"data":2}\n{"data_base64":"AAE="}\n'
    assert upload(api, lines, "?as=record&tag=t&node=all").status == 201
    records = api.diff(include_tags=True)["records"]
    assert [(one["$tag"], one["$node"]) for one in records] == [("a", "n"), ("t", "all"), ("t", "all")]
    assert (records[0]["meta"], records[2]["data_base64"]) == ({"m": 1}, "AAE=")


def test_lines_of_data_get_the_tag_and_the_node_of_the_request(api: Api) -> None:
    assert upload(api, b'1\n{"data":2}\n', "?tag=t&node=n&as=data").status == 201
    records = api.diff(include_tags=True)["records"]
    assert [(one["$tag"], one["$node"], one["data"]) for one in records] == [
        ("t", "n", 1),
        ("t", "n", {"data": 2}),
    ]


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\n"])
def test_no_lines_append_nothing(api: Api, body: bytes) -> None:
    answer = upload(api, body)
    assert (answer.status, answer.json["count"], answer.json["created"]) == (200, 0, False)
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_an_upload_may_be_larger_than_any_body(api: Api, is_chunked: bool, is_compressed: bool) -> None:
    body = gzip.compress(MANY) if is_compressed else MANY
    fields = ("content-encoding: gzip",) if is_compressed else ()
    answer = upload(api, body, "", *fields, is_chunked=is_chunked)
    assert (answer.status, answer.json["count"], answer.json["last_seq"]) == (201, 20_000, 20_000)
    assert answer.json["batches"] > 2
    assert [one["n"] for one in all_data(api)] == list(range(20_000))
    # The connection stays open.
    assert api.call("GET").status == 200


@pytest.fixture
def small(tmp_path: Path, lane: str) -> Iterator[Api]:
    """A server whose bodies have at most 64 KiB."""
    with (
        HttpServer(tmp_path, max_body_bytes=64 << 10, max_record_bytes=1 << 10) as server,
        server.connect(lane) as client,
    ):
        yield Api(client, "small")


def test_lines_are_bound_by_the_record_and_not_by_the_body(small: Api) -> None:
    assert upload(small, MANY[: 1 << 20].rpartition(b"\n")[0]).status == 201
    count = small.state()["count"]
    answer = upload(small, b"1\n" + b'"' + b"x" * 1100 + b'"\n2\n')
    assert (answer.status, answer.code) == (400, "record_too_large")
    assert answer.json["error"]["detail"]["line"] == 2
    assert small.state()["count"] == count


def test_a_line_without_an_end_is_refused(small: Api) -> None:
    endless = b"1\n" + b"x" * (3 * BATCH_BYTES)
    answer = upload(small, endless, "", "idempotency-key: k", is_chunked=True)
    assert (answer.status, answer.code) == (400, "record_too_large")
    assert answer.json["error"]["detail"]["line"] == 2


@pytest.mark.parametrize(
    ("lines", "query", "line", "text"),
    [
        (b"1\n\n2 3\n", "", 3, "data: must be one JSON value: "),
        (b'1\n{"a":\n1}\n', "", 2, "data: must be one JSON value: "),
        (b"1\n2,3\n", "", 2, "data: must be one JSON value: "),
        (b"[" * 600 + b"]" * 600 + b"\n", "", 1, "data: must be nested at most "),
        (b'{"data":1}\n\n{"dat":2}\n', "?as=record", 3, "dat: unknown field"),
        (b'{"data":1}\n{"tag":"x"}\n', "?as=record", 2, "data: is required"),
        (b'{"data":1}\n{"data":1,"tag":5}\n', "?as=record", 2, "tag: must be a string or null"),
        (b'{"data":1}\n5\n', "?as=record", 2, "the line must be a JSON object"),
        (b'{"data":1}\n{"data"\n', "?as=record", 2, "the line is not JSON"),
        (b'{"data":1,"data_base64":""}\n', "?as=record", 1, "data_base64: must not be sent with data"),
        (b'{"data":1}\n{"data":1,"tag":"%b"}\n' % (b"x" * 257), "?as=record", 2, "tag: must be at most 256"),
        (b'{"data":1,"meta":{"_topics_router":1}}\n', "?as=record", 1, "meta: must not have the key"),
    ],
)
def test_a_wrong_line_is_named(api: Api, lines: bytes, query: str, line: int, text: str) -> None:
    answer = upload(api, lines, query)
    assert answer.status == 400, answer
    assert answer.message.startswith(f"line {line}: {text}"), answer.message
    detail = answer.json["error"]["detail"]
    assert detail["line"] == line
    assert detail["written"] == {"lines": 0, "count": 0, "first_seq": 0, "last_seq": 0}
    api.refused(404, "topic_not_found", "GET")


def test_lines_that_are_not_utf8_are_refused(api: Api) -> None:
    assert upload(api, b'"\xff"\n').message.startswith("the body must be UTF-8")


def test_a_failure_says_how_far_the_upload_got(api: Api, server: HttpServer, lane: str) -> None:
    answer = upload(api, MANY + b"{\n" + MANY)
    assert answer.status == 400
    detail = answer.json["error"]["detail"]
    written = detail["written"]
    assert detail["line"] == 20_001
    assert 0 < written["lines"] <= 20_000
    assert (written["first_seq"], written["last_seq"]) == (1, written["count"])
    assert f"the first {written['lines']} lines are written" in answer.message
    with server.connect(lane) as client:
        assert [one["n"] for one in all_data(Api(client, api.topic))] == list(range(written["lines"]))


@pytest.mark.parametrize("key_of_first", ["k", "x" * 236])
def test_a_repetition_with_the_key_doubles_nothing(api: Api, key_of_first: str) -> None:
    field = f"idempotency-key: {key_of_first}"
    first = upload(api, MANY, "", field)
    again = upload(api, MANY, "", field, is_chunked=True)
    assert (first.status, again.status) == (201, 200)
    assert again.json["deduped_count"] == again.json["count"] == 20_000
    for name in ("first_seq", "last_seq", "lines", "batches"):
        assert first.json[name] == again.json[name]
    assert api.state()["count"] == 20_000


def test_a_repetition_after_a_failure_writes_the_rest(api: Api, server: HttpServer, lane: str) -> None:
    lines = MANY.split(b"\n")
    lines[15_000] = b"{"
    assert upload(api, b"\n".join(lines), "", "idempotency-key: k").status == 400
    with server.connect(lane) as client:
        other = Api(client, api.topic)
        written = other.state()["count"]
        answer = upload(other, MANY, "", "idempotency-key: k")
        assert (answer.status, answer.json["deduped_count"]) == (200, written)
        assert written > 0
        assert [one["n"] for one in all_data(other)] == list(range(20_000))


def test_other_lines_under_the_key_are_refused(api: Api) -> None:
    assert upload(api, b"1\n2\n", "", "idempotency-key: k").status == 201
    answer = upload(api, b"1\n3\n", "", "idempotency-key: k")
    assert (answer.status, answer.code) == (409, "idempotency_mismatch")


@pytest.mark.parametrize(
    ("query", "fields", "name"),
    [
        ("?as=lines", (), "as"),
        ("?tag=" + "x" * 257, (), "tag"),
        ("?create=maybe", (), "create"),
        ("?what=1", (), "what"),
        ("", ("idempotency-key: " + "x" * 237,), "idempotency_key"),
        ("", ("content-digest: sha-256=:AAAA:",), "content-digest"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(
    api: Api, query: str, fields: tuple[str, ...], name: str
) -> None:
    answer = upload(api, b"1\n", query, *fields)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.message.startswith(f"{name}: "), answer.message


def test_create_false_and_a_full_topic_refuse_lines(api: Api) -> None:
    assert upload(api, b"1\n", "?create=false").status == 404
    api.put(cap_records=BATCH_LINES_MAX, discard="reject")
    lines = b"1\n" * (BATCH_LINES_MAX + 1)
    answer = upload(api, lines, "?create=false", "idempotency-key: k")
    assert (answer.status, answer.code) == (422, "topic_full")
    assert answer.json["error"]["detail"]["written"]["count"] == BATCH_LINES_MAX
    assert api.state()["count"] == BATCH_LINES_MAX


def test_only_records_take_lines(api: Api) -> None:
    answer = api.client.ask("POST", api.path, b"1\n", content_type=LINES)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


# -- uploads that continue -----------------------------------------------------------------------------------


class OpenUpload:
    """An upload that is sent step by step."""

    def __init__(self, server: HttpServer, lane: str, topic: str, *fields: str) -> None:
        self.client = server.connect(lane)
        target = f"/v0/topics/{topic}/records"
        if isinstance(self.client, H2Client):
            pairs = [field.partition(": ") for field in (f"content-type: {LINES}", *fields)]
            headers = [(name.encode(), value.encode()) for name, _, value in pairs]
            self._stream = self.client.open([*request_headers("POST", target), *headers], ends=False)
        else:
            lines = [f"POST {target} HTTP/1.1", "host: h", f"content-type: {LINES}", *fields]
            head = "\r\n".join([*lines, "transfer-encoding: chunked", "", ""])
            self._raw.send(head.encode())

    @property
    def _raw(self) -> RawClient:
        assert isinstance(self.client, RawClient)
        return self.client

    def send(self, data: bytes) -> None:
        if isinstance(self.client, H2Client):
            self.client.send_body(self._stream, data, ends=False)
        else:
            self._raw.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> Answer:
        if isinstance(self.client, H2Client):
            self.client.wire.end_stream(self._stream)
            self.client.flush()
        else:
            self._raw.send(b"0\r\n\r\n")
        return self.answer()

    def answer(self) -> Answer:
        if isinstance(self.client, H2Client):
            return self.client.finish(self._stream)
        return self._raw.read_answer()


def test_lines_are_written_as_they_arrive(server: HttpServer, lane: str, api: Api) -> None:
    going = OpenUpload(server, lane, api.topic)
    for number in range(1, 4):
        going.send(b"%d\n" % number)
        wait_until(
            partial(lambda count: api.call("GET").status == 200 and len(all_data(api)) == count, number),
            "it is written",
        )
    going.send(b"4")
    answer = going.end()
    assert (answer.status, answer.json["count"], answer.json["batches"]) == (201, 4, 4)
    going.client.close()


def test_a_client_that_leaves_midway_leaves_whole_lines(server: HttpServer, lane: str, api: Api) -> None:
    going = OpenUpload(server, lane, api.topic)
    going.send(b"1\n2\n3")
    wait_until(lambda: api.call("GET").status == 200, "the first lines are written")
    going.client.close()
    assert all_data(api) == [1, 2]


@pytest.mark.http1
@pytest.mark.parametrize("is_half_closed", [False, True])
def test_a_wrong_chunk_ends_an_upload_with_its_progress(
    server: HttpServer, lane: str, api: Api, is_half_closed: bool
) -> None:
    """The batch on its way is awaited, and the lines after it are not written."""
    going = OpenUpload(server, lane, api.topic, "idempotency-key: k")
    # A batch, and lines that wait for it.
    lines = b"1\n" * (BATCH_LINES_MAX + 3)
    going._raw.send(b"%x\r\n%b\r\nno size\r\n2\r\n2\n\r\n" % (len(lines), lines))
    if is_half_closed:
        going._raw.send_end()
    answer = going.answer()
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.message.startswith("the size of a chunk must be in hex digits; the first 5000 lines are")
    written = answer.json["error"]["detail"]["written"]
    assert written == {"lines": 5000, "count": 5000, "first_seq": 1, "last_seq": 5000}
    going._raw.read_end()
    assert api.state()["count"] == 5000
    going.client.close()


@pytest.mark.http1
def test_a_wrong_chunk_before_a_batch_writes_nothing(server: HttpServer, lane: str, api: Api) -> None:
    with RawClient(server.ports[lane]) as client:
        fields = f"host: h\r\ncontent-type: {LINES}\r\ntransfer-encoding: chunked"
        head = f"POST {api.path}/records HTTP/1.1\r\n{fields}\r\n\r\n"
        client.send(head.encode() + b"4\r\n1\n2\n\r\nno size\r\n")
        answer = client.read_answer()
    assert answer.message == "the size of a chunk must be in hex digits; no line is written"
    assert answer.json["error"]["detail"]["written"]["lines"] == 0
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize("lane", ALL_PORTS)
def test_a_client_that_sends_no_more_gets_how_far_its_lines_got(tmp_path: Path, lane: str) -> None:
    with HttpServer(tmp_path) as server, server.connect(lane) as client:
        api = Api(client, "slow")
        going = OpenUpload(server, lane, "slow")
        going.send(b"1\n2")
        wait_until(lambda: api.call("GET").status == 200, "the first line is written")
        server.pass_timeout(IDLE_SECONDS + 1)
        answer = going.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert answer.json["error"]["detail"]["written"]["lines"] == 1
        going.client.close()


@pytest.mark.parametrize("lane", ALL_PORTS)
def test_a_drain_ends_an_upload_with_its_progress(tmp_path: Path, lane: str) -> None:
    with HttpServer(tmp_path) as server:
        going = OpenUpload(server, lane, "drained")
        going.send(b"1\n")
        with server.connect(lane) as client:
            wait_until(lambda: client.ask("GET", "/v0/topics/drained").status == 200, "a line is written")
        server.drain()
        answer = going.answer()
        assert (answer.status, answer.code) == (503, "shutting_down")
        assert answer.json["error"]["detail"]["written"]["lines"] == 1
        going.client.close()


@pytest.mark.parametrize("lane", ALL_PORTS)
def test_a_key_is_checked_before_and_during_an_upload(tmp_path: Path, lane: str) -> None:
    reader, writer = "a" * 16, "b" * 16
    with HttpServer(tmp_path, keys=f"{reader}:read,{writer}:write:log,{'c' * 16}") as server:
        for topic, key, status in (("log1", reader, 403), ("other", writer, 403)):
            going = OpenUpload(server, lane, topic, f"authorization: Bearer {key}")
            assert going.answer().status == status
            going.client.close()
        going = OpenUpload(server, lane, "log1", f"authorization: Bearer {writer}")
        going.send(b"1\n")
        with server.connect(lane) as client:
            field = f"authorization: Bearer {'c' * 16}"
            wait_until(
                lambda: client.ask("GET", "/v0/topics/log1", None, field).status == 200, "a line is there"
            )
        server.change_keys(f"{reader}:read,{'c' * 16}")
        going.send(b"2\n")
        answer = going.answer()
        assert (answer.status, answer.json["error"]["detail"]["written"]["lines"]) == (401, 1)
        going.client.close()


def test_uploads_beside_each_other_keep_their_order(server: HttpServer, lane: str, api: Api) -> None:
    going = [OpenUpload(server, lane, api.topic) for _ in range(3)]
    for step in range(50):
        for number, one in enumerate(going):
            one.send(json.dumps([number, step]).encode() + b"\n")
    for one in going:
        assert one.end().json["count"] == 50
        one.client.close()
    data = all_data(api)
    for number in range(3):
        assert [step for writer, step in data if writer == number] == list(range(50))


# -- over shards ---------------------------------------------------------------------------------------------


def test_any_worker_takes_lines_for_any_shard(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server, RawClient(server.port) as client:
        for shard in range(2):
            topic = server.topic_of(shard, f"t{shard}")
            api = Api(client, topic)
            field = "idempotency-key: k"
            assert upload(api, MANY, "?tag=x", field).json["count"] == 20_000
            assert upload(api, MANY, "?tag=x", field).json["deduped_count"] == 20_000
            assert [one["n"] for one in all_data(api)] == list(range(20_000))
            answer = upload(api, b"1\n\n{\n")
            assert answer.json["error"]["detail"]["line"] == 3
