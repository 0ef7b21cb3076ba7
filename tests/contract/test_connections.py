"""One connection and its requests: how long it stays open, the order of answers, the framing of bodies."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer, RawClient, chunks_of, request_bytes
from tests.harness.server.http_server import CODED, FAST, HttpServer

pytestmark = pytest.mark.http1

RECORDS = b'{"records":[{"data":1}]}'


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[RawClient]:
    with RawClient(server.ports[lane]) as one:
        yield one


def _request(line: str, *fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1") + body


def test_a_connection_stays_open_by_default(api: Api) -> None:
    for n in range(1, 20):
        assert api.append(n)["first_seq"] == n


@pytest.mark.parametrize("value", ["close", "Close", "keep-alive, close", "close,x"])
def test_a_client_that_asks_for_it_gets_one_answer_and_the_end(api: Api, value: str) -> None:
    again = request_bytes("POST", api.path, RECORDS)
    answer = api.client.ask("POST", api.path, RECORDS, f"connection: {value}")
    assert answer.closes
    api.client.read_end()
    with RawClient(api.client.socket.getpeername()[1]) as other:
        # What follows such a request is not read.
        other.send(request_bytes("POST", api.path, RECORDS, f"connection: {value}") + again)
        assert other.read_answer().json["first_seq"] == 2
        other.read_end()
        other.close()
    with RawClient(api.client.socket.getpeername()[1]) as last:
        assert last.ask("GET", api.path).json["head_seq"] == 2


def test_http_1_0_ends_with_the_answer_unless_keep_alive_is_requested(client: RawClient) -> None:
    client.send(_request("GET /v0/topics/none HTTP/1.0", "connection: keep-alive") * 2)
    for _ in range(2):
        answer = client.read_answer()
        assert (answer.status, answer.fields["connection"]) == (404, "keep-alive")
    client.send(_request("GET /v0/topics/none HTTP/1.0"))
    assert client.read_answer().closes
    client.read_end()


def test_a_client_that_closes_its_side_still_reads_all_its_answers(api: Api) -> None:
    requests = [request_bytes("POST", api.path, RECORDS)] * 3 + [request_bytes("GET", api.path)]
    api.client.send(b"".join(requests))
    api.client.send_end()
    answers = [api.client.read_answer() for _ in requests]
    assert [answer.json["head_seq"] for answer in answers] == [1, 2, 3, 3]
    api.client.read_end()


def test_a_client_that_closes_its_side_does_not_wait_for_what_may_come(api: Api) -> None:
    api.put()
    api.client.send(request_bytes("POST", api.path + "/diff", b'{"wait_ms":30000}'))
    api.client.send_end()
    assert api.client.read_answer().json["records"] == []
    api.client.read_end()


def test_requests_that_are_sent_at_once_see_what_those_before_them_did(api: Api) -> None:
    api.client.send(
        request_bytes("POST", api.path, RECORDS) * 3
        + request_bytes("POST", api.path + "/diff", b"{}")
        + request_bytes("PUT", api.path, b'{"durable":true}')
        + request_bytes("POST", api.path, RECORDS)
        + request_bytes("POST", api.path + "/delete", b'{"before_seq":4}')
        + request_bytes("GET", api.path)
        + request_bytes("DELETE", api.path)
        + request_bytes("POST", api.path, RECORDS)
    )
    answers = [api.client.read_answer() for _ in range(10)]
    assert [answer.json["first_seq"] for answer in answers[:3]] == [1, 2, 3]
    assert len(answers[3].json["records"]) == 3
    # The write behind a change of class has the new one.
    assert (answers[5].json["first_seq"], answers[5].json["durability"]) == (4, "fsync")
    assert answers[6].json["deleted"] == 3
    assert (answers[7].json["count"], answers[7].json["head_seq"]) == (1, 4)
    assert answers[8].json["deleted"] is True
    assert (answers[9].status, answers[9].json["first_seq"]) == (201, 1)


def test_a_write_does_not_overtake_a_reader_that_waits_in_front_of_it(api: Api) -> None:
    api.put()
    api.client.send(
        request_bytes("POST", api.path + "/diff", b'{"wait_ms":40}')
        + request_bytes("POST", api.path, RECORDS)
    )
    assert api.client.read_answer().json["records"] == []
    assert api.client.read_answer().json["first_seq"] == 1


def test_an_empty_body_may_be_announced(client: RawClient) -> None:
    client.send(_request("GET /v0/topics/none HTTP/1.1", "host: a", "content-length: 0") * 2)
    assert [client.read_answer().status for _ in range(2)] == [404, 404]


@pytest.mark.parametrize(
    "target", ["http://localhost/v0/topics/none", "HTTP://LOCALHOST/v0/topics/none?touch=0"]
)
def test_a_target_may_name_the_host_that_the_field_names(client: RawClient, target: str) -> None:
    assert client.ask("GET", target).code == "topic_not_found"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_a_body(api: Api, size: int) -> None:
    head = request_bytes("POST", api.path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    body = b'{"records":[{"data":"' + b"x" * 5000 + b'"}]}'
    for first_seq in (1, 2):
        api.client.send(head + chunks_of(body, size=size))
        assert api.client.read_answer().json["first_seq"] == first_seq
    assert api.diff()["records"][0]["data"] == "x" * 5000


def test_extensions_and_trailers_of_a_chunked_body_mean_nothing(api: Api) -> None:
    head = request_bytes("POST", api.path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    framed = b'0018;name="a b";x\r\n' + RECORDS + b"\r\n0;last\r\nAuthorization: Bearer x\r\nx-sum: 1\r\n\r\n"
    api.client.send((head + framed) * 2)
    assert [api.client.read_answer().json["first_seq"] for _ in range(2)] == [1, 2]


def test_chunked_and_plain_requests_may_follow_each_other_on_a_connection(api: Api) -> None:
    plain = request_bytes("POST", api.path, RECORDS)
    chunked = request_bytes("POST", api.path, RECORDS, is_chunked=True)
    look = request_bytes("GET", api.path)
    api.client.send(plain + plain + chunked + plain + look + chunked + chunked + look + plain)
    heads = [api.client.read_answer().json["head_seq"] for _ in range(9)]
    assert heads == [1, 2, 3, 4, 4, 5, 6, 6, 7]


# -- gzip --------------------------------------------------------------------------------------------------


def _big(api: Api) -> None:
    api.append("x" * 5000)


@pytest.mark.parametrize("accept", ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip"])
def test_an_answer_is_compressed_when_that_is_asked_for(api: Api, accept: str) -> None:
    _big(api)
    answer = api.call("POST", "/diff", {}, f"accept-encoding: {accept}")
    assert answer.fields["content-encoding"] == "gzip"
    assert answer.fields["vary"] == "accept-encoding"
    assert len(answer.body) < 500
    assert answer.json["records"][0]["data"] == "x" * 5000


@pytest.mark.parametrize("accept", ["identity", "gzip;q=0", "gzip; q=0.0", "br", "xgzip"])
def test_an_answer_is_as_it_is_otherwise(api: Api, accept: str) -> None:
    _big(api)
    assert "content-encoding" not in api.call("POST", "/diff", {}, f"accept-encoding: {accept}").fields
    assert "content-encoding" not in api.call("POST", "/diff", {}).fields


def test_a_small_answer_is_not_compressed(api: Api) -> None:
    api.put()
    assert "content-encoding" not in api.call("POST", "/diff", {}, "accept-encoding: gzip").fields


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_may_be_compressed(api: Api, is_chunked: bool) -> None:
    body = gzip.compress(b'{"records":[{"data":"%b"}]}' % (b"x" * 100_000))
    request = request_bytes("POST", api.path, body, "content-encoding: gzip", is_chunked=is_chunked)
    api.client.send(request * 2)
    assert [api.client.read_answer().json["first_seq"] for _ in range(2)] == [1, 2]
    assert api.diff(limit=1)["records"][0]["data"] == "x" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"no gzip",
        gzip.compress(RECORDS)[:-1],
        gzip.compress(RECORDS)[:-4] + b"\0\0\0\0",
        gzip.compress(RECORDS) + b"x",
        gzip.compress(RECORDS) * 2,
    ],
)
def test_a_body_that_is_not_what_it_says_is_400(api: Api, body: bytes) -> None:
    answer = api.client.ask("POST", api.path, body, "content-encoding: gzip")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "gzip" in answer.message


@pytest.mark.parametrize("coding", ["deflate", "br", "gzip, gzip", "x"])
def test_another_coding_of_the_body_is_415(api: Api, coding: str) -> None:
    answer = api.client.ask("POST", api.path, RECORDS, f"content-encoding: {coding}")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


# -- a word first ------------------------------------------------------------------------------------------


def _expecting(api: Api, length: int, path: str | None = None) -> bytes:
    fields = (
        "host: a",
        "content-type: application/json",
        f"content-length: {length}",
        "expect: 100-continue",
    )
    return _request(f"POST {path or api.path} HTTP/1.1", *fields)


def test_a_client_that_waits_for_a_word_gets_it_and_then_the_answer(api: Api) -> None:
    for first_seq in (1, 2):
        api.client.send(_expecting(api, len(RECORDS)))
        continue_answer = api.client.read_answer()
        assert (continue_answer.status, continue_answer.fields, continue_answer.body) == (100, {}, b"")
        api.client.send(RECORDS)
        assert api.client.read_answer().json["first_seq"] == first_seq


def test_a_client_that_does_not_wait_for_the_word_gets_the_answer_only(api: Api) -> None:
    api.client.send(_expecting(api, len(RECORDS)) + RECORDS)
    assert api.client.read_answer().json["first_seq"] == 1


@pytest.mark.parametrize(
    ("length", "path", "code"),
    [(1 << 40, None, "payload_too_large"), (5, "/v0/nothing", "not_found")],
)
def test_an_unexpected_body_is_refused_at_once(api: Api, length: int, path: str | None, code: str) -> None:
    api.client.send(_expecting(api, length, path))
    answer = api.client.read_answer()
    assert (answer.code, answer.closes) == (code, True)
    api.client.read_end()


# -- the server ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane_of_its_own", [FAST, CODED])
def test_a_drain_closes_what_is_idle_and_answers_what_is_asked(
    tmp_path_factory: pytest.TempPathFactory, lane_of_its_own: str
) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        port = server.ports[lane_of_its_own]
        with RawClient(port) as idle, RawClient(port) as waiting, RawClient(port) as late:
            assert idle.ask("PUT", "/v0/topics/t", b"{}").status == 201
            assert late.ask("GET", "/v0/topics/t").status == 200
            waiting.send(request_bytes("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}'))
            while not server.run(lambda: bool(server.shard.state.topics["t"].waiters)):
                pass
            server.drain()
            idle.read_end()
            answer: Answer = waiting.read_answer()
            assert (answer.status, answer.json["records"], answer.closes) == (200, [], True)
            waiting.read_end()
