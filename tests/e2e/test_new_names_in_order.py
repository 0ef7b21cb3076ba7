"""Pipelined appends to a new name, which a broker is asked about: none overtakes another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import HttpClient, RawClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.whole_server import WholeServer

SHARDS = 2
APPENDS = 30
ROUNDS = 4
NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    folder = tmp_path_factory.mktemp("order")
    (folder / "store").mkdir()
    with WholeServer(folder, f"--store-url=file://{folder / 'store'}", shards=SHARDS) as running:
        yield running


def new_name(shard: int) -> str:
    return next(name for n in NUMBERS if shard_of(topic_id(name := f"n{n}"), SHARDS) == shard)


def body_of(number: int, is_produced: bool) -> dict[str, Any]:
    producer = {"producer": {"id": "p", "seq": number + 1}} if is_produced else {}
    return {"records": [{"data": number}], **producer}


def begin_at(client: HttpClient, place: int | str) -> None:
    """Send the first request of a connection, which places it at a shard or at the broker."""
    target = "/health" if place == "broker" else f"/v0/topics/{new_name(int(place))}"
    assert client.ask("GET", target).status in (200, 404)


@pytest.mark.parametrize("is_produced", [False, True])
@pytest.mark.parametrize("place", [0, 1, "broker"])
@pytest.mark.parametrize("protocol", [RawClient, H2Client])
def test_pipelined_appends_over_http_keep_their_order(
    server: WholeServer, protocol: type[RawClient | H2Client], place: int | str, is_produced: bool
) -> None:
    with protocol(server.port) as client:
        begin_at(client, place)
        for _ in range(ROUNDS):
            path = f"/v0/topics/{new_name(0)}"
            begun = [client.start("POST", path, body_of(n, is_produced)) for n in range(APPENDS)]
            answers = [client.finish(one).succeeded for one in begun]
            assert [one["first_seq"] for one in answers] == list(range(1, APPENDS + 1))
            assert [one["created"] for one in answers] == [True] + [False] * (APPENDS - 1)
            read = client.ask_json("POST", f"{path}/diff", {"after_seq": 0})
            assert [one["data"] for one in read["records"]] == list(range(APPENDS))


@pytest.mark.parametrize("is_shared", [False, True])
def test_publishes_over_a_websocket_keep_their_order(server: WholeServer, is_shared: bool) -> None:
    config = {"config": {"placement": "shared"}} if is_shared else {}
    with WsClient(server.port) as client:
        for _ in range(ROUNDS):
            name = new_name(0)
            for number in range(APPENDS):
                client.say("publish", topic=name, request_id=number, records=[{"data": number}], **config)
            for _ in range(APPENDS):
                client.expect("ack")
            read = server.ask_json("POST", f"/v0/topics/{name}/diff", {"after_seq": 0})
            assert [one["data"] for one in read["records"]] == list(range(APPENDS))
            assert read["records"][0]["$seq"] == 1


def test_a_connection_of_the_broker_that_uses_a_local_topic_is_placed_anew(server: WholeServer) -> None:
    name, answers = new_name(0), []
    with RawClient(server.port) as client:
        begin_at(client, "broker")
        until = time.monotonic() + 20
        while not answers or not answers[-1].closes:
            assert time.monotonic() < until
            answers.append(client.ask("POST", f"/v0/topics/{name}", body_of(0, is_produced=False)))
            assert answers[-1].status in (200, 201)
    assert len(answers) >= 64
    assert answers[-1].json["first_seq"] == len(answers)
