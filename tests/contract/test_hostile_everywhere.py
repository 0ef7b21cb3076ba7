"""The rows of hostile heads and chunks on the ways that a connection may have taken through a whole server.

Each is sent as the first request of a connection, after one that the supervisor answered, and after one of
another shard. The answer is the same, the connection ends, and nothing after the row is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.contract.test_hostile import CHUNKS, ENDLESS, HEADS, LENGTH, LINES, RECORDS
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer

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


@pytest.mark.parametrize("way", [fresh, behind_control, behind_another_shard])
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
