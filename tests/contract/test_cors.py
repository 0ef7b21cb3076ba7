"""Web pages of other origins: preflights, the fields of every answer, and the origins that are allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.contract.endpoints import ENDPOINTS
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.raw_client import Answer, HttpClient, RawClient
from tests.harness.clients.ws_client import WsClient, upgrade_request
from tests.harness.server.http_server import H2, HttpServer

PAGE = "https://app.example.com"
LOCAL = "http://localhost:3000"
ELSEWHERE = "https://elsewhere.example"
KEY = "key-of-an-administrator"
RECORDS = b'{"records":[{"data":1}]}'
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("data")
    with HttpServer(folder, keys=KEY, cors_origins=f"{PAGE},{LOCAL}") as running:
        yield running


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[HttpClient]:
    with server.connect(lane) as one:
        yield one


def preflight(client: HttpClient, path: str, origin: str = PAGE) -> Answer:
    return client.ask("OPTIONS", path, None, f"origin: {origin}", "access-control-request-method: PUT")


def is_allowed(answer: Answer, origin: str = PAGE) -> bool:
    fields = answer.fields
    return fields.get(ALLOW) == origin and fields["access-control-expose-headers"] == "*"


def test_a_preflight_of_every_endpoint_is_answered_without_a_key(client: HttpClient) -> None:
    for path in sorted({one.pattern.replace(":", "x") for one in ENDPOINTS} | {"/nothing/here"}):
        answer = preflight(client, path)
        assert answer.status == 200, path
        assert is_allowed(answer), path
        assert answer.fields["access-control-allow-methods"] == "DELETE, GET, HEAD, POST, PUT"
        assert answer.fields["access-control-allow-headers"] == "authorization, *"
        assert answer.body == b""


def test_a_request_after_its_preflight_uses_the_same_connection(client: HttpClient) -> None:
    for number in range(3):
        assert preflight(client, "/v0/topics/pages", LOCAL).fields[ALLOW] == LOCAL
        fields = (f"origin: {LOCAL}", f"authorization: Bearer {KEY}")
        answer = client.ask("POST", "/v0/topics/pages", RECORDS, *fields)
        assert answer.json["count"] == 1, number
        assert is_allowed(answer, LOCAL)


def test_every_kind_of_answer_has_the_fields(client: HttpClient) -> None:
    origin, key = f"origin: {PAGE}", f"authorization: Bearer {KEY}"
    for method, path, body, fields, status in (
        ("GET", "/v0/topics/pages", None, (), 401),
        ("GET", "/v0/topics/absent", None, (key,), 404),
        ("GET", "/v0/nothing", None, (key,), 404),
        ("POST", "/v0/topics/pages", b"{", (key,), 400),
        ("PATCH", "/v0/topics/pages", None, (key,), 405),
        ("HEAD", "/v0/topics/pages", None, (key,), 200),
        ("PUT", "/v0/topics/pages", b"{}", (key,), 200),
        ("POST", "/v0/topics/pages/diff", b"{}", (key,), 200),
        ("POST", "/v0/topics/pages", b"x" * 100, (key, "content-encoding: gzip"), 400),
    ):
        if (method, status) == ("HEAD", 200):
            client.ask("POST", "/v0/topics/pages", RECORDS, key)
        answer = client.ask(method, path, body, origin, *fields)
        assert answer.status == status, (method, path, answer)
        assert is_allowed(answer), (method, path)


def test_a_compressed_answer_varies_by_both(client: HttpClient) -> None:
    key = f"authorization: Bearer {KEY}"
    client.ask("POST", "/v0/topics/long", {"records": [{"data": "x" * 3000}]}, key)
    body = b"{}"
    answer = client.ask("POST", "/v0/topics/long/diff", body, key, f"origin: {PAGE}", "accept-encoding: gzip")
    assert answer.fields["content-encoding"] == "gzip"
    assert answer.fields["vary"] == "accept-encoding, origin"
    assert is_allowed(answer)


@pytest.mark.http1
def test_a_body_over_the_limit_is_refused_so_that_the_page_reads_it(server: HttpServer, lane: str) -> None:
    with RawClient(server.ports[lane]) as client:
        size = server.settings.max_body_bytes + 1
        head = (
            f"POST /v0/topics/pages HTTP/1.1\r\nhost: a\r\norigin: {PAGE}\r\ncontent-length: {size}\r\n\r\n"
        )
        client.send(head.encode())
        answer = client.read_answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert is_allowed(answer)


def test_another_origin_gets_answers_that_its_browser_hides(client: HttpClient) -> None:
    answer = preflight(client, "/v0/topics/pages", ELSEWHERE)
    assert answer.status == 405
    assert "TOPICS_CORS_ORIGINS" in answer.message
    for origin in (ELSEWHERE, "null", PAGE + ":8443", PAGE.replace("https", "http")):
        answer = client.ask("GET", "/v0/topics/pages", None, f"origin: {origin}")
        assert answer.fields["vary"] == "origin"
        assert ALLOW not in answer.fields


def test_a_request_without_an_origin_gets_no_such_fields(client: HttpClient) -> None:
    answer = client.ask("GET", "/v0/topics/pages", None, f"authorization: Bearer {KEY}")
    assert not [name for name in answer.fields if name.startswith("access-control")]
    answer = client.ask("OPTIONS", "/v0/topics/pages")
    assert (answer.status, answer.fields["allow"]) == (405, "DELETE, GET, HEAD, POST, PUT")


@pytest.mark.http1
def test_an_event_source_of_another_origin_reads_a_stream(server: HttpServer, lane: str) -> None:
    with RawClient(server.ports[lane]) as client:
        key = f"authorization: Bearer {KEY}"
        client.ask("POST", "/v0/topics/events", RECORDS, key)
        body = {"topics": {"events": {"after_seq": 0}}}
        url = client.ask_json("POST", "/v0/watch", body, key)["stream_url"]
    with EventClient(server.ports[lane], f"{url}?token={KEY}", f"origin: {PAGE}") as events:
        assert events.begin().fields[ALLOW] == PAGE
        assert events.records(1)[0] == ("events", 1)


def test_without_the_setting_no_origin_is_allowed(
    tmp_path_factory: pytest.TempPathFactory, lane: str
) -> None:
    with HttpServer(tmp_path_factory.mktemp("none")) as plain, plain.connect(lane) as client:
        assert preflight(client, "/v0/topics/pages").status == 405
        answer = client.ask("GET", "/v0/topics/absent", None, f"origin: {PAGE}")
        assert not {"vary", ALLOW} & set(answer.fields)


def test_any_origin_is_answered_with_a_star(tmp_path_factory: pytest.TempPathFactory, lane: str) -> None:
    with (
        HttpServer(tmp_path_factory.mktemp("any"), keys=KEY, cors_origins="*") as any_origin,
        any_origin.connect(lane) as client,
    ):
        for origin in (ELSEWHERE, "null"):
            assert preflight(client, "/v0/topics/pages", origin).fields[ALLOW] == "*"
            answer = client.ask("GET", "/v0/topics/pages", None, f"origin: {origin}")
            assert (answer.status, answer.fields[ALLOW]) == (401, "*")
            # No answer allows credentials.
            assert "access-control-allow-credentials" not in answer.fields


def test_a_web_socket_without_keys_is_for_the_same_origins(tmp_path_factory: pytest.TempPathFactory) -> None:
    with HttpServer(tmp_path_factory.mktemp("open"), cors_origins=PAGE) as server:
        port = next(port for name, port in server.ports.items() if name != H2)
        with WsClient(port, f"origin: {PAGE}") as socket:
            assert socket.ask("ping") == {"op": "pong"}
        with RawClient(port) as client:
            client.send(upgrade_request("/v0/ws", f"origin: {ELSEWHERE}"))
            answer = client.read_answer()
            assert answer.status == 403
            assert "TOPICS_CORS_ORIGINS" in answer.message


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("keyless"), cors_origins=PAGE) as running:
        yield running


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "Text/Plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        # The ping of a link, and the report of a page.
        "text/ping",
        "application/csp-report",
    ],
)
def test_without_keys_a_page_cannot_write_without_a_preflight(
    open_server: HttpServer, lane: str, content_type: str | None
) -> None:
    topic = f"/v0/topics/plain-{lane}"
    for path, body in (
        (f"{topic}/records", b"text"),
        (f"{topic}/fence", None),
        ("/v0/backup-points", None),
    ):
        for origin in (ELSEWHERE, "null", "http://localhost:4001"):
            with open_server.connect(lane) as client:
                answer = client.ask("POST", path, body, f"origin: {origin}", content_type=content_type)
                assert (answer.status, answer.code) == (403, "forbidden"), (path, origin, answer)
                assert "TOPICS_CORS_ORIGINS" in answer.message
    with open_server.connect(lane) as client:
        assert client.ask("GET", topic).status == 404


def test_without_keys_no_page_writes_at_any_endpoint(open_server: HttpServer, lane: str) -> None:
    topic = f"queue-{lane}"
    with open_server.connect(lane) as client:
        client.ask("PUT", f"/v0/topics/{topic}", {"type": "queue"})
        client.ask("POST", f"/v0/topics/{topic}", RECORDS)
        writes = [one for one in ENDPOINTS if one.method != "GET"]
        assert {one.method for one in writes} == {"DELETE", "POST", "PUT"}
        for endpoint in writes:
            path = endpoint.pattern.replace(":topic", topic).replace(":", "x")
            if endpoint.method == "POST":
                for content_type in (None, "text/plain"):
                    answer = client.ask("POST", path, None, f"origin: {ELSEWHERE}", content_type=content_type)
                    assert (answer.status, answer.code) == (403, "forbidden"), (path, answer)
            # A browser sends all other writes after a preflight that allows them.
            answer = preflight(client, path, ELSEWHERE)
            assert answer.status == 405, path
            assert not [name for name in answer.fields if name.startswith("access-control")], path
        # It is neither sealed nor fenced, and has all its records.
        assert client.ask("POST", f"/v0/topics/{topic}", RECORDS).succeeded["head_seq"] == 2
        assert client.ask("GET", f"/v0/topics/{topic}").succeeded["count"] == 2


def test_without_keys_pages_that_are_allowed_and_other_clients_write_text(
    open_server: HttpServer, lane: str
) -> None:
    path = f"/v0/topics/allowed-{lane}/records"
    with open_server.connect(lane) as client:
        for count, fields in enumerate(((), (f"origin: {PAGE}",), ("origin: http://localhost",)), 1):
            answer = client.ask("POST", path, b"text", *fields, content_type="text/plain")
            assert answer.succeeded["head_seq"] == count, fields
        # The browser of such a page sent a preflight, which was refused.
        answer = client.ask("POST", f"{path[:-8]}/diff", b"{}", f"origin: {ELSEWHERE}")
        assert len(answer.succeeded["records"]) == 3


def test_with_keys_the_key_decides(client: HttpClient) -> None:
    path, lines = "/v0/topics/keyed/records", (f"origin: {ELSEWHERE}", f"authorization: Bearer {KEY}")
    assert client.ask("POST", path, b"text", *lines, content_type="text/plain").succeeded["count"] == 1
    assert client.ask("POST", path, b"text", lines[0], content_type="text/plain").status == 401


@pytest.mark.http1
def test_a_refused_page_is_not_asked_for_the_body(open_server: HttpServer, lane: str) -> None:
    with RawClient(open_server.ports[lane]) as client:
        lines = (
            f"origin: {ELSEWHERE}\r\ncontent-type: text/plain\r\nexpect: 100-continue\r\ncontent-length: 9"
        )
        client.send(f"POST /v0/topics/pages/records HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n".encode())
        assert client.read_answer().status == 403
