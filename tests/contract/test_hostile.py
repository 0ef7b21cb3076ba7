"""Heads and framings that are malformed, row by row: one answer in both lanes, and the connection ends.

In every case a good request stands behind the bad one; that it is never carried out is what matters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.server.http_server import HttpServer

pytestmark = pytest.mark.http1

RECORDS = b'{"records":[{"data":1}]}'
LENGTH = len(RECORDS)


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[RawClient]:
    with RawClient(server.ports[lane]) as one:
        yield one


def _head(*lines: str, line: str = "POST {path} HTTP/1.1", host: bool = True) -> str:
    fields = ["host: a"] if host else []
    return "\r\n".join([line, *fields, "content-type: application/json", *lines, "", ""])


HEADS = {
    "a length and an encoding": _head(f"content-length: {LENGTH}", "transfer-encoding: chunked"),
    "an encoding and a length": _head("transfer-encoding: chunked", f"content-length: {LENGTH}"),
    "two lengths": _head(f"content-length: {LENGTH}", "content-length: 0"),
    "the same length twice": _head(f"content-length: {LENGTH}", f"content-length: {LENGTH}"),
    "a list of lengths": _head(f"content-length: {LENGTH}, {LENGTH}"),
    "a length with a sign": _head(f"content-length: +{LENGTH}"),
    "a length below zero": _head("content-length: -1"),
    "a length in hex": _head("content-length: 0x18"),
    "a length with an underscore": _head("content-length: 2_4"),
    "a length with a blank": _head("content-length: 2 4"),
    "a length with a point": _head("content-length: 24.0"),
    "no length where one is named": _head("content-length:"),
    "a length with a zero in front": _head(f"content-length: 0{LENGTH}"),
    "a length in other digits": _head("content-length: \xb2\xb4"),
    "a length of 2^64": _head(f"content-length: {1 << 64}"),
    "another encoding": _head("transfer-encoding: gzip"),
    "an encoding in front": _head("transfer-encoding: gzip, chunked"),
    "an encoding behind": _head("transfer-encoding: chunked, identity"),
    "chunked twice": _head("transfer-encoding: chunked, chunked"),
    "two encodings": _head("transfer-encoding: chunked", "transfer-encoding: chunked"),
    "an encoding that looks like it": _head("transfer-encoding: xchunked"),
    "identity": _head("transfer-encoding: identity"),
    "no encoding where one is named": _head("transfer-encoding:"),
    "an encoding behind a vertical tab": _head("transfer-encoding: \x0bchunked"),
    "an encoding in quotes": _head('transfer-encoding: "chunked"'),
    "chunked on HTTP/1.0": _head("transfer-encoding: chunked", line="POST {path} HTTP/1.0"),
    "no host": _head(f"content-length: {LENGTH}", host=False),
    "two hosts": _head("host: b", f"content-length: {LENGTH}"),
    "an empty host": _head("host:", f"content-length: {LENGTH}", host=False),
    "a list of hosts": _head("host: a,b", f"content-length: {LENGTH}", host=False),
    "a host with a user": _head("host: u@a", f"content-length: {LENGTH}", host=False),
    "a host with a path": _head("host: a/b", f"content-length: {LENGTH}", host=False),
    "a host with a blank": _head("host: a b", f"content-length: {LENGTH}", host=False),
    "a host with a long port": _head("host: a:123456", f"content-length: {LENGTH}", host=False),
    "another host in the target": _head(f"content-length: {LENGTH}", line="POST http://b{path} HTTP/1.1"),
    "a blank before the colon": _head(f"content-length : {LENGTH}"),
    "a tab before the colon": _head(f"content-length\t: {LENGTH}"),
    "no name": _head(f"content-length: {LENGTH}", ": x"),
    "no colon": _head(f"content-length: {LENGTH}", "something"),
    "a folded line": _head(f"content-length: {LENGTH}", "x: a", " b"),
    "a folded line with a tab": _head(f"content-length: {LENGTH}", "x: a", "\tb"),
    "a fold at the front": _head(f"content-length: {LENGTH}").replace("\r\n", "\r\n ", 1),
    "a NUL in a value": _head(f"content-length: {LENGTH}", "x: a\0b"),
    "a NUL in a name": _head(f"content-length: {LENGTH}", "x\0: a"),
    "a bare CR in a value": _head(f"content-length: {LENGTH}", "x: a\rb"),
    "a bare CR at the end of a value": _head(f"content-length: {LENGTH}", "x: a\r"),
    "a bare LF in a value": _head(f"content-length: {LENGTH}", "x: a\nb: c"),
    "a bare LF behind the first line": _head(f"content-length: {LENGTH}").replace("\r\n", "\n", 1),
    "bare LFs everywhere": _head(f"content-length: {LENGTH}").replace("\r\n", "\n"),
    "bare CRs everywhere": _head(f"content-length: {LENGTH}").replace("\r\n", "\r"),
    "a control character in a value": _head(f"content-length: {LENGTH}", "x: a\x01b"),
    "a name that is not ASCII": _head(f"content-length: {LENGTH}", "x\xe9: a"),
    "two blanks in the first line": _head(f"content-length: {LENGTH}", line="POST  {path} HTTP/1.1"),
    "a tab in the first line": _head(f"content-length: {LENGTH}", line="POST\t{path} HTTP/1.1"),
    "a blank behind the first line": _head(f"content-length: {LENGTH}", line="POST {path} HTTP/1.1 "),
    "a blank before the first line": _head(f"content-length: {LENGTH}", line=" POST {path} HTTP/1.1"),
    "an empty line before the first": _head(f"content-length: {LENGTH}", line="\r\nPOST {path} HTTP/1.1"),
    "a fragment": _head(f"content-length: {LENGTH}", line="POST {path}#x HTTP/1.1"),
    "a target that is not ASCII": _head(f"content-length: {LENGTH}", line="POST {path}\xff HTTP/1.1"),
    "a NUL in the target": _head(f"content-length: {LENGTH}", line="POST {path}\0 HTTP/1.1"),
    "a target that is no path": _head(f"content-length: {LENGTH}", line="POST v0 HTTP/1.1"),
    "no target": _head(f"content-length: {LENGTH}", line="POST HTTP/1.1"),
    "no version": _head(f"content-length: {LENGTH}", line="POST {path}"),
    "a version in small letters": _head(f"content-length: {LENGTH}", line="POST {path} http/1.1"),
    "another protocol": _head(f"content-length: {LENGTH}", line="POST {path} ICAP/1.0"),
    "an unknown expectation": _head(f"content-length: {LENGTH}", "expect: 200-ok"),
    "a key that is not UTF-8": _head(f"content-length: {LENGTH}", "idempotency-key: \xff"),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_malformed_head_is_400_and_the_end(api: Api, head: str) -> None:
    good = request_bytes("POST", api.path, RECORDS)
    api.client.send(head.replace("{path}", api.path).encode("latin-1") + RECORDS + good)
    answer = api.client.read_answer()
    assert (answer.status, answer.code, answer.closes) == (400, "invalid_request", True)
    assert answer.message
    api.client.read_end()
    _nothing_was_written(api)


def _nothing_was_written(api: Api) -> None:
    host, port = api.client.socket.getpeername()
    with RawClient(port) as other:
        assert other.ask("GET", api.path).code == "topic_not_found", host


LINES = {
    "HTTP/2.0": ("GET /v0/health HTTP/2.0", 505, "http_version_not_supported"),
    "HTTP/1.2": ("GET /v0/health HTTP/1.2", 505, "http_version_not_supported"),
    "HTTP/9.9": ("GET /v0/health HTTP/9.9", 505, "http_version_not_supported"),
    "HTTP/0.9": ("GET /v0/health HTTP/0.9", 505, "http_version_not_supported"),
    "the preface of HTTP/2": ("PRI * HTTP/2.0", 505, "http_version_not_supported"),
    "an unknown method": ("BREW /v0/health HTTP/1.1", 501, "not_implemented"),
    "a method in small letters": ("get /v0/health HTTP/1.1", 501, "not_implemented"),
    "CONNECT": ("CONNECT a:443 HTTP/1.1", 405, "method_not_allowed"),
    "TRACE": ("TRACE /v0/health HTTP/1.1", 405, "method_not_allowed"),
}


@pytest.mark.parametrize(("line", "status", "code"), LINES.values(), ids=LINES)
def test_a_first_line_that_is_not_for_us_is_the_end(
    client: RawClient, line: str, status: int, code: str
) -> None:
    client.send(_head(line=line).encode())
    answer = client.read_answer()
    assert (answer.status, answer.code, answer.closes) == (status, code, True)
    assert ("allow" in answer.fields) == (status == 405)
    client.read_end()


# -- limits ------------------------------------------------------------------------------------------------


def _get(target: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "host: a", *fields, "", ""]).encode()


def test_a_first_line_of_exactly_the_limit_is_read_and_one_byte_more_is_414(client: RawClient) -> None:
    fixed = len("GET /x?x HTTP/1.1") - 1
    client.send(_get("/x?" + "x" * (8192 - fixed)))
    assert client.read_answer().code == "not_found"
    client.send(_get("/x?" + "x" * (8192 - fixed + 1)))
    assert _refused(client) == (414, "uri_too_long")


def test_header_fields_of_exactly_the_limit_are_read_and_one_byte_more_is_431(client: RawClient) -> None:
    fixed = len("host: a\r\nx: ")
    client.send(_get("/x", "x: " + "y" * ((32 << 10) - fixed)))
    assert client.read_answer().code == "not_found"
    client.send(_get("/x", "x: " + "y" * ((32 << 10) - fixed + 1)))
    assert _refused(client) == (431, "headers_too_large")


def test_a_hundred_header_fields_are_read_and_one_more_is_431(client: RawClient) -> None:
    client.send(_get("/x", *(f"x-{n}: y" for n in range(99))))
    assert client.read_answer().code == "not_found"
    client.send(_get("/x", *(f"x-{n}: y" for n in range(100))))
    assert _refused(client) == (431, "headers_too_large")


def _refused(client: RawClient) -> tuple[int, str]:
    answer = client.read_answer()
    assert answer.closes
    client.read_end()
    return answer.status, answer.code


ENDLESS = {
    "a first line": (b"GET /", b"x" * 1000, 414),
    "a first line with a malformed method": (b"{" * 10, b"x" * 1000, 414),
    "a value": (b"GET / HTTP/1.1\r\nx: ", b"y" * 1000, 431),
    "a name": (b"GET / HTTP/1.1\r\n", b"y" * 1000, 431),
    "many fields": (b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 20, 431),
    "many long fields": (b"GET / HTTP/1.1\r\n", b"x: %b\r\n" % (b"y" * 990), 431),
    "lines with LF only": (b"GET / HTTP/1.1\n", b"x: y\n", 400),
    "NULs": (b"\0", b"\0", 400),
}


@pytest.mark.parametrize(("start", "more", "status"), ENDLESS.values(), ids=ENDLESS)
def test_a_head_without_an_end_is_refused_while_it_is_read(
    client: RawClient, start: bytes, more: bytes, status: int
) -> None:
    client.send(start)
    sent = 0
    client.socket.setblocking(False)
    try:
        # The answer comes once there is too much; a server that read on would be sent 64 MiB.
        while sent < 64 << 20:
            try:
                if client.socket.recv(1, 2):  # MSG_PEEK
                    break
            except BlockingIOError:
                pass
            try:
                sent += client.socket.send(more)
            except BlockingIOError:
                continue
    finally:
        client.socket.settimeout(20)
    assert sent < 8 << 20
    answer = client.read_answer()
    assert (answer.status, answer.closes) == (status, True)


# -- chunks ------------------------------------------------------------------------------------------------

GOOD = b"18\r\n" + RECORDS + b"\r\n0\r\n\r\n"
CHUNKS = {
    "a size with 0x": GOOD.replace(b"18", b"0x18", 1),
    "a size with a sign": GOOD.replace(b"18", b"+18", 1),
    "a size below zero": GOOD.replace(b"18", b"-18", 1),
    "a size of 2^64": GOOD.replace(b"18", b"10000000000000018", 1),
    "a size with a blank in front": GOOD.replace(b"18", b" 18", 1),
    "a size with a blank behind": GOOD.replace(b"18", b"18 ", 1),
    "a size that is none": GOOD.replace(b"18", b"xy", 1),
    "no size": GOOD.replace(b"18", b"", 1),
    "a bare LF behind the size": GOOD.replace(b"18\r\n", b"18\n", 1),
    "a bare CR behind the size": GOOD.replace(b"18\r\n", b"18\r", 1),
    "a bare LF behind the data": GOOD.replace(b"]}\r\n", b"]}\n", 1),
    "no end behind the data": GOOD.replace(b"]}\r\n", b"]}", 1),
    "more data than the size says": GOOD.replace(b"18", b"17", 1),
    "less data than the size says": GOOD.replace(b"18", b"19", 1),
    "a bare LF behind the last size": GOOD.replace(b"0\r\n\r\n", b"0\n\r\n"),
    "a control character in an extension": GOOD.replace(b"18", b"18;a\0b", 1),
    "a CR in an extension": GOOD.replace(b"18", b"18;a\rb", 1),
    "an LF in an extension": GOOD.replace(b"18", b"18;a\nb", 1),
    "an extension without a semicolon": GOOD.replace(b"18", b"18 a=b", 1),
    "a long extension": GOOD.replace(b"18", b"18;" + b"x" * 300, 1),
    "a size of many zeros": GOOD.replace(b"18", b"0" * 15 + b"18", 1),
    "a length in a trailer": GOOD.replace(b"0\r\n\r\n", b"0\r\ncontent-length: 5\r\n\r\n"),
    "an encoding in a trailer": GOOD.replace(b"0\r\n\r\n", b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a host in a trailer": GOOD.replace(b"0\r\n\r\n", b"0\r\nhost: b\r\n\r\n"),
    "a trailer that is none": GOOD.replace(b"0\r\n\r\n", b"0\r\nsomething\r\n\r\n"),
    "a folded trailer": GOOD.replace(b"0\r\n\r\n", b"0\r\nx: y\r\n z\r\n\r\n"),
    "a bare LF in the trailers": GOOD.replace(b"0\r\n\r\n", b"0\r\nx: y\n\r\n"),
}


@pytest.mark.parametrize("framed", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("cut", [None, 1, 7])
def test_a_malformed_chunk_is_400_and_the_end(api: Api, framed: bytes, cut: int | None) -> None:
    head = request_bytes("POST", api.path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    sent = head + framed + request_bytes("POST", api.path, RECORDS)
    if cut is None:
        api.client.send(sent)
    else:
        api.client.send_in_parts([sent[: len(head) + cut], sent[len(head) + cut :]])
    assert _refused(api.client) == (400, "invalid_request")
    _nothing_was_written(api)


def test_long_trailers_are_431(api: Api) -> None:
    head = request_bytes("POST", api.path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    api.client.send(head + GOOD.removesuffix(b"\r\n") + b"x: y\r\n" * 3000 + b"\r\n")
    assert _refused(api.client) == (431, "headers_too_large")
    _nothing_was_written(api)


def test_chunks_that_carry_next_to_nothing_are_refused(api: Api) -> None:
    head = request_bytes("POST", api.path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    api.client.send(head + b"1;" + b"x" * 200 + b"\r\n \r\n" + (b"1;" + b"x" * 200 + b"\r\n \r\n") * 1000)
    assert _refused(api.client) == (400, "invalid_request")


# -- the same bytes, cut elsewhere -------------------------------------------------------------------------


def test_a_request_means_the_same_wherever_it_is_cut(api: Api) -> None:
    wholes = [
        request_bytes("POST", api.path, RECORDS, "idempotency-key: k"),
        request_bytes("POST", api.path, RECORDS, "idempotency-key: k", is_chunked=True),
        b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % api.path.encode(),
    ]
    api.append(0)
    for whole in wholes:
        for at in range(1, len(whole)):
            api.client.send_in_parts([whole[:at], whole[at:]], pause_seconds=0.0002)
            answer = api.client.read_answer()
            assert (answer.status, answer.json["head_seq"]) == (200, 2), at


def test_requests_that_come_byte_by_byte_are_answered(api: Api) -> None:
    good = request_bytes("POST", api.path, RECORDS)
    chunked = request_bytes("POST", api.path, RECORDS, is_chunked=True)
    sent = good + chunked + good
    api.client.send_in_parts([sent[at : at + 1] for at in range(len(sent))], pause_seconds=0.0001)
    assert [api.client.read_answer().json["head_seq"] for _ in range(3)] == [1, 2, 3]


def test_nothing_is_lost_or_doubled_however_a_stream_of_requests_is_cut(api: Api) -> None:
    rng = random.Random(11)
    expected = 0
    for _ in range(30):
        sent = b""
        count = rng.randrange(1, 30)
        for n in range(count):
            record = b'{"records":[{"data":%d}]}' % (expected + n)
            sent += request_bytes("POST", api.path, record, is_chunked=rng.random() < 0.4)
        cuts = sorted(rng.randrange(len(sent)) for _ in range(rng.randrange(8)))
        api.client.send_in_parts([sent[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)])
        seqs = [api.client.read_answer().json["first_seq"] for _ in range(count)]
        assert seqs == list(range(expected + 1, expected + count + 1))
        expected += count
    records = api.diff(limit=1000)["records"]
    assert [record["data"] for record in records] == list(range(expected))
