"""Keys: who may do what, and that a key which may not learns nothing about what there is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.harness.clients.raw_client import Answer, HttpClient, request_bytes
from tests.harness.server.http_server import HttpServer

ALL = "key-that-may-do-everything"
READER = "key-of-a-reader-of-orders"
WRITER = "key-of-a-writer-of-orders"
ADMIN = "key-of-an-administrator"
DELETER = "key-of-a-deleter"
KEYS = f"{ALL},{READER}:read:orders.,{WRITER}:w:orders.|bills.,{ADMIN}:admin,{DELETER}:d"
RECORDS = b'{"records":[{"data":1}]}'

REQUESTS = {
    "put": ("PUT", "", b"{}"),
    "append": ("POST", "", RECORDS),
    "state": ("GET", "", None),
    "look": ("HEAD", "", None),
    "diff": ("POST", "/diff", b"{}"),
    "delete records": ("POST", "/delete", b'{"before_seq":0}'),
    "claim": ("POST", "/claim", b'{"node":"w"}'),
    "ack": ("POST", "/ack", b'{"node":"w","seqs":[]}'),
    "delete topic": ("DELETE", "", None),
}
SCOPES = {
    READER: {"state", "look", "diff"},
    WRITER: {"append", "ack"},
    ADMIN: {"put"},
    DELETER: {"delete records", "delete topic"},
    ALL: set(REQUESTS),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data"), keys=KEYS) as running:
        yield running


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[HttpClient]:
    with server.connect(lane) as one:
        for name in ("orders.eu", "private"):
            one.ask("POST", f"/v0/topics/{name}", RECORDS, f"authorization: Bearer {ALL}")
        yield one


def _ask(client: HttpClient, what: str, topic: str, *fields: str) -> Answer:
    method, rest, body = REQUESTS[what]
    return client.ask(method, f"/v0/topics/{topic}{rest}", body, *fields)


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("key", [READER, WRITER, ADMIN, DELETER])
def test_a_key_may_do_what_its_scopes_say(client: HttpClient, key: str, what: str) -> None:
    answer = _ask(client, what, "orders.eu", f"authorization: Bearer {key}")
    if what in SCOPES[key]:
        # A log has no jobs, and a key with the scope gets that error.
        assert answer.status in (200, 201) or answer.code == "not_a_queue", answer
    else:
        assert answer.status == 403
        if what != "look":
            assert answer.code == "forbidden"


@pytest.mark.parametrize("what", ["state", "diff", "append", "delete topic"])
def test_what_exists_and_what_does_not_is_refused_alike(client: HttpClient, what: str) -> None:
    for fields in ((), ("authorization: Bearer unknown-key",), (f"authorization: Bearer {READER}",)):
        there = _ask(client, what, "private", *fields)
        absent = _ask(client, what, "absent", *fields)
        invalid = _ask(client, what, "a%20b", *fields)
        assert there.status in (401, 403)
        assert there == absent == invalid


@pytest.mark.parametrize(
    "field",
    [
        None,
        "authorization: ",
        "authorization: Bearer",
        "authorization: Bearer ",
        "authorization: Basic eDp5",
        f"authorization: Bearer {ALL} {ALL}",
        f"authorization: {ALL}",
        f"authorization: Bearer {ALL}x",
        f"authorization: Bearer {ALL[:-1]}",
        "authorization: Bearer \xe9",
        "authorization: Bearer " + "k" * 8000,
    ],
)
def test_without_a_key_that_is_known_it_is_401_with_a_challenge(
    client: HttpClient, field: str | None
) -> None:
    answer = _ask(client, "state", "orders.eu", *([] if field is None else [field]))
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.fields["www-authenticate"].startswith('Bearer realm="topicsd"')
    assert "connection" not in answer.fields
    assert ALL not in answer.body.decode()
    assert client.ask("GET", "/v0/topics/orders.eu", None, f"authorization: Bearer {ALL}").status == 200


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_read_as_the_standard_has_it(client: HttpClient, scheme: str) -> None:
    assert _ask(client, "state", "orders.eu", f"authorization: {scheme} {ALL}").status == 200


def test_the_key_is_asked_for_with_each_request(client: HttpClient) -> None:
    key = f"authorization: Bearer {ALL}"
    requests = [client.start("POST", "/v0/topics/each", RECORDS, *fields) for fields in ((key,), (), (key,))]
    assert [client.finish(one).status // 100 for one in requests] == [2, 4, 2]


def test_a_prefix_binds_the_name_as_it_is_decoded(client: HttpClient) -> None:
    field = f"authorization: Bearer {READER}"
    assert client.ask("GET", "/v0/topics/%6frders.eu", None, field).status == 200
    assert client.ask("GET", "/v0/topics/orders", None, field).status == 403
    assert client.ask("GET", "/v0/topics/%2forders.eu", None, field).status == 403
    assert client.ask("GET", "/v0/topics/orders.none", None, field).status == 404


@pytest.mark.http1
def test_two_keys_at_once_are_refused(client: HttpClient) -> None:
    answer = _ask(
        client, "state", "orders.eu", f"authorization: Bearer {ALL}", f"authorization: Bearer {ALL}"
    )
    assert (answer.status, answer.closes) == (400, True)


@pytest.mark.http1
def test_a_trailer_is_no_key(client: HttpClient) -> None:
    head = request_bytes("POST", "/v0/topics/orders.eu", b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    trailer = b"0\r\nauthorization: Bearer %b\r\n\r\n" % ALL.encode()
    client.send(head + b"%x\r\n%b\r\n" % (len(RECORDS), RECORDS) + trailer)
    assert client.read_answer().status == 401


@pytest.mark.http1
def test_a_missing_scope_is_refused_before_the_body_is_sent(client: HttpClient) -> None:
    fields = "host: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\nexpect: 100-continue"
    client.send(f"POST /v0/topics/orders.eu HTTP/1.1\r\n{fields}\r\n\r\n".encode())
    answer = client.read_answer()
    assert (answer.status, answer.closes) == (401, True)
    assert "www-authenticate" in answer.fields
    client.read_end()


def test_probes_need_a_key_with_probe_auth(tmp_path_factory: pytest.TempPathFactory, lane: str) -> None:
    """Also on a connection of a worker, which passes them on."""
    with (
        HttpServer(tmp_path_factory.mktemp("data"), keys=KEYS, probe_auth=True) as server,
        server.connect(lane) as client,
    ):
        for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
            assert client.ask("GET", path).code == "unauthorized"
            # No supervisor runs here that could answer.
            assert client.ask("GET", path, None, f"authorization: Bearer {READER}").status == 503


def test_requests_of_a_key_that_are_in_flight_are_bounded(
    tmp_path_factory: pytest.TempPathFactory, lane: str
) -> None:
    with HttpServer(tmp_path_factory.mktemp("data"), keys=KEYS, max_inflight_per_key=2) as server:
        fields = f"authorization: Bearer {ALL}"
        clients = [server.connect(lane) for _ in range(3)]
        assert clients[0].ask("POST", "/v0/topics/t", RECORDS, fields).status == 201
        wait = b'{"from_seq":1,"wait_ms":30000}'
        requests = [client.start("POST", "/v0/topics/t/diff", wait, fields) for client in clients[:2]]
        deadline = time.monotonic() + 10
        while (refused := clients[2].ask("GET", "/v0/topics/t", None, fields)).status == 200:
            assert time.monotonic() < deadline
        assert (refused.status, refused.code, refused.fields["retry-after"]) == (429, "throttled", "1")
        detail = refused.json["error"]["detail"]
        assert (detail["limit"], detail["max"]) == ("max_inflight_per_key", 2)
        other = f"authorization: Bearer {ADMIN}"
        assert clients[2].ask("PUT", "/v0/topics/t", b"{}", other).status == 200
        # One that leaves makes room.
        clients[1].close()
        while (answer := clients[2].ask("POST", "/v0/topics/t", RECORDS, fields)).status == 429:
            assert time.monotonic() < deadline
        assert answer.status == 200
        assert clients[0].finish(requests[0]).json["next_from_seq"] == 2
        for client in clients:
            client.close()
