"""WebSockets of a whole server: whichever worker has one, every topic can be followed and written on it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.clients.ws_client import WsClient, upgrade_request
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

SHARDS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("served"), shards=SHARDS) as running:
        yield running


def _names(server: WholeServer, prefix: str) -> list[str]:
    return [server.topic_of(shard, prefix) for shard in range(server.shards)]


def _append(server: WholeServer, name: str, *data: Any) -> None:
    body = {"records": [{"data": one} for one in data]}
    with RawClient(server.port) as client:
        assert client.ask("POST", f"/v0/topics/{name}", body).status in (200, 201)


class Heard:
    """What came on a socket, sorted by topic."""

    def __init__(self, socket: WsClient) -> None:
        self._socket = socket
        self.data: dict[str, list[Any]] = {}
        self.heads: dict[str, int] = {}
        self.others: list[Any] = []

    def wait_for(self, name: str, data: list[Any]) -> None:
        while self.data.get(name) != data:
            self.hear()

    def hear(self) -> Any:
        message = self._socket.read()
        if message["op"] == "record":
            records = self.data.setdefault(message["topic"], [])
            records += [record["data"] for record in message["records"]]
        elif message["op"] == "caught_up":
            self.heads[message["topic"]] = message["head_seq"]
        else:
            self.others.append(message)
        return message


@pytest.mark.parametrize("begins_at", ["front", *range(SHARDS)])
def test_topics_of_all_shards_on_any_connection(server: WholeServer, begins_at: str | int) -> None:
    names = _names(server, f"any-{begins_at}-")
    if begins_at == "front":
        opener = request_bytes("GET", "/v0/health")
    else:
        opener = request_bytes("POST", f"/v0/topics/{names[int(begins_at)]}", b'{"records":[{"data":0}]}')
    with WsClient(server.port, before=opener) as socket:
        for number, name in enumerate(names):
            ack = socket.ask("publish", topic=name, records=[{"data": "first"}], request_id=number)
            assert (ack["op"], ack["topic"], ack["request_id"]) == ("ack", name, number)
        message = socket.ask("subscribe", topics={name: {"tail": True} for name in names}, request_id="s")
        assert set(message["topics"]) == set(names)
        heard = Heard(socket)
        for name in names:
            _append(server, name, "over http")
            heard.wait_for(name, ["over http"])
        for name in names:
            socket.say("publish", topic=name, records=[{"data": "over the socket"}])
            heard.wait_for(name, ["over http", "over the socket"])
        with RawClient(server.port) as client:
            for name in names:
                assert client.ask("DELETE", f"/v0/topics/{name}").json["deleted"]
        while {one["topic"] for one in heard.others if one["op"] == "topic_deleted"} != set(names):
            heard.hear()


def test_refusals_are_the_same_wherever_the_topic_is(server: WholeServer) -> None:
    for name in _names(server, "refused-"):
        with WsClient(server.port) as socket:
            absent = socket.ask("subscribe", topic=name, request_id=1)
            assert absent.pop("message") == f'topic "{name}" does not exist'
            assert absent == {"op": "error", "request_id": 1, "code": "topic_not_found"}
            message = socket.ask("publish", topic=name, records=[{"data": 1}], create=False)
            assert (message["op"], message["code"]) == ("error", "topic_not_found")
            message = socket.ask("publish", topic=name, records=[{}])
            assert (message["code"], message["detail"]["field"]) == ("invalid_request", "records[0].data")
            sent = {"topic": name, "records": [{"data": 1}], "idempotency_key": "k"}
            assert [socket.ask("publish", **sent)["deduped"] for _ in range(2)] == [False, True]


def test_many_sockets_on_all_workers_hear_the_same(server: WholeServer) -> None:
    names = _names(server, "many-")
    for name in names:
        _append(server, name, 0)
    sockets = [WsClient(server.port) for _ in range(20)]
    try:
        for socket in sockets:
            assert socket.ask("subscribe", topics=names)["op"] == "subscribed"
        for number in range(1, 30):
            for name in names:
                _append(server, name, number)
        for socket in sockets:
            heard = Heard(socket)
            for name in names:
                heard.wait_for(name, list(range(30)))
    finally:
        for socket in sockets:
            socket.close()


def test_a_shard_that_dies_is_said_and_followed_on_when_it_is_back(server: WholeServer) -> None:
    names = _names(server, "killed-")
    for name in names:
        _append(server, name, 1)
    for dies in range(SHARDS):
        lives = 1 - dies
        opener = request_bytes("POST", f"/v0/topics/{names[lives]}", b'{"records":[{"data":1}]}')
        with WsClient(server.port, before=opener) as socket:
            socket.ask("subscribe", topics=names, tail=True)
            heard = Heard(socket)
            while set(heard.heads) != set(names):
                heard.hear()
            worker = server.a_worker(dies)
            worker.signal(signal.SIGKILL)
            message = heard.hear()
            assert (message["op"], message["code"], message["topics"]) == (
                "error",
                "not_ready",
                [names[dies]],
            )
            # The others continue meanwhile.
            socket.say("publish", topic=names[lives], records=[{"data": "meanwhile"}])
            heard.wait_for(names[lives], ["meanwhile"])
            server.wait_for_shard(dies)
            _append(server, names[dies], "it is back")
            heard.wait_for(names[dies], ["it is back"])
            assert [one["op"] for one in heard.others].count("error") == 1


def test_a_server_that_stops_says_where_everybody_is(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        names = _names(server, "stop-")
        sockets = [WsClient(server.port) for _ in range(4)]
        for socket in sockets:
            for name in names:
                socket.ask("publish", topic=name, records=[{"data": 1}])
        for socket in sockets:
            socket.ask("subscribe", topics=names, tail=True)
            heard = Heard(socket)
            while set(heard.heads) != set(names):
                heard.hear()
        server.signal(signal.SIGTERM)
        for socket in sockets:
            message = socket.read()
            while message["op"] == "error" and "cursors" not in message:
                # The other shard went first.
                message = socket.read()
            assert message["code"] == "shutting_down"
            assert {name: place["from_seq"] for name, place in message["cursors"].items()} == dict.fromkeys(
                names, len(sockets)
            )
            socket.expect_close(1001)
            socket.close()
        assert server.stop() == 0
        server.start()
        with WsClient(server.port) as socket:
            socket.ask("subscribe", topics=message["cursors"])
            heard = Heard(socket)
            for name in names:
                _append(server, name, "after")
                heard.wait_for(name, ["after"])
            assert heard.others == []


def test_sockets_are_counted_over_all_shards_and_those_of_a_dead_worker_are_not(
    tmp_path: Path,
) -> None:
    with WholeServer(tmp_path, "--max-sse-connections=4", shards=SHARDS) as server, ExitStack() as opened:
        openers = [
            request_bytes("POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}')
            for name in _names(server, "counted-")
        ]
        for number in range(4):
            opened.enter_context(WsClient(server.port, before=openers[number % SHARDS]))

        def is_refused() -> bool:
            with RawClient(server.port) as client:
                client.send(upgrade_request())
                return client.read_answer().status == 429

        assert is_refused()
        server.wait_for(lambda: _stream_count(server) == 4, "the streams are in the metrics")
        server.a_worker(0).signal(signal.SIGKILL)
        server.wait_for_shard(0)
        for _ in range(2):
            opened.enter_context(WsClient(server.port, before=openers[1]))
        assert is_refused()


def _stream_count(server: WholeServer) -> int:
    with RawClient(server.port) as client:
        client.send(request_bytes("GET", "/v0/metrics"))
        metrics = client.read_answer().body.decode()
    return sum(map(int, re.findall(r"^topics_sse_connections(?:{.*})? (\d+)$", metrics, re.MULTILINE)))
