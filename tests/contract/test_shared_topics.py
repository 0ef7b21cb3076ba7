"""The endpoints of shared topics: `/produce`, `/consume`, fence, unfence and records."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import BROKEN_UPLOADS, OCTETS, Api
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.http_server import FAST, H2
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.parametrize("lane", [FAST, H2])

RECORDS_MAX = 10
RECORD_BYTES_MAX = 4096
LINES = "application/x-ndjson"
PATHS = ("/produce", "/consume")
DEEP = b'{"topic_partitions":' + b"[" * 100_000 + b"}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "store").mkdir()
    flags = (
        f"--store-url=file://{folder / 'store'}",
        "--batch-max-delay-ms=10",
        "--max-meta-bytes=1024",
        f"--max-batch-records={RECORDS_MAX}",
        f"--max-record-bytes={RECORD_BYTES_MAX}",
    )
    with WholeServer(folder, *flags, shards=1) as running:
        yield running


@pytest.fixture
def api(server: WholeServer, lane: str, topic: str) -> Iterator[Api]:
    with H2Client(server.port) if lane == H2 else RawClient(server.port) as client:
        yield Api(client, topic)


def group(api: Api, *records: object, **changes: Any) -> dict[str, Any]:
    return {"topic": api.topic, "partition": 0, "records": records or ["a"], **changes}


def fetch(api: Api, **changes: Any) -> dict[str, Any]:
    return {"topic": api.topic, "partition": 0, "fetch_offset": 1, **changes}


def partitions(api: Api, path: str, **changes: Any) -> dict[str, Any]:
    one = group(api, **changes) if path == "/produce" else fetch(api, **changes)
    return {"topic_partitions": [one]}


def produce(api: Api, *records: object) -> Any:
    answer = api.client.ask("POST", "/produce", {"topic_partitions": [group(api, *records)]})
    assert answer.status == 200, answer
    return json.loads(answer.body)["results"][0]


def refused(api: Api, path: str, body: object, field: str) -> Answer:
    """Make a request that is refused as a whole, by the name of a field."""
    answer = api.client.ask("POST", path, body)
    assert answer.status == 400, answer
    error = json.loads(answer.body)["error"]
    assert error["detail"]["field"] == field, error
    assert error["message"].startswith(field), error
    return answer


def is_missing(api: Api) -> bool:
    return api.call("GET").status == 404


# -- the shape of a request ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b'{"topic_partitions":[{]}',
        b"\xff\xfe",
        b"{}x",
        b'{"a":NaN}',
        DEEP,
    ],
    ids=range(11),
)
def test_a_body_that_is_no_request_is_refused(api: Api, path: str, body: bytes) -> None:
    answer = api.client.ask("POST", path, body)
    assert (answer.status, answer.code) in ((400, "invalid_json"), (400, "invalid_request")), answer
    assert len(answer.body) < 1000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content_type", ["text/plain", OCTETS, None])
def test_another_media_type_is_refused(api: Api, path: str, content_type: str | None) -> None:
    answer = api.client.ask("POST", path, partitions(api, path), content_type=content_type)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert is_missing(api)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", [None, 7, "x", {}, [7], [None], ["x"], [[]]], ids=str)
def test_partitions_of_another_type_are_refused(api: Api, path: str, wrong: object) -> None:
    answer = api.client.ask("POST", path, {"topic_partitions": wrong})
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert json.loads(answer.body)["error"]["detail"]["field"].startswith("topic_partitions")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topic": None}, "topic"),
        ({"topic": 7}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": "../a"}, "topic"),
        ({"topic": "a\x00b"}, "topic"),
        ({"topic": "x" * 300}, "topic"),
        ({"topic": "orders:3"}, "topic"),
        ({"partition": None}, "partition"),
        ({"partition": "0"}, "partition"),
        ({"partition": 0.5}, "partition"),
        ({"partition": True}, "partition"),
        ({"partition": -1}, "partition"),
        ({"partition": 1 << 31}, "partition"),
        ({"partition": 1 << 80}, "partition"),
        ({"partitions": 0}, "partitions"),
    ],
    ids=str,
)
def test_a_wrong_partition_is_refused_by_its_field(
    api: Api, path: str, changes: dict[str, Any], field: str
) -> None:
    refused(api, path, partitions(api, path, **changes), f"topic_partitions[0].{field}")
    assert is_missing(api)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["topic", "partition"])
def test_a_partition_without_a_name_is_refused(api: Api, path: str, name: str) -> None:
    body = partitions(api, path)
    del body["topic_partitions"][0][name]
    refused(api, path, body, f"topic_partitions[0].{name}")


@pytest.mark.parametrize("path", PATHS)
def test_the_number_of_partitions_is_bounded(api: Api, path: str) -> None:
    refused(api, path, {"topic_partitions": []}, "topic_partitions")
    [one] = partitions(api, path)["topic_partitions"]
    many = [{**one, "partition": number} for number in range(1001)]
    answer = api.client.ask("POST", path, {"topic_partitions": many})
    assert (answer.status, answer.code) == (400, "batch_too_large"), answer
    assert is_missing(api)


@pytest.mark.parametrize("path", [*PATHS, "/v0/produce", "/v0/consume"])
def test_unknown_fields_parameters_and_methods_are_refused(api: Api, path: str) -> None:
    body = partitions(api, path.removeprefix("/v0"))
    answer = refused(api, path, {**body, "topic_partition": []}, "topic_partition")
    assert "did you mean topic_partitions?" in answer.message
    answer = refused(api, f"{path}?x=1", body, "x")
    assert answer.message == "x: unknown parameter; none is allowed"
    for method in ("GET", "PUT", "DELETE"):
        assert api.client.ask(method, path).status == 405
    assert is_missing(api)


# -- produce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        *(None, 7, True, [], ["a"], {}, {"data": "x"}),
        *({"base64": 7}, {"base64": "*"}, {"base64": "AAE"}, {"base64": "AA==", "tag": "t"}),
    ],
    ids=str,
)
def test_a_record_is_a_text_or_bytes(api: Api, record: object) -> None:
    refused(
        api, "/produce", {"topic_partitions": [group(api, "a", record)]}, "topic_partitions[0].records[1]"
    )
    assert is_missing(api)


@pytest.mark.parametrize("records", [None, "a", {}, 7], ids=str)
def test_records_are_a_list(api: Api, records: object) -> None:
    refused(api, "/produce", partitions(api, "/produce", records=records), "topic_partitions[0].records")
    refused(api, "/produce", partitions(api, "/produce", records=[]), "topic_partitions[0].records")


def test_the_bounds_of_records_hold_exactly(api: Api) -> None:
    text = "x" * (RECORD_BYTES_MAX - 2)
    raw = {"base64": b64encode(bytes(RECORD_BYTES_MAX)).decode()}
    assert produce(api, *[text] * (RECORDS_MAX - 1), raw)["end_offset"] == RECORDS_MAX
    for large in (text + "x", {"base64": b64encode(bytes(RECORD_BYTES_MAX + 1)).decode()}):
        body = {"topic_partitions": [group(api, "a", large)]}
        answer = refused(api, "/produce", body, "topic_partitions[0].records[1]")
        assert answer.code == "record_too_large"
    split = [group(api, *["a"] * 6), group(api, *["a"] * 5, partition=1)]
    answer = refused(api, "/produce", {"topic_partitions": split}, "records")
    assert answer.code == "batch_too_large"
    assert api.state()["head_seq"] == RECORDS_MAX


def test_any_text_and_any_bytes_come_back(api: Api) -> None:
    texts = ["", "\x00", "é😀", '"\\', "\u2028", "a" * 1000]
    assert produce(api, *texts, {"base64": ""}, {"base64": "/wA="})["count"] == 8
    answer = api.client.ask("POST", "/consume", partitions(api, "/consume"))
    records = json.loads(answer.body)["results"][0]["records"]
    assert [one.get("value") for one in records[:6]] == texts
    assert [one.get("base64") for one in records[6:]] == ["", "/wA="]


# -- consume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (name, wrong)
        for name, low, high in (
            ("fetch_offset", 0, 1 << 63),
            ("partition_max_bytes", 0, (64 << 20) + 1),
            ("max_wait_ms", -1, 30_001),
            ("min_bytes", -1, (8 << 20) + 1),
            ("max_bytes", 0, (64 << 20) + 1),
        )
        for wrong in (None, "1", 1.5, True, [], low, high, 1 << 80)
    ],
    ids=str,
)
def test_a_number_out_of_its_bounds_is_refused(api: Api, name: str, wrong: object) -> None:
    is_of_partition = name in ("fetch_offset", "partition_max_bytes")
    body = partitions(api, "/consume", **({name: wrong} if is_of_partition else {}))
    body.update({} if is_of_partition else {name: wrong})
    refused(api, "/consume", body, f"topic_partitions[0].{name}" if is_of_partition else name)


def test_a_partition_named_twice_is_refused(api: Api) -> None:
    refused(api, "/consume", {"topic_partitions": [fetch(api), fetch(api)]}, "topic_partitions[1]")


def test_a_failure_of_a_partition_is_409_beside_the_results_of_others(api: Api) -> None:
    produce(api, "a", "b")
    assert api.client.ask("POST", "/produce", partitions(api, "/produce", partition=1)).status == 200
    reads = [fetch(api), fetch(api, partition=7), fetch(api, partition=1, fetch_offset=3)]
    answer = api.client.ask("POST", "/consume", {"topic_partitions": [reads[0]]})
    assert (answer.status, json.loads(answer.body)["results"][0]["next_offset"]) == (200, 3)
    for read, kind in ((reads[1], "TopicNotFound"), (reads[2], "PositionPastHead")):
        answer = api.client.ask("POST", "/consume", {"topic_partitions": [reads[0], read]})
        good, bad = json.loads(answer.body)["results"]
        assert (answer.status, good["ok"], bad["ok"], bad["error_type"]) == (409, True, False, kind)
        assert list(bad) == ["topic", "partition", "ok", "error_type", "error"]
    assert is_missing(Api(api.client, f"{api.topic}:7"))


# -- fence and unfence ---------------------------------------------------------------------------------------


def test_a_fence_holds_for_every_way_to_append(api: Api) -> None:
    produce(api, "a")
    for _ in range(2):
        fenced = api.call("POST", "/fence").json
        assert (fenced["log_state"], fenced["head_seq"]) == ("FENCED", 1)
    api.refused(409, "topic_fenced", "POST", "", {"records": [{"data": 1}]})
    upload = api.client.ask("POST", f"{api.path}/records", b"x", content_type=OCTETS)
    assert (upload.status, upload.code) == (409, "topic_fenced")
    answer = api.client.ask("POST", "/produce", {"topic_partitions": [group(api)]})
    assert (answer.status, json.loads(answer.body)["results"][0]["error_type"]) == (409, "TopicFenced")
    assert api.call("POST", "/unfence").json["log_state"] == "OPEN"
    assert produce(api, "b")["start_offset"] == 2


@pytest.mark.parametrize("rest", ["/fence", "/unfence"])
def test_a_fence_takes_no_body_and_needs_a_topic(api: Api, rest: str) -> None:
    api.refused(404, "topic_not_found", "POST", rest)
    produce(api, "a")
    for body in (b"x", b"[]", {"log_state": "OPEN"}):
        assert api.call("POST", rest, body).status == 400
    assert api.call("POST", f"{rest}?x=1").status == 400
    assert api.call("GET", rest).status == 405
    state = api.state()
    assert (state["log_state"], state["head_seq"]) == ("OPEN", 1)
    assert api.client.ask("POST", f"/v0/topics/a%20b{rest}").status == 400


def test_a_fence_of_a_local_topic_is_not_supported(api: Api) -> None:
    api.append(1)
    for rest in ("/fence", "/unfence"):
        answer = api.refused(409, "not_supported", "POST", rest)
        assert answer.json["error"]["detail"] == {"feature": "fence"}


# -- records -------------------------------------------------------------------------------------------------


def test_a_record_of_bytes_is_appended_and_read(api: Api) -> None:
    api.put(placement="shared")
    for seq, data in enumerate((b"", b"\x00", bytes(RECORD_BYTES_MAX)), 1):
        answer = api.upload(data)
        assert (answer.status, answer.json["seqs"], answer.json["durability"]) == (200, [seq], "fsync")
        read = api.call("GET", f"/records/{seq}")
        assert (read.status, read.fields["content-type"], read.body) == (200, OCTETS, data)
    assert api.call("HEAD", "/records/2").body == b""
    api.append_raw(b'{"data":{"n":1.0}}')
    read = api.call("GET", "/records/4")
    assert (read.fields["content-type"], read.body) == ("application/json", b'{"n":1.0}\n')


@pytest.mark.parametrize(("query", "field"), BROKEN_UPLOADS)
def test_a_parameter_that_breaks_a_rule_is_refused(api: Api, query: str, field: str) -> None:
    api.put(placement="shared")
    answer = api.upload(b"x", query)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.message.startswith(f"{field}: ")
    assert api.state()["head_seq"] == 0


def test_a_body_above_the_bound_of_a_record_is_refused(api: Api) -> None:
    api.put(placement="shared")
    assert api.upload(bytes(RECORD_BYTES_MAX + 1)).code == "payload_too_large"
    assert api.state()["head_seq"] == 0


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
def test_another_content_type_of_a_record_is_refused(api: Api, content_type: str | None) -> None:
    api.put(placement="shared")
    answer = api.upload(b"x", content_type=content_type)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert api.state()["head_seq"] == 0


def test_a_seq_that_is_none_or_not_there_is_refused(api: Api) -> None:
    produce(api, "a", "b")
    api.delete(before_seq=2)
    for seq in ("0", "-1", "x", "1e3", "9" * 17):
        assert api.refused(400, "invalid_request", "GET", f"/records/{seq}").message.startswith("seq: ")
    for seq in ("1", "3", "1000"):
        assert f"seq {seq}" in api.refused(404, "not_found", "GET", f"/records/{seq}").message
    assert api.call("GET", "/records/2").body == b'"b"\n'


def test_lines_and_texts_are_appended_as_to_a_local_topic(api: Api) -> None:
    api.put(placement="shared")
    lines = b"".join(b'{"data":%d,"tag":"t"}\n' % number for number in range(3 * RECORDS_MAX))
    for count in (0, 3 * RECORDS_MAX):
        answer = api.upload(lines, "?as=record", "idempotency-key: k", content_type=LINES)
        assert (answer.status, answer.json["count"], answer.json["batches"]) == (200, 3 * RECORDS_MAX, 3)
        assert answer.json["deduped_count"] == count
    assert api.upload(b"a\nb", content_type="text/plain").json["last_seq"] == 3 * RECORDS_MAX + 1
    records = api.diff(include_tags=True, limit=1000)["records"]
    assert [one["data"] for one in records] == [*range(3 * RECORDS_MAX), "a\nb"]
    assert records[0]["$tag"] == "t"
    answer = api.upload(b"1\n2 3\n", content_type=LINES)
    assert answer.message.startswith("line 2: ")
