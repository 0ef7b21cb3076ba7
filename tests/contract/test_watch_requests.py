"""A watch session: every bound of what is asked for, what it answers, who may open it. In all lanes."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.contract.api_keys import parse_keys
from shared.contract.watch_id import WatchIds
from tests.contract.api import Api
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.raw_client import Answer, HttpClient, RawClient
from tests.harness.server.http_server import INSTANCE, HttpServer
from topicsd.log.control_frame import SessionFrame

BEARER = "authorization: Bearer"
KEYS = "key-of-everybody,key-of-orders:r:orders.,key-of-others:r:other.,key-that-writes:w"


def ask(client: HttpClient, body: object, query: str = "", *fields: str) -> Answer:
    return client.ask("POST", f"/v0/watch{query}", body, *fields)


def definition(server: HttpServer, wid: str) -> SessionFrame:
    parsed = WatchIds(INSTANCE).parse(wid)
    assert parsed is not None
    return server.run(lambda: server.shard.state.watch_sessions[parsed.session])


@pytest.fixture
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data"), keys=KEYS) as running:
        yield running


def test_a_position_past_the_head_is_refused_with_the_head(api: Api) -> None:
    api.append(1, 2)
    epoch = api.state()["epoch"]
    answer = ask(api.client, {"topics": {api.topic: {"from_seq": 3, "epoch": epoch}}})
    assert (answer.status, answer.json["error"]["code"]) == (409, "position_past_head")
    assert answer.json["error"]["detail"] == {"topic": api.topic, "head_seq": 2, "epoch": epoch}
    assert ask(api.client, {"topics": {api.topic: {"from_seq": 3}}}).status == 200


def test_it_says_where_every_topic_begins_and_stands(api: Api) -> None:
    other = f"other-{api.topic}"[:255]
    api.append(1, 2, 3)
    api.delete(before_seq=3)
    api.client.ask("POST", f"/v0/topics/{other}", b'{"records":[{"data":1}]}')
    topics = {api.topic: {"from_seq": 1}, other: {"tail": True}}
    answer = ask(api.client, {"topics": topics})
    assert answer.status == 200
    session = answer.json
    wid = session["wid"]
    assert len(wid) == 32
    assert session["stream_url"] == f"/v0/watch/{wid}"
    assert session["session_ttl_ms"] == 300_000
    assert session["performance"]["server_total_ms"] >= 0
    first, second = session["topics"][api.topic], session["topics"][other]
    assert first == {"from_seq": 1, "head_seq": 3, "earliest_seq": 3, "epoch": api.state()["epoch"]}
    assert (second["from_seq"], second["head_seq"], second["earliest_seq"]) == (1, 1, 1)
    assert session.keys() == {"wid", "stream_url", "session_ttl_ms", "topics", "performance"}


def test_every_session_has_an_id_of_its_own(api: Api) -> None:
    api.append(1)
    wids = {ask(api.client, {"topics": {api.topic: {}}}).json["wid"] for _ in range(50)}
    assert len(wids) == 50


@pytest.mark.parametrize(
    ("sent", "field", "kept"),
    [
        ({}, "limit", 256),
        ({"limit": 0}, "limit", 256),
        ({"limit": 7}, "limit", 7),
        ({"limit": 100_000}, "limit", 1000),
        ({}, "bytes_max", 262_144),
        ({"max_batch_bytes": 0}, "bytes_max", 1 << 20),
        ({"max_batch_bytes": 1}, "bytes_max", 1),
        ({"max_batch_bytes": 1 << 40}, "bytes_max", 8 << 20),
        ({}, "heartbeat_ms", 15_000),
        ({"heartbeat_ms": 1000}, "heartbeat_ms", 1000),
        ({"heartbeat_ms": 60_000}, "heartbeat_ms", 60_000),
        ({}, "with_meta", True),
        ({"include_meta": False}, "with_meta", False),
        ({}, "with_tags", False),
        ({"include_tags": True}, "with_tags", True),
        ({}, "with_data", True),
        ({"include_data": False}, "with_data", False),
        ({}, "is_strong", False),
        ({"consistency": "eventual"}, "is_strong", False),
        ({"consistency": "strong"}, "is_strong", True),
        ({}, "nodes", []),
        ({"node": None}, "nodes", []),
        ({"node": "a"}, "nodes", ["a"]),
        ({"node": ["b", "a", "b"]}, "nodes", ["a", "b"]),
        ({}, "from_seqs", [0]),
        ({"topics": {"t": {"tail": False}}}, "from_seqs", [0]),
        ({"topics": {"t": {"tail": True}}}, "from_seqs", [1]),
        ({"topics": {"t": {"from_seq": 9, "epoch": 5}}}, "epochs", [5]),
    ],
)
def test_what_is_asked_for_is_kept_within_its_bounds(
    server: HttpServer, api: Api, sent: dict[str, Any], field: str, kept: object
) -> None:
    api.append(1)
    (request,) = sent.get("topics", {"t": {}}).values()
    answer = ask(api.client, {**sent, "topics": {api.topic: request}})
    assert answer.status == 200, answer
    assert getattr(definition(server, answer.json["wid"]), field) == kept


ONE = {"topics": {"t": {}}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "topics: is required"),
        (b"[]", "body"),
        (b'{"topics":{"t":{}}', "JSON"),
        ({}, "topics"),
        ({"topics": []}, "topics"),
        ({"topics": {}}, "topics: must have 1 to 256 entries, got 0"),
        ({"topics": {f"t{n}": {} for n in range(257)}}, "topics: must have 1 to 256 entries, got 257"),
        ({"topics": {"t": 1}}, "topics"),
        ({"topics": {"-t": {}}}, "topics"),
        ({"topics": {"a\0b": {}}}, "topics"),
        ({"topics": {"t": {"from_seq": -1}}}, "topics.t.from_seq: must be at least 0"),
        ({"topics": {"t": {"from_seq": 1 << 63}}}, "topics.t.from_seq: must be at most"),
        ({"topics": {"t": {"from_seq": 1.5}}}, "from_seq"),
        ({"topics": {"t": {"from_seq": 1, "tail": True}}}, "topics.t.tail: must not be sent with after_seq"),
        ({"topics": {"t": {"epoch": -1}}}, "topics.t.epoch"),
        ({"topics": {"t*": {"after_seq": 1}}}, "topics.t*.after_seq: must not be sent for a pattern"),
        ({"topics": {"t*": {"after_seq": 0, "epoch": 1}}}, "topics.t*.epoch: must not be sent for a pattern"),
        ({"topics": {"*t /": {}}}, "topics"),
        ({**ONE, "missing": "later"}, 'missing: must be one of "refuse", "wait", got "later"'),
        ({**ONE, "limit": -1}, "limit: must be at least 0"),
        ({**ONE, "max_batch_bytes": -1}, "max_batch_bytes: must be at least 0"),
        ({**ONE, "heartbeat_ms": 999}, "heartbeat_ms: must be from 1000 to 60000"),
        ({**ONE, "heartbeat_ms": 60_001}, "heartbeat_ms: must be from 1000 to 60000"),
        ({**ONE, "heartbeat_ms": 0}, "heartbeat_ms"),
        ({**ONE, "consistency": "weak"}, 'consistency: must be one of "eventual", "strong", got "weak"'),
        ({**ONE, "include_meta": 1}, "include_meta"),
        ({**ONE, "node": 1}, "node"),
        ({**ONE, "node": "a\0"}, "node: must not contain a NUL"),
        ({**ONE, "node": "n" * 129}, "node: must be at most 128 bytes, got 129"),
        ({**ONE, "node": [f"n{n}" for n in range(257)]}, "node: must have at most 256 entries, got 257"),
        (b'{"x":' + b"[" * 70 + b"]" * 70 + b',"topics":{"t":{}}}', "x: unknown field; allowed: "),
        ({**ONE, "heartbeat": 1}, "heartbeat: unknown field, did you mean heartbeat_ms?"),
        ({"topics": {"t": {}, "u": {"from": 1}}}, "topics.u.from: unknown field, did you mean from_"),
        (b'{"topics":{"t":{}},"x":"\xff"}', "UTF-8"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(api: Api, body: object, message: str) -> None:
    answer = ask(api.client, body)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert message in answer.message


def test_a_large_body_of_nothing_is_read_and_refused(api: Api) -> None:
    answer = ask(api.client, b'{"topics":{},"x":[%b0]}' % (b"0," * (4 << 20)))
    assert (answer.status, answer.code) == (400, "invalid_request")
    many = b",".join([b'"t%d":{}' % n for n in range(200_000)])
    assert "topics" in ask(api.client, b'{"topics":{%b}}' % many).message


@pytest.mark.parametrize(("query", "status"), [("?lenient=maybe", 400), ("?lenient=0", 404), ("", 404)])
def test_a_topic_that_does_not_exist_is_404(api: Api, query: str, status: int) -> None:
    api.append(1)
    answer = ask(api.client, {"topics": {api.topic: {}, "missing": {}}}, query)
    assert (answer.status, answer.code) == (status, {400: "invalid_request", 404: "topic_not_found"}[status])
    if status == 404:
        assert '"missing"' in answer.message


def test_lenient_leaves_out_what_does_not_exist_but_not_all(api: Api) -> None:
    api.append(1)
    answer = ask(api.client, {"topics": {"missing": {}, api.topic: {}}}, "?lenient=true")
    assert list(answer.json["topics"]) == [api.topic]
    answer = ask(api.client, {"topics": {"missing": {}}}, "?lenient=true")
    assert (answer.status, answer.code) == (404, "topic_not_found")


def test_bodies_come_in_every_legal_form(api: Api) -> None:
    api.append(1)
    body = json.dumps({"topics": {api.topic: {}}}).encode()
    assert api.client.ask("POST", "/v0/watch", body, content_type="text/plain").status == 415
    assert api.client.ask("POST", "/v0/watch", body, content_type=None).status == 415
    assert ask(api.client, gzip.compress(body), "", "content-encoding: gzip").status == 200
    assert ask(api.client, body).status == 200


# -- the stream ----------------------------------------------------------------------------------------------


def test_an_id_of_another_server_is_404_and_one_that_ended_is_410(api: Api) -> None:
    other = WatchIds(b"another---------").make(0, bytes(16))
    for wid in ("w", "", "%2e%2e", other, other[:-1]):
        answer = api.client.ask("GET", f"/v0/watch/{wid}")
        assert (answer.status, answer.code) == (404, "not_found"), wid
    gone = WatchIds(INSTANCE).make(0, bytes(16))
    answer = api.client.ask("GET", f"/v0/watch/{gone}")
    message = "the watch session has ended; create a new one with POST /v0/watch"
    assert (answer.status, answer.code, answer.json["error"]["message"]) == (410, "gone", message)


def test_methods_are_as_everywhere(api: Api) -> None:
    api.append(1)
    wid = ask(api.client, {"topics": {api.topic: {}}}).json["wid"]
    head = api.client.ask("HEAD", f"/v0/watch/{wid}")
    assert (head.status, head.fields["content-type"]) == (200, "text/event-stream")
    assert api.client.ask("POST", f"/v0/watch/{wid}", b"{}").fields["allow"] == "GET, HEAD"
    assert api.client.ask("GET", "/v0/watch").fields["allow"] == "POST"


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (None, 200),
        ("*/*", 200),
        ("text/event-stream", 200),
        ("TEXT/*", 200),
        ("application/json, text/event-stream;q=0.1", 200),
        ("application/json", 406),
        ("text/html", 406),
        ("text/event-stream;q=0", 406),
        ("text/event-stream;q=0, */*", 406),
    ],
)
def test_a_client_has_to_take_events(api: Api, accept: str | None, status: int) -> None:
    api.append(1)
    wid = ask(api.client, {"topics": {api.topic: {}}}).json["wid"]
    fields = [] if accept is None else [f"accept: {accept}"]
    answer = api.client.ask("HEAD", f"/v0/watch/{wid}", None, *fields)
    assert answer.status == status
    if status == 406:
        answer = api.client.ask("GET", f"/v0/watch/{wid}", None, *fields)
        assert answer.code == "not_acceptable"


@pytest.mark.http1
def test_a_stream_says_what_there_is(server: HttpServer, lane: str, api: Api) -> None:
    api.append(1, 2)
    wid = ask(api.client, {"topics": {api.topic: {"from_seq": 1}}}).json["wid"]
    with EventClient(server.ports[lane], f"/v0/watch/{wid}") as stream:
        assert stream.begin().fields["content-type"] == "text/event-stream"
        assert stream.fields["cache-control"] == "no-store"
        assert stream.fields["x-accel-buffering"] == "no"
        assert stream.records(1) == [(api.topic, 2)]
        api.append(3)
        assert stream.records(1) == [(api.topic, 3)]


@pytest.mark.http1
def test_for_who_does_not_read_the_kernel_holds_no_more_than_a_little(
    server: HttpServer, lane: str, api: Api
) -> None:
    filler = "x" * 20_000
    for _ in range(25):
        api.append(*[filler] * 10)
    wid = ask(api.client, {"topics": {api.topic: {}}, "limit": 10}).json["wid"]
    known = WatchIds(INSTANCE).parse(wid)
    assert known is not None
    with EventClient(server.ports[lane], f"/v0/watch/{wid}", buffer_bytes=4096) as stream:
        stream.begin()
        session = server.dispatch.streams.sessions.find(known.session)
        assert session is not None
        delivered, before = 1, 0
        while delivered > before:
            time.sleep(0.05)
            delivered, before = server.run(lambda: session.seqs[0]), delivered
        assert delivered * len(filler) < 1 << 20
        # Later reads continue after that.
        assert [seq for _, seq in stream.records(delivered + 1)] == list(range(1, delivered + 11))


@pytest.mark.http1
def test_a_second_stream_takes_over(server: HttpServer, lane: str, api: Api) -> None:
    api.append(1)
    wid = ask(api.client, {"topics": {api.topic: {}}}).json["wid"]
    with EventClient(server.ports[lane], f"/v0/watch/{wid}") as first:
        assert first.begin().records(1) == [(api.topic, 1)]
        with EventClient(server.ports[lane], f"/v0/watch/{wid}") as second:
            second.begin()
            while (event := first.next()).name != "error":
                pass
            assert event.data["code"] == "taken_over"
            first.read_end()
            api.append(2)
            assert second.records(1) == [(api.topic, 2)]


@pytest.mark.http1
def test_an_id_of_an_event_that_is_none_is_refused_and_holds_no_place(
    tmp_path_factory: pytest.TempPathFactory, lane: str
) -> None:
    with (
        HttpServer(tmp_path_factory.mktemp("data"), max_sse_connections=1) as server,
        RawClient(server.ports[lane]) as client,
    ):
        client.ask("POST", "/v0/topics/a", b'{"records":[{"data":1}]}')
        target = f"/v0/watch/{ask(client, {'topics': {'a': {}}}).json['wid']}"
        for _ in range(2):
            answer = client.ask("GET", target, None, "last-event-id: ???")
            assert (answer.status, answer.code) == (400, "invalid_request")
        with EventClient(server.ports[lane], target) as stream:
            stream.begin()


# -- caps ----------------------------------------------------------------------------------------------------


@pytest.mark.http1
def test_there_are_no_more_sessions_and_streams_than_there_may_be(
    tmp_path_factory: pytest.TempPathFactory, lane: str
) -> None:
    with (
        HttpServer(tmp_path_factory.mktemp("data"), max_watch_sessions=2, max_sse_connections=1) as server,
        RawClient(server.ports[lane]) as client,
    ):
        client.ask("POST", "/v0/topics/a", b'{"records":[{"data":1}]}')
        wids = [ask(client, {"topics": {"a": {}}}).json["wid"] for _ in range(2)]
        answer = ask(client, {"topics": {"a": {}}})
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json["error"]["detail"]["limit"] == "max_watch_sessions"
        assert answer.json["error"]["detail"]["max"] == 2
        assert int(answer.fields["retry-after"]) >= 1
        with EventClient(server.ports[lane], f"/v0/watch/{wids[0]}") as stream:
            stream.begin()
            answer = client.ask("GET", f"/v0/watch/{wids[1]}")
            assert (answer.status, answer.json["error"]["detail"]["limit"]) == (429, "max_sse_connections")
            # One that takes over is no more than there were.
            with EventClient(server.ports[lane], f"/v0/watch/{wids[0]}") as other:
                other.begin()


# -- keys ----------------------------------------------------------------------------------------------------


def test_a_session_is_for_the_key_that_made_it(keyed: HttpServer, lane: str) -> None:
    with keyed.connect(lane) as client:
        everybody = "authorization: Bearer key-of-everybody"
        orders = "authorization: Bearer key-of-orders"
        for name in ("orders.eu", "private"):
            client.ask("POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}', everybody)
        assert ask(client, {"topics": {"orders.eu": {}}}).status == 401
        refused = ask(client, {"topics": {"orders.eu": {}}}, "", "authorization: Bearer key-that-writes")
        assert (refused.status, refused.code) == (403, "forbidden")
        wid = ask(client, {"topics": {"orders.eu": {}}}, "", orders).json["wid"]
        for field in (everybody, "authorization: Bearer key-of-others"):
            answer = client.ask("GET", f"/v0/watch/{wid}", None, field)
            assert (answer.status, answer.code) == (403, "forbidden")
        assert client.ask("GET", f"/v0/watch/{wid}").status == 401
        assert client.ask("GET", f"/v0/watch/{wid}?token=unknown-key").status == 401
        assert client.ask("HEAD", f"/v0/watch/{wid}?token=key-of-orders").status == 200
        assert client.ask("HEAD", f"/v0/watch/{wid}", None, orders).status == 200
        # Nowhere else.
        assert client.ask("GET", "/v0/topics/orders.eu?token=key-of-orders").status == 401
        assert ask(client, {"topics": {"orders.eu": {}}}, "?token=key-of-orders").status == 401


def test_a_key_that_is_not_for_all_names_any_more_does_not_open_it(keyed: HttpServer, lane: str) -> None:
    with keyed.connect(lane) as client:
        for name in ("orders.eu", "orders.us"):
            client.ask(
                "POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}', f"{BEARER} key-of-everybody"
            )
        field = f"{BEARER} key-of-orders"
        wid = ask(client, {"topics": {"orders.eu": {}, "orders.us": {}}}, "", field).json["wid"]
        assert client.ask("HEAD", f"/v0/watch/{wid}", None, field).status == 200
        keyed.dispatch.keys = parse_keys("key-of-orders:r:orders.e")
        assert client.ask("HEAD", f"/v0/watch/{wid}", None, field).status == 403
        keyed.dispatch.keys = parse_keys("")
        assert client.ask("HEAD", f"/v0/watch/{wid}").status == 200


@pytest.mark.http1
@pytest.mark.parametrize("keys", ["another-key:r", "key-of-reader:w", "key-of-reader:r:others."])
def test_a_key_that_is_taken_back_ends_its_streams(tmp_path: Path, lane: str, keys: str) -> None:
    field, other = f"{BEARER} key-of-reader", f"{BEARER} key-of-everybody"
    with HttpServer(tmp_path, keys="key-of-reader:r,key-of-everybody") as server:
        with server.connect(lane) as client:
            client.ask("POST", "/v0/topics/orders.eu", b'{"records":[{"data":1}]}', other)
            mine, theirs = (
                ask(client, {"topics": {"orders.eu": {}}}, "", one).json["stream_url"]
                for one in (field, other)
            )
        with (
            EventClient(server.ports[lane], mine, field) as stream,
            EventClient(server.ports[lane], theirs, other) as beside,
        ):
            for one in (stream, beside):
                one.begin()
                assert [one.next().name, one.next().name] == ["record", "caught-up"]
            server.change_keys(f"{keys},key-of-everybody")
            last = stream.next()
            assert (last.name, last.data["code"]) == ("error", "unauthorized")
            with server.connect(lane) as client:
                client.ask("POST", "/v0/topics/orders.eu", b'{"records":[{"data":2}]}', other)
            assert beside.next().name == "record"


def test_names_are_bound_by_prefixes_whether_they_exist_or_not(keyed: HttpServer, lane: str) -> None:
    with keyed.connect(lane) as client:
        everybody = "authorization: Bearer key-of-everybody"
        orders = "authorization: Bearer key-of-orders"
        for name in ("orders.eu", "private"):
            client.ask("POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}', everybody)
        for name in ("private", "absent"):
            answer = ask(client, {"topics": {"orders.eu": {}, name: {}}}, "", orders)
            assert (answer.status, answer.code) == (403, "forbidden")
            assert f'"{name}"' in answer.message
            answer = ask(client, {"topics": {"orders.eu": {}, name: {}}}, "?lenient=1", orders)
            assert list(answer.json["topics"]) == ["orders.eu"]
            assert ask(client, {"topics": {name: {}}}, "?lenient=1", orders).status == 403


@pytest.mark.http1
def test_streams_of_one_key_are_bounded(tmp_path_factory: pytest.TempPathFactory, lane: str) -> None:
    with (
        HttpServer(
            tmp_path_factory.mktemp("data"),
            keys="key-number-one,key-number-two",
            max_sse_connections_per_key=1,
        ) as server,
        RawClient(server.ports[lane]) as client,
    ):
        fields = [f"authorization: Bearer key-number-{number}" for number in ("one", "two")]
        client.ask("POST", "/v0/topics/a", b'{"records":[{"data":1}]}', fields[0])
        wids = [ask(client, {"topics": {"a": {}}}, "", field).json["wid"] for field in (*fields, fields[0])]
        with (
            EventClient(server.ports[lane], f"/v0/watch/{wids[0]}", fields[0]) as one,
            EventClient(server.ports[lane], f"/v0/watch/{wids[1]}", fields[1]) as two,
        ):
            one.begin()
            two.begin()
            answer = client.ask("GET", f"/v0/watch/{wids[2]}", None, fields[0])
            assert answer.status == 429
            assert answer.json["error"]["detail"]["limit"] == "max_sse_connections_per_key"
