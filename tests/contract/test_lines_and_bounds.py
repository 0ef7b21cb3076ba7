"""Reads as lines of JSON, whole records, and the bounds of a topic."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.http_server import HttpServer
from tests.harness.server.whole_server import WholeServer

LINES = "application/x-ndjson"


def diff_lines(api: Api, *fields: str, **body: object) -> Answer:
    return api.call("POST", "/diff", body, f"accept: {LINES}", *fields)


def test_a_read_is_a_record_a_line(api: Api) -> None:
    api.append_raw(b'{"data":{"a": [1,\n 2.0]},"tag":"t","meta":{"m":\r\n1}}')
    api.append_raw(b'{"data":"line\\nend"}')
    api.append_raw(b'{"data_base64":"AAE="}')
    answer = diff_lines(api, include_tags=True)
    assert (answer.status, answer.fields["content-type"]) == (200, LINES)
    lines = answer.body.split(b"\n")
    assert lines.pop() == b""
    assert b'"data":{"a": [1,  2.0]}' in lines[0]
    assert [json.loads(line) for line in lines] == api.diff(include_tags=True)["records"]
    names = ("topics-next-from-seq", "topics-head-seq", "topics-earliest-seq")
    assert [answer.fields[name] for name in names] == ["3", "3", "1"]
    assert int(answer.fields["topics-epoch"]) == api.state()["epoch"]
    assert "topics-tombstone" not in answer.fields


def test_lines_take_the_options_of_a_read(api: Api) -> None:
    api.append(*range(10))
    answer = diff_lines(api, after_seq=2, limit=3)
    assert [json.loads(line)["data"] for line in answer.body.splitlines()] == [2, 3, 4]
    assert answer.fields["topics-next-from-seq"] == "5"
    assert json.loads(diff_lines(api, limit=5000).fields["topics-clamped"]) == {"limit": 1000}
    packed = diff_lines(api, "accept-encoding: gzip", limit=1000)
    body = gzip.decompress(packed.body) if "content-encoding" in packed.fields else packed.body
    assert len(body.splitlines()) == 10
    nothing = diff_lines(api, after_seq=10)
    assert (nothing.status, nothing.body, nothing.fields["topics-next-from-seq"]) == (200, b"", "10")


def test_a_loss_is_in_a_header(api: Api) -> None:
    api.put(cap_records=2)
    api.append(1, 2, 3)
    answer = diff_lines(api)
    tombstone = json.loads(answer.fields["topics-tombstone"])
    assert tombstone == api.diff()["tombstone"]
    assert [json.loads(line)["data"] for line in answer.body.splitlines()] == [2, 3]


def test_an_error_is_json(api: Api) -> None:
    answer = diff_lines(api)
    assert (answer.status, answer.code) == (404, "topic_not_found")


def test_any_accept_that_does_not_name_lines_gets_json(api: Api) -> None:
    api.append(1)
    for accept in ("*/*", "application/json", "text/html, application/*"):
        answer = api.call("POST", "/diff", {}, f"accept: {accept}")
        assert answer.fields["content-type"] == "application/json"


def test_a_read_that_waits_ends_with_lines(server: HttpServer, lane: str, api: Api) -> None:
    api.append(1)
    answers: list[Answer] = []
    with server.connect(lane) as other:
        reader = Api(other, api.topic)
        thread = threading.Thread(
            target=lambda: answers.append(diff_lines(reader, after_seq=1, wait_ms=20_000))
        )
        thread.start()
        api.append(2)
        thread.join()
    assert [json.loads(line)["data"] for line in answers[0].body.splitlines()] == [2]
    assert answers[0].fields["topics-next-from-seq"] == "2"


# -- one whole record ----------------------------------------------------------------------------------------


def test_a_record_is_returned_whole_on_request(api: Api) -> None:
    api.append_raw(b'{"data":1.0,"tag":"t","node":"n","meta":{"m": 1}}')
    api.append_raw(b'{"data_base64":"AAE="}')
    records = api.diff(include_tags=True)["records"]
    for seq in (1, 2):
        answer = api.call("GET", f"/records/{seq}?as=record")
        assert (answer.status, json.loads(answer.body)) == (200, records[seq - 1])
    assert b'"meta":{"m": 1},"data":1.0' in api.call("GET", "/records/1?as=record").body
    assert api.call("GET", "/records/1?as=data").body == b"1.0\n"
    api.refused(404, "not_found", "GET", "/records/3?as=record")
    assert api.refused(400, "invalid_request", "GET", "/records/1?as=x").message.startswith("as: ")


# -- bounds --------------------------------------------------------------------------------------------------


def test_bounds_are_the_range_of_a_topic(api: Api) -> None:
    api.refused(404, "topic_not_found", "GET", "/bounds")
    api.put()
    empty = api.call("GET", "/bounds").json
    epoch = api.state()["epoch"]
    assert {**empty, "performance": 0} == {
        "topic": api.topic,
        "epoch": epoch,
        "earliest_seq": 1,
        "head_seq": 0,
        "next_seq": 1,
        "evict_floor": 1,
        "first": None,
        "last": None,
        "performance": 0,
    }
    api.append(*range(6))
    api.delete(before_seq=2)
    api.delete(seqs=[6])
    records = api.diff()["records"]
    bounds = api.call("GET", "/bounds").json
    assert bounds["first"] == {"$seq": 2, "$ts": records[0]["$ts"]}
    assert bounds["last"] == {"$seq": 5, "$ts": records[-1]["$ts"]}
    names = ("earliest_seq", "head_seq", "next_seq", "evict_floor")
    assert [bounds[name] for name in names] == [2, 6, 7, 1]
    api.delete(before_seq=7)
    assert [api.call("GET", "/bounds").json[name] for name in ("first", "last")] == [None, None]
    api.put(cap_records=1)
    api.append(1, 2)
    bounds = api.call("GET", "/bounds").json
    assert (bounds["evict_floor"], bounds["first"]["$seq"], bounds["last"]["$seq"]) == (8, 8, 8)


def test_bounds_name_unknown_parameters(api: Api) -> None:
    api.append(1)
    assert api.refused(400, "invalid_request", "GET", "/bounds?seq=1").message.startswith("seq: ")


@pytest.mark.parametrize("placement", ["local", "shared"])
def test_lines_and_bounds_of_any_topic(tmp_path: Path, placement: str) -> None:
    (tmp_path / "store").mkdir()
    flags = (f"--store-url=file://{tmp_path / 'store'}", "--batch-max-delay-ms=10")
    with WholeServer(tmp_path, *flags, shards=2) as server, RawClient(server.port) as client:
        for shard in range(2):
            api = Api(client, server.topic_of(shard, f"t{shard}"))
            if placement == "shared":
                api.put(placement="shared")
            api.append(1, 2, 3)
            answer = diff_lines(api, after_seq=1)
            assert [json.loads(line)["data"] for line in answer.body.splitlines()] == [2, 3]
            bounds = api.call("GET", "/bounds").json
            assert (bounds["earliest_seq"], bounds["head_seq"]) == (1, 3)
            assert (bounds["first"]["$seq"], bounds["last"]["$seq"], bounds["evict_floor"]) == (1, 3, 1)
            assert json.loads(api.call("GET", "/records/2?as=record").body)["data"] == 2
