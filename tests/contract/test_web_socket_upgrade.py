"""How a WebSocket begins and ends on both connections: the rules of its request, and its closing messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.clients.ws_client import NONCE, Closed, WsClient, masked, upgrade_request
from tests.harness.server.http_server import HttpServer

pytestmark = pytest.mark.http1

KEY = "key-of-an-administrator"


@pytest.fixture
def socket(server: HttpServer, lane: str) -> Iterator[WsClient]:
    with WsClient(server.ports[lane]) as client:
        yield client


UPGRADE = ("connection: keep-alive, Upgrade", "upgrade: WebSocket")


@pytest.mark.parametrize(
    ("method", "fields", "status"),
    [
        ("GET", (), 426),
        ("HEAD", (*UPGRADE, "sec-websocket-version: 13", f"sec-websocket-key: {NONCE}"), 426),
        ("GET", (*UPGRADE, f"sec-websocket-key: {NONCE}"), 426),
        ("GET", (*UPGRADE, "sec-websocket-version: 8", f"sec-websocket-key: {NONCE}"), 426),
        ("GET", ("upgrade: websocket", "sec-websocket-version: 13", f"sec-websocket-key: {NONCE}"), 426),
        ("GET", ("connection: upgrade", "upgrade: h2c", "sec-websocket-version: 13"), 426),
        ("GET", (*UPGRADE, "sec-websocket-version: 13"), 400),
        ("GET", (*UPGRADE, "sec-websocket-version: 13", "sec-websocket-key: AAAA"), 400),
        ("GET", (*UPGRADE, "sec-websocket-version: 13", "sec-websocket-key: !"), 400),
        ("GET", (*UPGRADE, "sec-websocket-version: 13", *[f"sec-websocket-key: {NONCE}"] * 2), 400),
        ("POST", (*UPGRADE, "sec-websocket-version: 13", f"sec-websocket-key: {NONCE}"), 405),
    ],
)
def test_a_request_that_is_none_for_a_websocket_is_refused(
    server: HttpServer, lane: str, method: str, fields: tuple[str, ...], status: int
) -> None:
    with RawClient(server.ports[lane]) as client:
        answer = client.ask(method, "/v0/ws", None, *fields)
        assert answer.status == status
        if status == 426:
            assert (answer.fields["upgrade"], answer.fields["sec-websocket-version"]) == ("websocket", "13")
        if not answer.closes:
            assert client.ask("GET", "/v0/topics/never-created").status == 404


def test_a_request_with_a_body_is_refused(server: HttpServer, lane: str) -> None:
    with RawClient(server.ports[lane]) as client:
        head = upgrade_request("/v0/ws", "content-length: 2")
        client.send(head + b"{}")
        assert client.read_answer().status == 400


def test_a_page_of_another_origin_needs_a_key(server: HttpServer, lane: str, tmp_path: Any) -> None:
    with RawClient(server.ports[lane]) as client:
        client.send(upgrade_request("/v0/ws", "origin: https://elsewhere.example"))
        assert client.read_answer().status == 403
    with WsClient(server.ports[lane], "origin: HTTP://localhost") as socket:
        assert socket.ask("ping") == {"op": "pong"}
    with HttpServer(tmp_path, keys=KEY) as keyed:
        fields = ("origin: https://elsewhere.example", f"authorization: Bearer {KEY}")
        with WsClient(keyed.ports[lane], *fields) as socket:
            assert socket.ask("ping") == {"op": "pong"}


def test_requests_before_it_are_answered_and_messages_behind_it_are_heard(
    server: HttpServer, lane: str, api: Api
) -> None:
    before = request_bytes("POST", api.path, b'{"records":[{"data":1}]}')
    behind = masked(0x81, b'{"op":"ping","request_id":1}') + masked(0x81, b'{"op":"ping"')[:-4]
    with WsClient(server.ports[lane], before=before, behind=behind) as socket:
        assert socket.read() == {"op": "pong", "request_id": 1}


def test_a_compressed_socket_is_not_offered(server: HttpServer, lane: str) -> None:
    fields = ("sec-websocket-extensions: permessage-deflate", "sec-websocket-protocol: chat")
    with WsClient(server.ports[lane], *fields) as socket:
        assert socket.ask("ping") == {"op": "pong"}


def test_a_close_is_answered_with_its_code(socket: WsClient) -> None:
    socket.send_frame(8, (3000).to_bytes(2, "big") + b"bye")
    assert socket.read() == Closed(3000, "")
    socket.read_end()


def test_a_close_without_a_code_is_answered_as_normal(socket: WsClient) -> None:
    socket.send_frame(8)
    assert socket.read() == Closed(1000, "")
    socket.read_end()


def test_a_server_that_stops_says_how_to_come_back(tmp_path: Any, lane: str) -> None:
    with HttpServer(tmp_path) as server, WsClient(server.ports[lane]) as socket:
        socket.ask("publish", topic="a", records=[{"data": 1}, {"data": 2}], config={"durability": "fsync"})
        subscribed = socket.ask("subscribe", topic="a", from_seq=1)
        socket.expect("record")
        socket.expect("caught_up")
        # What is under way is still acked.
        for _ in range(5):
            socket.say("publish", topic="a", records=[{"data": 3}])
        socket.expect("ack")
        server.drain()
        message = socket.read()
        while message["op"] != "error":
            message = socket.read()
        assert message["code"] == "shutting_down"
        cursor = message["cursors"]["a"]
        assert cursor["epoch"] == subscribed["topics"]["a"]["epoch"]
        assert cursor["from_seq"] >= 2
        socket.expect_close(1001)


class UpgradeGate:
    """Delay upgrades until released, as when another process must answer first."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._open = server.open_socket
        self._waiting: list[tuple[Any, Any]] = []
        server.open_socket = lambda call, key: self._waiting.append((call, key))

    def wait_for_one(self) -> None:
        while not self._server.run(lambda: bool(self._waiting)):
            pass

    def let_in(self) -> None:
        self._server.run(lambda: self._open(*self._waiting.pop()))


@pytest.mark.parametrize("parts", [1, 5])
def test_what_comes_while_it_is_not_answered_yet_waits(tmp_path: Any, lane: str, parts: int) -> None:
    with HttpServer(tmp_path) as server, EarlyClient(server.ports[lane]) as socket:
        gate = UpgradeGate(server)
        pings = (masked(0x81, b'{"op":"ping","request_id":%d}' % number) for number in range(50))
        sent = upgrade_request() + b"".join(pings)
        size = len(sent) // parts + 1
        socket.send_in_parts(sent[at : at + size] for at in range(0, len(sent), size))
        gate.wait_for_one()
        gate.let_in()
        socket.enter()
        assert [socket.read()["request_id"] for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("behind", [b"", masked(0x81, b'{"op":"ping"}')])
def test_who_leaves_before_it_is_answered_leaves_nothing_behind(
    tmp_path: Any, lane: str, behind: bytes
) -> None:
    with HttpServer(tmp_path) as server, EarlyClient(server.ports[lane]) as socket:
        gate = UpgradeGate(server)
        socket.send(upgrade_request() + behind)
        gate.wait_for_one()
        socket.reset()
        # With bytes after the request, reading has stopped, so the reset is not noticed yet.
        while not behind and server.run(lambda: len(server.connections)):
            pass
        gate.let_in()
        while server.run(lambda: len(server.connections)):
            pass


class EarlyClient(WsClient):
    """A client that sends messages before its upgrade is answered."""

    def __init__(self, port: int) -> None:
        RawClient.__init__(self, port)
        self.pongs = []

    def enter(self) -> None:
        assert b"101" in self._read_until(b"\r\n\r\n")


def test_the_key_may_stand_in_the_query(tmp_path: Any, lane: str) -> None:
    with HttpServer(tmp_path, keys=KEY) as server:
        with WsClient(server.ports[lane], target=f"/v0/ws?token={KEY}") as socket:
            assert socket.ask("ping") == {"op": "pong"}
        for target in ("/v0/ws", "/v0/ws?token=", "/v0/ws?token=a-stranger-to-us"):
            with RawClient(server.ports[lane]) as client:
                client.send(upgrade_request(target))
                assert client.read_answer().status == 401


def test_sockets_count_among_the_streams(tmp_path: Any, lane: str) -> None:
    other = "key-of-another"
    caps = {"max_sse_connections": 3, "max_sse_connections_per_key": 2}
    with HttpServer(tmp_path, keys=f"{KEY},{other}", **caps) as server, ExitStack() as opened:

        def enter(key: str) -> WsClient:
            return opened.enter_context(WsClient(server.ports[lane], f"authorization: Bearer {key}"))

        def refused(key: str) -> str:
            with RawClient(server.ports[lane]) as client:
                client.send(upgrade_request("/v0/ws", f"authorization: Bearer {key}"))
                answer = client.read_answer()
                assert (answer.status, answer.code) == (429, "throttled")
                # The connection is as good as before.
                assert client.ask("GET", "/v0/topics/a", None, f"authorization: Bearer {key}").status == 404
                return str(answer.json["error"]["detail"]["limit"])

        first = enter(KEY)
        enter(KEY)
        assert refused(KEY) == "max_sse_connections_per_key"
        enter(other)
        assert refused(other) == "max_sse_connections"
        first.send_frame(8)
        assert isinstance(first.read(), Closed)
        assert enter(KEY).ask("ping") == {"op": "pong"}
        assert refused(other) == "max_sse_connections"
