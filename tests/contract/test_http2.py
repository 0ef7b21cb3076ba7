"""What is special to HTTP/2: streams that do not wait for each other, heads, bodies, and how it all ends."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from h2.errors import ErrorCodes

from tests.harness.clients.h2_client import H2Client, Headers, request_headers
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.http_server import H2, HttpServer
from tests.harness.server.processes import wait_until

RECORDS = b'{"records":[{"data":1}]}'
JSON_FIELD = (b"content-type", b"application/json")
MIB = 1 << 20


@pytest.fixture
def client(server: HttpServer) -> Iterator[H2Client]:
    with H2Client(server.ports[H2]) as one:
        yield one


# -- streams -----------------------------------------------------------------------------------------------


def test_streams_do_not_wait_for_each_other(client: H2Client, path: str) -> None:
    assert client.ask("PUT", path, b"{}").status == 201
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
    assert client.ask("GET", path).json["head_seq"] == 0
    assert client.ask("POST", path, RECORDS).json["first_seq"] == 1
    assert len(client.finish(waiting).json["records"]) == 1


def test_appends_start_in_the_order_in_which_they_came_whole(client: H2Client, path: str) -> None:
    headers = [*request_headers("POST", path), JSON_FIELD]
    late = client.open(headers, ends=False)
    client.send_body(late, RECORDS[:5], ends=False)
    requests = [client.start("POST", path, RECORDS) for _ in range(20)]
    client.send_body(late, RECORDS[5:])
    requests.append(late)
    assert [client.finish(one).json["first_seq"] for one in requests] == list(range(1, 22))


def test_a_hundred_streams_are_taken_at_once_and_one_more_is_the_end(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    requests = [client.start("POST", f"{path}/diff", b'{"wait_ms":30000}') for _ in range(99)]
    assert client.ask("POST", path, RECORDS).status == 200
    assert [client.finish(one).status for one in requests] == [200] * 99
    requests = [client.start("POST", f"{path}/diff", b'{"from_seq":1,"wait_ms":30000}') for _ in range(100)]
    client.wire.remote_settings.max_concurrent_streams = 1000
    client.wire.remote_settings.acknowledge()
    client.start("GET", path)
    client.read_to_end()
    assert client.gone_away is not None
    assert client.gone_away.error_code == ErrorCodes.PROTOCOL_ERROR


def test_a_stream_that_is_cancelled_is_waited_for_no_longer(
    server: HttpServer, client: H2Client, path: str, topic: str
) -> None:
    client.ask("PUT", path, b"{}")
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
    wait_until(lambda: server.run(lambda: bool(server.shard.state.topics[topic].waiters)))
    client.reset(waiting)
    wait_until(lambda: server.run(lambda: server.shard.state.topics[topic].waiters is None))
    assert client.ask("POST", path, RECORDS).json["first_seq"] == 1


def test_data_behind_the_end_of_a_stream_resets_that_stream_only(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
    client.send_frame(0, 0, waiting, b"more")
    while waiting not in client.resets:
        client.read_some()
    assert client.resets[waiting] == ErrorCodes.STREAM_CLOSED
    assert client.ask("GET", path).status == 200


def test_large_answers_of_several_streams_come_through(client: H2Client, path: str) -> None:
    for _ in range(8):
        client.ask("POST", path, b'{"records":[{"data":"%b"}]}' % (b"x" * (MIB // 8)))
    requests = [client.start("POST", f"{path}/diff", b'{"from_seq":%d}' % n) for n in range(8)]
    for n, one in enumerate(requests):
        records = client.finish(one).json["records"]
        assert [record["$seq"] for record in records] == list(range(n + 1, n + 1 + len(records)))
        assert all(record["data"] == "x" * (MIB // 8) for record in records)


# -- heads -------------------------------------------------------------------------------------------------


def _head(*more: tuple[bytes, bytes], **replaced: bytes | None) -> Headers:
    """Of a GET; `path=None` leaves out the pseudo field `:path`."""
    fields = {"method": b"GET", "scheme": b"http", "authority": b"a", "path": b"/v0/topics/none"}
    fields.update(replaced)  # type: ignore[arg-type]
    kept = [(b":" + name.encode(), value) for name, value in fields.items() if value is not None]
    return [*kept, *more]


BROKEN = {
    "a name with a capital": _head((b"X-A", b"b")),
    "connection": _head((b"connection", b"close")),
    "keep-alive": _head((b"keep-alive", b"5")),
    "transfer-encoding": _head((b"transfer-encoding", b"chunked")),
    "upgrade": _head((b"upgrade", b"h2c")),
    "te": _head((b"te", b"gzip")),
    "no path": _head(path=None),
    "an empty path": _head(path=b""),
    "no method": _head(method=None),
    "no scheme": _head(scheme=None),
    "no authority and no host": _head(authority=None),
    "another host": _head((b"host", b"b")),
    "two hosts": _head((b"host", b"a"), (b"host", b"a")),
    "a status": _head((b":status", b"200")),
    "a pseudo field that is none": [(b":x", b"y"), *_head()],
    "a path twice": [(b":path", b"/"), *_head()],
    "a pseudo field behind the others": [*_head(path=None), (b"x", b"y"), (b":path", b"/")],
    "an empty name": _head((b"", b"y")),
    "a CR in a value": _head((b"x", b"a\rb")),
    "a LF in a value": _head((b"x", b"a\nb: c")),
    "a NUL in a value": _head((b"x", b"a\0b")),
    "a LF in the path": _head(path=b"/ HTTP/1.1\nx: y"),
    "a blank behind a value": _head((b"x", b"y ")),
    "two lengths": _head((b"content-length", b"1"), (b"content-length", b"2")),
    "a length that is none": _head((b"content-length", b"x")),
}


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
def test_what_no_client_may_send_ends_the_connection(client: H2Client, headers: Headers) -> None:
    client.open(headers)
    client.read_to_end()
    assert client.gone_away is not None
    assert client.gone_away.error_code == ErrorCodes.PROTOCOL_ERROR


REFUSED = {
    "a length with a zero in front": (_head((b"content-length", b"00")), 400, "invalid_request"),
    "the same length twice": (
        _head((b"content-length", b"0"), (b"content-length", b"0")),
        400,
        "invalid_request",
    ),
    "a length of what does not come": (_head((b"content-length", b"5")), 400, "invalid_request"),
    "a host with a user": (_head(authority=b"u@a"), 400, "invalid_request"),
    "an empty host": (_head(authority=b""), 400, "invalid_request"),
    "a list of hosts": (_head(authority=b"a,b"), 400, "invalid_request"),
    "a path with a blank": (_head(path=b"/v0/topics/a b"), 400, "invalid_request"),
    "a path with another version": (_head(path=b"/ HTTP/1.1"), 400, "invalid_request"),
    "a path with a fragment": (_head(path=b"/v0/topics/a#b"), 400, "invalid_request"),
    "a path that is none": (_head(path=b"v0"), 400, "invalid_request"),
    "an absolute path": (_head(path=b"http://a/v0/topics/none"), 400, "invalid_request"),
    "a star": (_head(method=b"OPTIONS", path=b"*"), 400, "invalid_request"),
    "a method with a blank": (_head(method=b"GET /x"), 400, "invalid_request"),
    "a control character": (_head((b"x", b"a\x01b")), 400, "invalid_request"),
    "two keys": (_head((b"authorization", b"a"), (b"authorization", b"a")), 400, "invalid_request"),
    "a key that is not UTF-8": (_head((b"idempotency-key", b"\xff")), 400, "invalid_request"),
    "an unknown method": (_head(method=b"BREW"), 501, "not_implemented"),
    "TRACE": (_head(method=b"TRACE"), 405, "method_not_allowed"),
    "CONNECT": (_head(method=b"CONNECT", path=None, scheme=None), 405, "method_not_allowed"),
    "a coding that is none": (_head((b"content-encoding", b"br")), 415, "unsupported_media_type"),
    "a long line": (_head(path=b"/?" + b"x" * 8200), 414, "uri_too_long"),
    "nothing wrong": (_head(), 404, "topic_not_found"),
    "a host beside the authority": (_head((b"host", b"a")), 404, "topic_not_found"),
    "a host instead of it": (_head((b"host", b"a"), authority=None), 404, "topic_not_found"),
    "an expectation": (_head((b"expect", b"100-continue")), 404, "topic_not_found"),
    "an unknown expectation": (_head((b"expect", b"200-ok")), 404, "topic_not_found"),
    "trailers are understood": (_head((b"te", b"trailers")), 404, "topic_not_found"),
}


@pytest.mark.parametrize(("headers", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_with_a_request_ends_its_stream_only(
    client: H2Client, headers: Headers, status: int, code: str
) -> None:
    answer = client.finish(client.open(headers))
    assert (answer.status, answer.code) == (status, code)
    assert "connection" not in answer.fields
    assert ("allow" in answer.fields) == (status == 405)
    assert client.ask("GET", "/v0/topics/none").status == 404


def test_a_first_line_of_exactly_the_limit_is_read_and_one_byte_more_is_414(client: H2Client) -> None:
    room = 8192 - len("GET /x? HTTP/1.1")
    assert client.ask("GET", "/x?" + "x" * room).code == "not_found"
    assert client.ask("GET", "/x?" + "x" * (room + 1)).code == "uri_too_long"


def test_header_fields_of_exactly_the_limit_are_read_and_one_byte_more_is_431(client: H2Client) -> None:
    room = (32 << 10) - len("host: a\r\nx: ")
    assert client.finish(client.open(_head((b"x", b"y" * room)))).status == 404
    answer = client.finish(client.open(_head((b"x", b"y" * (room + 1)))))
    assert (answer.status, answer.code) == (431, "headers_too_large")
    assert client.ask("GET", "/x").status == 404


def test_a_hundred_header_fields_are_read_and_one_more_is_431(client: H2Client) -> None:
    fields = [(b"x-%d" % n, b"y") for n in range(99)]
    assert client.finish(client.open(_head(*fields))).status == 404
    answer = client.finish(client.open(_head(*fields, (b"x", b"y"))))
    assert (answer.status, answer.code) == (431, "headers_too_large")
    assert client.ask("GET", "/x").status == 404


# -- bodies ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data"), max_body_bytes=MIB) as running:
        yield running


@pytest.fixture
def narrow_client(narrow: HttpServer) -> Iterator[H2Client]:
    with H2Client(narrow.ports[H2]) as one:
        yield one


def _record(length: int) -> bytes:
    return b'{"records":[{"data":"%b"}]}' % (b"x" * (length - 25))


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_413(
    narrow_client: H2Client, path: str, has_length: bool
) -> None:
    for length, status in ((MIB, 201), (MIB + 1, 413), (MIB, 200)):
        # The data of one record may have no more; blanks are no data.
        body = _record(1000).ljust(length)
        request = narrow_client.start("POST", path, body, is_chunked=not has_length)
        assert narrow_client.finish(request).status == status


def test_a_body_that_is_declared_too_large_is_refused_before_it_comes(
    narrow_client: H2Client, path: str
) -> None:
    headers = [*request_headers("POST", path), JSON_FIELD, (b"content-length", b"%d" % (MIB + 1))]
    refused = narrow_client.open(headers, ends=False)
    answer = narrow_client.finish(refused)
    assert (answer.status, answer.code) == (413, "payload_too_large")
    while refused not in narrow_client.resets:
        narrow_client.read_some()
    assert narrow_client.resets[refused] == ErrorCodes.NO_ERROR
    assert narrow_client.ask("POST", path, RECORDS).status == 201


def test_large_bodies_are_let_in_when_there_is_room_for_all_of_them(
    narrow_client: H2Client, path: str
) -> None:
    client, body = narrow_client, _record(1000).ljust(700 << 10)
    headers = [*request_headers("POST", path), JSON_FIELD, (b"content-length", b"%d" % len(body))]
    first, second = client.open(headers, ends=False), client.open(headers, ends=False)
    client.send_body(first, body[:1000], ends=False)
    client.ask("GET", path)
    assert client.wire.local_flow_control_window(second) == 65535
    # What is small does not wait.
    assert client.ask("POST", path, RECORDS).json["first_seq"] == 1
    client.send_body(first, body[1000:])
    client.send_body(second, body)
    assert [client.finish(one).json["first_seq"] for one in (first, second)] == [2, 3]


def test_who_waits_for_a_body_that_is_given_up_is_let_in(narrow_client: H2Client, path: str) -> None:
    client, body = narrow_client, _record(1000).ljust(700 << 10)
    headers = [*request_headers("POST", path), JSON_FIELD, (b"content-length", b"%d" % len(body))]
    requests = [client.open(headers, ends=False) for _ in range(4)]
    for one in requests[:3]:
        client.reset(one)
    client.send_body(requests[3], body)
    assert client.finish(requests[3]).json["first_seq"] == 1


def test_padding_is_no_part_of_a_body_and_costs_no_window(client: H2Client, path: str) -> None:
    body = _record(100_000)
    headers = [*request_headers("POST", path), JSON_FIELD, (b"content-length", b"%d" % len(body))]
    request = client.open(headers, ends=False)
    for at in range(0, len(body), 500):
        while client.wire.local_flow_control_window(request) < 800:
            client.read_some()
        client.wire.send_data(request, body[at : at + 500], end_stream=at + 500 >= len(body), pad_length=255)
        client.flush()
    assert client.finish(request).json["first_seq"] == 1


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_may_be_compressed(client: H2Client, path: str, has_length: bool) -> None:
    body = gzip.compress(_record(100_000))
    request = client.start("POST", path, body, "content-encoding: gzip", is_chunked=not has_length)
    assert client.finish(request).json["first_seq"] == 1
    refused = client.ask("POST", path, body[:-1], "content-encoding: gzip")
    assert (refused.status, refused.code) == (400, "invalid_request")


def test_an_answer_is_compressed_when_that_is_asked_for(client: H2Client, path: str) -> None:
    client.ask("POST", path, _record(5000))
    answer = client.ask("POST", f"{path}/diff", b"{}", "accept-encoding: gzip")
    assert answer.fields["content-encoding"] == "gzip"
    assert len(answer.json["records"][0]["data"]) == 4975


def test_trailers_mean_nothing(client: H2Client, path: str) -> None:
    request = client.open([*request_headers("POST", path), JSON_FIELD], ends=False)
    client.send_body(request, RECORDS, ends=False)
    client.wire.send_headers(request, [(b"idempotency-key", b"k")], end_stream=True)
    client.flush()
    assert client.finish(request).json["first_seq"] == 1
    assert client.ask("POST", path, RECORDS, "idempotency-key: k").json["deduped"] is False


@pytest.mark.parametrize("rest", ["", "/diff"])
def test_what_answers_get_answers_head_without_a_body(client: H2Client, path: str, rest: str) -> None:
    client.ask("PUT", path, b"{}")
    request = client.start("HEAD", path + rest)
    answer = client.finish(request)
    assert answer.status == (405 if rest else 200)
    assert answer.body == b""
    assert int(answer.fields["content-length"]) > 100


# -- the end -----------------------------------------------------------------------------------------------


def test_a_client_that_closes_its_side_still_reads_all_its_answers(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    requests = [client.start("POST", path, RECORDS) for _ in range(5)]
    requests.append(client.start("POST", f"{path}/diff", b'{"from_seq":9,"wait_ms":30000}'))
    unfinished = client.open([*request_headers("POST", path), JSON_FIELD], ends=False)
    client.send_end()
    assert [client.finish(one).status for one in requests] == [200] * 6
    client.read_to_end()
    assert not client.has_head(unfinished)


def test_a_client_that_says_goodbye_still_reads_all_its_answers(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":50}')
    client.send_frame(7, 0, 0, bytes(8))
    assert client.finish(waiting).status == 200
    client.read_to_end()


def test_a_drain_answers_what_is_in_flight_refuses_the_rest_and_ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        idle = H2Client(server.ports[H2])
        with idle, H2Client(server.ports[H2]) as client:
            idle.ask("GET", "/v0/topics/none")
            client.ask("PUT", "/v0/topics/t", b"{}")
            waiting = client.start("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}')
            unfinished = client.open([*request_headers("POST", "/v0/topics/t"), JSON_FIELD], ends=False)
            wait_until(lambda: server.run(lambda: bool(server.shard.state.topics["t"].waiters)))
            server.drain()
            assert client.finish(waiting).json["records"] == []
            assert client.finish(unfinished).code == "shutting_down"
            for one, last in ((client, unfinished), (idle, 1)):
                one.read_to_end()
                assert one.gone_away == (last, ErrorCodes.NO_ERROR)


def test_a_stream_that_begins_during_a_drain_is_refused_and_the_others_come_to_their_end(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        HttpServer(tmp_path_factory.mktemp("data")) as server,
        H2Client(server.ports[H2], window=100) as client,
    ):
        with H2Client(server.ports[H2]) as writer:
            assert writer.ask("POST", "/v0/topics/t", RECORDS).status == 201
        request = client.start("GET", "/v0/topics/t")
        while len(client.received(request)) < 100:
            client.read_some()
        server.drain()
        late = client.start("GET", "/v0/topics/t")
        while late not in client.resets:
            client.read_some()
        assert client.resets[late] == ErrorCodes.REFUSED_STREAM
        client.open_window(1 << 16, request)
        assert client.finish(request).status == 200
        client.read_to_end()
        assert client.gone_away == (late, ErrorCodes.NO_ERROR)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("cut", [1, 14, 16, 18, 23])
def test_what_only_begins_like_the_preface_is_505(server: HttpServer, cut: int) -> None:
    with RawClient(server.ports[H2]) as client:
        client.send(PREFACE[:cut] + b"X\r\n\r\n")
        answer = client.read_answer()
        assert (answer.status, answer.code, answer.closes) == (505, "http_version_not_supported", True)
        client.read_end()


def test_frames_mean_the_same_wherever_they_are_cut(server: HttpServer, path: str) -> None:
    with H2Client(server.ports[H2]) as client:
        client.ask("PUT", path, b"{}")
        for size in (1, 2, 5, 9, 13):
            stream_id = client.last_id + 2
            client.wire.send_headers(stream_id, [*request_headers("POST", path), JSON_FIELD])
            client.wire.send_data(stream_id, RECORDS, end_stream=True)
            data = client.wire.data_to_send()
            for at in range(0, len(data), size):
                client.socket.sendall(data[at : at + size])
            assert client.finish(stream_id).status == 200
            client.skip_id()
