"""Records of bytes: appended as `data_base64` or as a body, and read back wherever records are read."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import FAST, HttpServer
from tests.harness.server.whole_server import WholeServer

BYTES = bytes(range(256))
TEXT = b64encode(BYTES).decode()
RECORD = {"data_base64": TEXT}


def contents(records: list[Any]) -> list[Any]:
    """The data of records as a client sees it: JSON, or bytes."""
    for record in records:
        assert ("data" in record) != ("data_base64" in record), record
    return [one["data"] if "data" in one else b64decode(one["data_base64"]) for one in records]


def test_bytes_are_read_back_as_they_were_among_json(api: Api) -> None:
    records = [{"data": 1}, RECORD, {"data_base64": ""}, {"data": TEXT}, {"data_base64": "AA==", "tag": "t"}]
    records.append({**RECORD, "tag": 'quote"', "node": "n", "meta": {"k": 1.0}})
    answer = api.call("POST", "", {"records": records})
    assert answer.json["seqs"] == [1, 2, 3, 4, 5, 6]
    read = api.diff(include_tags=True)["records"]
    assert contents(read) == [1, BYTES, b"", TEXT, b"\0", BYTES]
    assert (read[4]["$tag"], read[5]["$tag"], read[5]["$node"]) == ("t", 'quote"', "n")
    assert read[5]["meta"] == {"k": 1.0}


@pytest.mark.parametrize("size", [1, 2047, 2048, 70_000, (1 << 20) - 1, 1 << 20])
def test_bytes_of_any_size_are_read_back(api: Api, size: int) -> None:
    data = bytes(number * 31 % 256 for number in range(256)) * (size // 256 + 1)
    api.append_raw(b'{"data_base64":"%b"}' % b64encode(data[:size]))
    assert contents(api.diff()["records"]) == [data[:size]]
    answer = api.call("GET", "/records/1")
    assert (answer.status, answer.body) == (200, data[:size])


def test_the_limit_of_a_record_counts_its_bytes(api: Api) -> None:
    text = b64encode(bytes((1 << 20) + 1)).decode()
    refused = api.refused(400, "record_too_large", "POST", "", {"records": [{"data_base64": text}]})
    assert "records[0]" in refused.message
    assert refused.json["error"]["detail"]["max"] == 1 << 20


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"data_base64": TEXT, "data": 1}, "records[1].data_base64: must not be sent with data"),
        ({"data_base64": "QQ"}, "records[1].data_base64: must be base64 with padding"),
        ({"data_base64": "QQ==\n"}, "records[1].data_base64: must be base64"),
        ({"data_base64": "Q Q="}, "records[1].data_base64: must be base64"),
        ({"data_base64": "-_8="}, "records[1].data_base64: must be base64"),
        ({"data_base64": "QR=="}, "records[1].data_base64: must be base64"),
        ({"data_base64": "QQ==QQ=="}, "records[1].data_base64: must be base64"),
        ({"data_base64": "é"}, "records[1].data_base64: must be base64"),
        ({"data_base64": 5}, "records[1].data_base64: must be a string"),
        ({"data_base64": None}, "records[1].data_base64: must be a string"),
        ({"tag": "t"}, "records[1].data: is required, or data_base64"),
        ({"data_base64": TEXT, "meta": [1]}, "records[1].meta: must be a JSON object"),
        ({"data_base64": TEXT, "tag": 5}, "records[1].tag: must be a string or null"),
        ({"database64": TEXT}, "records[1].database64: unknown field, did you mean data_base64?"),
    ],
)
def test_what_is_not_base64_is_refused_by_name(api: Api, record: object, message: str) -> None:
    refused = api.refused(400, "invalid_request", "POST", "", {"records": [RECORD, record]})
    assert refused.message.startswith(message)
    api.refused(404, "topic_not_found", "GET")


def test_escaped_base64_is_base64(api: Api) -> None:
    api.append_raw(b'{"data_base64":"\\/\\/8\\u003d"}')
    assert contents(api.diff()["records"]) == [b"\xff\xff"]


def test_a_repeat_with_bytes_is_a_repeat_and_the_same_text_as_json_is_not(api: Api) -> None:
    body: dict[str, Any] = {"records": [{"data_base64": "MQ=="}], "idempotency_key": "k"}
    first = api.call("POST", "", body).json
    assert api.call("POST", "", body).json["deduped"] is True
    body["records"] = [{"data": 1}]
    api.refused(409, "idempotency_mismatch", "POST", "", body)
    assert (first["head_seq"], api.state()["head_seq"]) == (1, 1)


def test_bytes_are_deleted_filtered_and_kept_over_a_restart(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as server:
        for is_first in (True, False):
            with server.connect(FAST) as client:
                api = Api(client, "kept")
                if is_first:
                    api.call("POST", "", {"records": [{**RECORD, "tag": t, "node": t} for t in "abab"]})
                    assert api.delete(match="a")["deleted"] == 2
                assert contents(api.diff()["records"]) == [BYTES, BYTES]
                assert api.seqs(node="b") == []
            server.restart()


# -- streams, queues, routes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("bytes"), shards=request.param) as running:
        yield running


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    return server.ask_json(method, f"/v0/topics/{path}", body)


def test_streams_and_sockets_have_bytes(whole: WholeServer) -> None:
    topic = whole.topic_of(whole.shards - 1, "streamed")
    with WsClient(whole.port) as socket:
        socket.ask("publish", topic=topic, records=[{"data": 1}, RECORD])
        socket.ask("subscribe", topic=topic, after_seq=0)
        assert contents(socket.expect("record")["records"]) == [1, BYTES]
        socket.expect("caught_up")
        socket.say("publish", topic=topic, records=[{"data_base64": "?"}])
        assert socket.expect("error")["message"].startswith("records[0].data_base64: ")
    watch = whole.ask_json("POST", "/v0/watch", {"topics": {topic: {"after_seq": 0}}})
    with EventClient(whole.port, f"/v0/watch/{watch['wid']}").begin() as events:
        streamed: list[Any] = []
        while len(streamed) < 2:
            event = events.next()
            if event.name == "record":
                streamed += event.data["records"]
    assert contents(streamed) == [1, BYTES]


def test_jobs_of_bytes_are_claimed_streamed_explained_and_ordered(whole: WholeServer) -> None:
    topic = whole.topic_of(whole.shards - 1, "jobs")
    ask(whole, "PUT", topic, {"type": "queue", "order_by": "tag"})
    records = [{**RECORD, "tag": "a"}, {"data": 1, "tag": "a"}, {"data_base64": "QQ==", "tag": "b"}]
    ask(whole, "POST", topic, {"records": records})
    claimed = ask(whole, "POST", f"{topic}/claim", {"node": "w", "max": 2})["claimed"]
    assert [job["$seq"] for job in claimed] == [1, 3]
    assert contents(claimed) == [BYTES, b"A"]
    assert ask(whole, "GET", f"{topic}/explain?seq=1")["state"] == "in_flight"
    ask(whole, "POST", f"{topic}/nack", {"node": "w", "seqs": [1]})
    with EventClient(whole.port, f"/v0/topics/{topic}/work?node=v").begin() as events:
        assert contents([events.next().data]) == [BYTES]
    assert ask(whole, "POST", f"{topic}/ack", {"node": "w", "seqs": [3]})["acked"] == 1


@pytest.mark.parametrize("is_far", [False, True])
def test_dead_letters_of_bytes_are_moved_and_redriven(whole: WholeServer, is_far: bool) -> None:
    queue = whole.topic_of(0, f"queue-{is_far}")
    dead = whole.topic_of(whole.shards - 1 if is_far else 0, f"dead-{is_far}")
    ask(whole, "PUT", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
    ask(whole, "POST", queue, {"records": [{**RECORD, "tag": "t", "meta": {"k": 1}}, {"data": 2}]})
    ask(whole, "POST", f"{queue}/claim", {"node": "w", "max": 2})
    ask(whole, "POST", f"{queue}/nack", {"node": "w", "seqs": [1, 2]})
    assert ask(whole, "POST", f"{queue}/claim", {"node": "w"})["claimed"] == []

    def read(topic: str) -> list[Any]:
        answer = whole.ask("POST", f"/v0/topics/{topic}/diff", {"include_tags": True})
        return [] if answer.status == 404 else list(answer.json["records"])

    whole.wait_for(lambda: len(read(dead)) == 2, "both are dead letters")
    letters = read(dead)
    assert contents(letters) == [BYTES, 2]
    assert (letters[0]["$tag"], letters[0]["meta"]["k"]) == ("t", 1)
    assert ask(whole, "POST", f"{dead}/redrive", {})["redriven"] == 2
    assert contents(ask(whole, "POST", f"{queue}/claim", {"node": "w", "max": 9})["claimed"]) == [BYTES, 2]


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"preserve_tag": False}, {"guarantee": "exactly_once"}, {"filter": "t"}], ids=str
)
def test_copies_of_bytes_are_bytes(whole: WholeServer, is_far: bool, options: dict[str, Any]) -> None:
    name = "-".join(options) + str(is_far)
    source = whole.topic_of(0, f"source-{name}")
    dest = whole.topic_of(whole.shards - 1 if is_far else 0, f"dest-{name}")
    ask(whole, "PUT", source, {})
    route = {"source": source, "dest": dest, **options}
    assert whole.ask("PUT", f"/v0/routers/{source}", route).status == 201
    records = [{**RECORD, "tag": "t", "node": "n", "meta": {"k": 1}}, {"data_base64": "", "tag": "t"}]
    ask(whole, "POST", source, {"records": [*records, {"data": [3], "tag": "t"}]})

    def copies() -> list[Any]:
        answer = whole.ask("POST", f"/v0/topics/{dest}/diff", {"include_tags": True})
        return [] if answer.status == 404 else list(answer.json["records"])

    whole.wait_for(lambda: len(copies()) == 3, "all are copied")
    read = copies()
    assert contents(read) == [BYTES, b"", [3]]
    assert (read[0]["$node"], read[0]["meta"]["k"]) == ("n", 1)
    assert [one.get("$tag") for one in read] == [None if "preserve_tag" in options else "t"] * 3
