"""Bodies that are too large, too deep, no JSON, or made to cost more than they weigh."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient, chunks_of, request_bytes
from tests.harness.server.http_server import HttpServer, HttpServerProcess

LIMIT = 10_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data"), max_body_bytes=LIMIT) as running:
        yield running


@pytest.fixture
def narrow_api(narrow: HttpServer, lane: str, topic: str) -> Iterator[Api]:
    with narrow.connect(lane) as client:
        yield Api(client, topic)


def _record(length: int) -> bytes:
    """A body of so many bytes."""
    return b'{"records":[{"data":"%b"}]}' % (b"x" * (length - 25))


def test_a_body_of_exactly_the_limit_is_taken(narrow_api: Api) -> None:
    body = _record(LIMIT)
    assert len(body) == LIMIT
    for n, is_chunked in enumerate((False, True), 1):
        request = narrow_api.client.start("POST", narrow_api.path, body, is_chunked=is_chunked)
        assert narrow_api.client.finish(request).json["first_seq"] == n


@pytest.mark.http1
@pytest.mark.parametrize("form", ["whole", "declared", "declared huge", "chunked", "gzip", "chunked gzip"])
def test_a_body_over_the_limit_is_413_and_the_end(narrow_api: Api, form: str) -> None:
    body, client = _record(LIMIT + 1), narrow_api.client
    head = request_bytes("POST", narrow_api.path, b"").removesuffix(b"0\r\n\r\n")
    if form == "declared":
        client.send(head + b"%d\r\n\r\n{" % (LIMIT + 1))
    elif form == "declared huge":
        client.send(head + b"999999999999999999\r\n\r\n{")
    else:
        packed = gzip.compress(body) if "gzip" in form else body
        fields = ["content-encoding: gzip"] if "gzip" in form else []
        is_chunked = "chunked" in form
        client.send(request_bytes("POST", narrow_api.path, packed, *fields, is_chunked=is_chunked))
    answer = client.read_answer()
    assert (answer.status, answer.code, answer.closes) == (413, "payload_too_large", True)
    assert str(LIMIT) in answer.message
    client.read_end()


@pytest.mark.http1
def test_a_client_that_sends_on_regardless_still_reads_why_it_was_refused(narrow_api: Api) -> None:
    client = narrow_api.client
    head = request_bytes("POST", narrow_api.path, b"").removesuffix(b"0\r\n\r\n")
    client.send(head + b"100000000\r\n\r\n")
    for _ in range(40):
        client.send(b"x" * (256 << 10))
    assert client.read_answer().code == "payload_too_large"
    client.read_end()


def test_a_body_that_grows_a_thousandfold_is_refused_while_it_is_unpacked(narrow_api: Api) -> None:
    bomb = gzip.compress(b"\0" * (64 * MIB), 9)
    answer = narrow_api.client.ask("POST", narrow_api.path, bomb[:LIMIT], "content-encoding: gzip")
    assert answer.code == "payload_too_large"


# -- JSON --------------------------------------------------------------------------------------------------

NO_JSON = {
    "nothing": b"",
    "blanks": b"  ",
    "half": b'{"records":[{"data":1}',
    "two": b'{"records":[{"data":1}]}{}',
    "something behind": b'{"records":[{"data":1}]} x',
    "a NUL behind": b'{"records":[{"data":1}]}\0',
    "a mark of the byte order": b'\xef\xbb\xbf{"records":[{"data":1}]}',
    "UTF-16": '{"records":[{"data":1}]}'.encode("utf-16"),
    "single quotes": b"{'records':[{'data':1}]}",
    "a comma behind": b'{"records":[{"data":1},]}',
    "a comment": b'{"records":[{"data":1}]/**/}',
}
NO_VALUES = [b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"0x1", b"1e", b"tru", b"nan"]
NO_VALUES += [
    b'"\x01"',
    b'"a\nb"',
    b'"\\x"',
    b'"\\u12"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\xff"',
    b"\xff",
]
NO_VALUES += [
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\xf5\x80\x80\x80"',
    b"[1,]",
    b'{"a":1,}',
    b"{1:2}",
    b"[1 2]",
]


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json_is_400_and_the_connection_stays_open(api: Api, body: bytes) -> None:
    api.refused(400, "invalid_request", "POST", "", body)
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize("value", NO_VALUES, ids=range(len(NO_VALUES)))
@pytest.mark.parametrize("where", [b'{"records":[{"data":%b}]}', b'{"records":[{"data":1}],"x":%b}'])
def test_what_is_no_value_is_400_wherever_it_stands(api: Api, where: bytes, value: bytes) -> None:
    api.refused(400, "invalid_request", "POST", "", where % value)
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize(
    "value", [b'"\\ud800"', b'"a\\udfff"', b'"a\\u0000b"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"']
)
@pytest.mark.parametrize(
    "where",
    [
        b'{"records":[{"data":1,"tag":%b}]}',
        b'{"records":[{"data":1},{"data":1,"node":%b}]}',
        b'{"records":[{"data":1}],"node":%b}',
        b'{"records":[{"data":1}],"idempotency_key":%b}',
    ],
)
def test_a_lone_surrogate_or_a_nul_in_a_text_of_ours_is_400(api: Api, where: bytes, value: bytes) -> None:
    api.refused(400, "invalid_request", "POST", "", where % value)
    api.refused(404, "topic_not_found", "GET")


@pytest.mark.parametrize("value", [b'"a\\u0000"', b'["a","\\u0000"]', b'"\\ud800"'])
def test_so_it_is_in_the_texts_of_a_read(api: Api, value: bytes) -> None:
    api.put()
    api.refused(400, "invalid_request", "POST", "/diff", b'{"node":%b}' % value)


def _nested(depth: int, kind: str = "[") -> bytes:
    if kind == "[":
        return b"[" * depth + b"]" * depth
    return b'{"k":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


@pytest.mark.parametrize("kind", ["[", "{"])
@pytest.mark.parametrize("field", [b"data", b"meta"])
def test_data_and_meta_are_nested_128_deep_and_no_deeper(api: Api, field: bytes, kind: str) -> None:
    def body(depth: int) -> bytes:
        value = _nested(depth, kind) if field == b"data" else b'{"k":%b}' % _nested(depth - 1, kind)
        return b'{"records":[{"data":1,"%b":%b}]}' % (field, value)

    assert api.call("POST", "", body(128)).status in (200, 201)
    for depth in (129, 100_000):
        answer = api.refused(400, "invalid_request", "POST", "", body(depth))
        path = f"records[0].{field.decode()}:" if depth < 1000 else "the body"
        assert answer.message == f"{path} must be nested at most 128 levels deep"


@pytest.mark.parametrize("depth", [1, 64, 100, 100_000])
def test_an_unknown_field_is_refused_at_its_key_however_deep_it_is(api: Api, depth: int) -> None:
    nest = _nested(depth)
    for body in (b'{"x":%b,"records":[{"data":1}]}', b'{"records":[{"data":1}],"x":%b}'):
        assert "x: unknown field" in api.refused(400, "invalid_request", "POST", "", body % nest).message
    message = api.refused(400, "invalid_request", "POST", "", b'{"records":[{"x":%b}]}' % nest).message
    assert message == "records[0].x: unknown field; allowed: data, data_base64, meta, node, tag"


def test_of_a_key_that_stands_twice_only_the_last_value_counts(api: Api) -> None:
    values = _nested(200), _nested(128)
    api.append_raw(b'{"data":%b,"data":%b}' % values)
    api.refused(400, "invalid_request", "POST", "", b'{"records":[{"data":%b,"data":%b}]}' % values[::-1])


@pytest.mark.parametrize("rest", ["/diff", "/delete"])
def test_no_field_of_a_control_body_is_deep(api: Api, rest: str) -> None:
    api.put()
    for depth in (2, 64, 100_000):
        for body in (b'{"match":%b}', b'{"node":%b}', b'{"before_seq":1,"x":%b}'):
            api.refused(400, "invalid_request", "POST", rest, body % _nested(depth))
        api.refused(400, "invalid_request", "PUT", "", b'{"ttl_ms":%b}' % _nested(depth))


def test_brackets_in_texts_are_not_counted(api: Api) -> None:
    api.append_raw(b'{"data":"%b\\"%b"}' % (b"[" * 1000, b"{" * 1000))
    assert api.diff()["records"][0]["data"] == "[" * 1000 + '"' + "{" * 1000


# -- what costs more than it weighs ------------------------------------------------------------------------

WEIGHT = 57 * MIB


def _filled(start: bytes, one: bytes, end: bytes, size: int = WEIGHT) -> bytes:
    return start + one * ((size - len(start) - len(end)) // len(one)) + end


class Heavy(NamedTuple):
    start: bytes
    one: bytes
    end: bytes
    code: str | None
    method: str = "POST"
    rest: str = ""

    def body(self) -> bytes:
        return (
            self.start + self.one * ((WEIGHT - len(self.start) - len(self.end)) // len(self.one)) + self.end
        )


TOO_LARGE = "record_too_large"
INVALID = "invalid_request"
EMOJI = "\U0001f600".encode()
HEAVY = {
    "objects in data": Heavy(b'{"records":[{"data":[{}', b",{}", b"]}]}", TOO_LARGE),
    "lists in data": Heavy(b'{"records":[{"data":[[]', b",[]", b"]}]}", TOO_LARGE),
    "texts with brackets": Heavy(b'{"records":[{"data":["["', b',"["', b"]}]}", TOO_LARGE),
    "nests": Heavy(b'{"records":[{"data":[0', b"," + _nested(100), b"]}]}", TOO_LARGE),
    "an endless number": Heavy(b'{"records":[{"data":1', b"0", b"}]}", TOO_LARGE),
    "letters and one that is not ASCII": Heavy(
        b'{"records":[{"data":"', b"x", '\U0001f600"}]}'.encode(), TOO_LARGE
    ),
    "objects in meta": Heavy(b'{"records":[{"data":1,"meta":{"a":{}', b',"a":{}', b"}}]}", "invalid_request"),
    "objects in an unknown field": Heavy(b'{"x":[{}', b",{}", b'],"records":[{"data":1}]}', INVALID),
    "unknown fields": Heavy(b'{"records":[{"data":1}]', b',"x":[]', b"}", INVALID),
    "unknown fields of a record": Heavy(b'{"records":[{"data":1', b',"x":1', b"}]}", INVALID),
    "an unknown key": Heavy(b'{"records":[{"data":1}],"' + EMOJI, b"x", b'":1}', INVALID),
    "an unknown key of a record": Heavy(b'{"records":[{"data":1,"' + EMOJI, b"x", b'":1}]}', INVALID),
    "an unknown key of a read": Heavy(b'{"' + EMOJI, b"x", b'":1}', INVALID, rest="/diff"),
    "an unknown field of a read": Heavy(b'{"x":[{}', b",{}", b"]}", INVALID, rest="/diff"),
    "records": Heavy(b'{"records":[{"data":1}', b',{"data":1}', b"]}", "batch_too_large"),
    "records without data": Heavy(b'{"records":[{}', b",{}", b"]}", "batch_too_large"),
    "nests in an unknown field": Heavy(b'{"records":[{"data":1}],"x":[0', b"," + _nested(60), b"]}", INVALID),
    "a tag": Heavy(b'{"records":[{"data":1,"tag":"' + EMOJI, b"x", b'"}]}', INVALID),
    "a node": Heavy(b'{"records":[{"data":1}],"node":"' + EMOJI, b"x", b'"}', INVALID),
    "a key": Heavy(b'{"records":[{"data":1}],"idempotency_key":"' + EMOJI, b"x", b'"}', INVALID),
    "a delay": Heavy(b'{"records":[{"data":1}],"delay_ms":"' + EMOJI, b"x", b'"}', INVALID),
    "a word of its configuration": Heavy(
        b'{"records":[{"data":1}],"config":{"ttl_ms":"' + EMOJI, b"x", b'"}}', INVALID
    ),
    "nodes of a read": Heavy(b'{"node":["a"', b',"a"', b"]}", INVALID, rest="/diff"),
    "texts of a match": Heavy(b'{"match":["a"', b',"a"', b"]}", INVALID, rest="/delete"),
    "a word of a configuration": Heavy(b'{"type":"' + EMOJI, b"x", b'"}', INVALID, method="PUT"),
}
FORMS = [("fast", name) for name in HEAVY]
FORMS += [
    (form, name) for form in ("coded", "chunked") for name in ("objects in data", "unknown fields", "records")
]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServerProcess]:
    with HttpServerProcess(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), FORMS)
def test_a_heavy_body_is_answered_in_bounded_time_and_memory(
    process: HttpServerProcess, form: str, name: str
) -> None:
    body, code = HEAVY[name].body(), HEAVY[name].code
    with RawClient(process.ports["coded" if form == "coded" else "fast"]) as client:
        assert client.ask("GET", "/v0/topics/none").status == 404
        before, spent = process.meter.reset_peak_bytes(), process.meter.cpu_seconds()
        target = f"/v0/topics/{form}{HEAVY[name].rest}"
        head = request_bytes(HEAVY[name].method, target, b"", is_chunked=form == "chunked")
        head = head.removesuffix(b"0\r\n\r\n")
        client.send(head if form == "chunked" else head + b"%d\r\n\r\n" % len(body))
        client.send(chunks_of(body) if form == "chunked" else body)
        answer = client.read_answer()
        assert (answer.code if answer.status >= 400 else None) == code
        assert len(answer.body) < 10_000
        assert process.meter.peak_bytes() - before < 2 * len(body)
        # Not a sharp figure: a tenth of it would do but for what else this machine does.
        assert process.meter.cpu_seconds() - spent < 10
