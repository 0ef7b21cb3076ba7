"""The rows of hostile heads and chunks on the ways that a connection may have taken through a whole server.

Each is sent as the first request of a connection, after one that the supervisor answered, after one of
another shard, and on a connection that was handed from one worker to another. The answer is the same, the
connection ends, and nothing after the row is executed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.contract.test_hostile import CHUNKS, ENDLESS, HEADS, LENGTH, LINES, RECORDS
from tests.harness.raw_client import RawClient, request_bytes
from tests.harness.whole_server import WholeServer
from topicsd.http.http1.affinity import MOVE_INTERVAL_SECONDS, WINDOW_REQUESTS

TOO_MUCH = 64 << 10

pytestmark = pytest.mark.slow


class Row(NamedTuple):
    sent: bytes
    status: int
    code: str


def rows(path: str) -> Iterator[tuple[str, Row]]:
    behind = request_bytes("POST", path, RECORDS)
    for label, head in HEADS.items():
        sent = head.replace("{path}", path).encode("latin-1") + RECORDS + behind
        yield f"head: {label}", Row(sent, 400, "invalid_request")
    for label, (line, status, code) in LINES.items():
        head = f"{line}\r\nhost: a\r\ncontent-length: {LENGTH}\r\n\r\n"
        yield f"line: {label}", Row(head.encode() + RECORDS + behind, status, code)
    chunked = request_bytes("POST", path, b"", is_chunked=True).removesuffix(b"0\r\n\r\n")
    for label, framed in CHUNKS.items():
        yield f"chunk: {label}", Row(chunked + framed + behind, 400, "invalid_request")
    codes = {400: "invalid_request", 414: "uri_too_long", 431: "headers_too_large"}
    for label, (start, more, status) in ENDLESS.items():
        yield f"endless: {label}", Row(start + more * (TOO_MUCH // len(more)), status, codes[status])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("data"), shards=2) as running:
        yield running


def moved_count(port: int) -> int:
    with RawClient(port) as client:
        answer = client.ask("GET", "/v0/metrics", None, "accept: application/json")
    return int(answer.json["topics_connections_moved_total"])


def fresh(server: WholeServer, clients: list[RawClient]) -> None:
    del server, clients


def behind_control(server: WholeServer, clients: list[RawClient]) -> None:
    del server
    for client in clients:
        assert client.ask("GET", "/v0/health").status == 200


def behind_another_shard(server: WholeServer, clients: list[RawClient]) -> None:
    path = f"/v0/topics/{server.topic_of(0, 'elsewhere')}"
    for client in clients:
        assert client.ask("GET", path).status == 404


def moved(server: WholeServer, clients: list[RawClient]) -> None:
    before = moved_count(server.port)
    behind_another_shard(server, clients)
    time.sleep(MOVE_INTERVAL_SECONDS)
    wire = request_bytes("GET", f"/v0/topics/{server.topic_of(1, 'none')}")
    count = WINDOW_REQUESTS
    deadline = time.monotonic() + 60
    while moved_count(server.port) < before + len(clients):
        assert time.monotonic() < deadline
        for client in clients:
            client.send(wire * count)
            for _ in range(count):
                assert client.read_answer().status == 404
            # It moves with this one, or in a second again where there was no room in the mailbox.
            assert client.ask("GET", f"/v0/topics/{server.topic_of(1, 'none')}").status == 404
        count = 0
        time.sleep(MOVE_INTERVAL_SECONDS)


@pytest.mark.parametrize("way", [fresh, behind_control, behind_another_shard, moved])
def test_every_row_is_refused_alike(
    server: WholeServer, way: Callable[[WholeServer, list[RawClient]], None]
) -> None:
    path = f"/v0/topics/{server.topic_of(1, 'hostile')}"
    bodies = dict(rows(path))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in bodies]
        way(server, clients)
        for (label, row), client in zip(bodies.items(), clients, strict=True):
            client.send(row.sent)
            answer = client.read_answer()
            assert (answer.status, answer.code, answer.closes) == (row.status, row.code, True), label
            client.read_end()
    with RawClient(server.port) as client:
        assert client.ask("GET", path).code == "topic_not_found"
