"""A key with prefixes is not for other names in a body either: what the server does later, it does for who
asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.clients.raw_client import Answer, HttpClient, RawClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer
from tests.harness.server.whole_server import WholeServer

ALL = "key-that-may-do-everything"
OWNER = "key-of-the-owner-of-orders"
KEYS = f"{ALL},{OWNER}::orders."
TOPICS = "/v0/topics"
STAMPED = (
    b'{"records":[{"data":1,"meta":{"$dead_letter_from":"%b","$dead_letter_deliveries":1,'
    b'"$dead_letter_src_seq":1}}]}'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data"), keys=KEYS) as running:
        yield running


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[HttpClient]:
    with server.connect(lane) as one:
        yield one


def ask(client: HttpClient, method: str, rest: str, body: bytes | None = None, key: str = OWNER) -> Answer:
    return client.ask(method, TOPICS + rest, body, f"authorization: Bearer {key}")


def refused(answer: Answer) -> Any:
    assert (answer.status, answer.code) == (403, "forbidden"), answer
    return answer.json["error"]


def test_a_dead_letter_topic_is_one_that_the_key_is_for(client: HttpClient, topic: str) -> None:
    queue = f"/orders.{topic}"
    error = refused(ask(client, "PUT", queue, b'{"type":"queue","dead_letter":"private"}'))
    assert error["message"] == 'dead_letter: the key\'s prefixes do not allow the name "private"'
    assert error["detail"] == {"field": "dead_letter", "topic": "private"}
    assert ask(client, "GET", queue).status == 404
    created = b'{"records":[{"data":1}],"config":{"type":"queue","dead_letter":"private"}}'
    refused(ask(client, "POST", queue, created))
    assert ask(client, "GET", queue).status == 404
    assert ask(client, "PUT", queue, b'{"type":"queue","dead_letter":"orders.dead"}').status == 201


def test_what_another_key_has_named_stays(client: HttpClient, topic: str) -> None:
    queue = f"/orders.{topic}"
    assert ask(client, "PUT", queue, b'{"type":"queue","dead_letter":"private"}', ALL).status == 201
    answer = ask(client, "PUT", queue, b'{"lease_ms":1000}')
    assert (answer.status, answer.json["config"]["dead_letter"]) == (200, "private")
    assert ask(client, "PUT", queue, b'{"dead_letter":null}').status == 200


def test_a_redrive_leaves_what_would_go_to_other_names(client: HttpClient, topic: str) -> None:
    """A stamp may be of anybody who writes to the topic."""
    dead, mine, other = f"/orders.{topic}.dead", f"orders.{topic}", f"private.{topic}"
    for queue in (mine, other):
        assert ask(client, "PUT", f"/{queue}", b'{"type":"queue"}', ALL).status == 201
        assert ask(client, "POST", dead, STAMPED % queue.encode()).status in (200, 201)
    for body in (b'{"dry_run":true}', b"{}"):
        answer = ask(client, "POST", f"{dead}/redrive", body).json
        assert (answer["queues"], answer["reasons"]) == ({mine: 1}, {"forbidden": 1})
    assert ask(client, "GET", f"/{other}", None, ALL).json["count"] == 0
    answer = ask(client, "POST", f"{dead}/redrive", b"{}", ALL).json
    assert (answer["queues"], answer["reasons"]) == ({other: 1}, {})


def test_a_publish_on_a_web_socket_is_bound_too(server: HttpServer) -> None:
    with WsClient(server.ports["fast"], f"authorization: Bearer {OWNER}") as socket:
        config = {"type": "queue", "dead_letter": "private"}
        message = socket.ask("publish", topic="orders.ws", records=[{"data": 1}], config=config)
        assert (message["op"], message["code"]) == ("error", "forbidden")


WRITER = "key-that-only-writes-orders"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    keys = f"{ALL},{WRITER}:w,{WRITER}-and-administers:w+admin"
    with WholeServer(
        tmp_path_factory.mktemp("shards"), shards=2, environ={"TOPICS_API_KEYS": keys}
    ) as running:
        yield running


@pytest.mark.parametrize("shard", [0, 1])
def test_a_config_in_an_append_needs_the_scope_admin(shards: WholeServer, shard: int) -> None:
    name = shards.topic_of(shard, "configured")
    body = b'{"records":[{"data":1}],"config":{"ttl_ms":60000}}'
    with RawClient(shards.port) as client:
        # So that the connection is at a shard of its own choice.
        client.ask("GET", "/v0/health")
        error = refused(ask(client, "POST", f"/{name}", body, WRITER))
        assert error["message"] == "config: the key lacks the scope admin"
        assert error["detail"] == {"field": "config", "scopes": ["admin"]}
        assert ask(client, "GET", f"/{name}", None, ALL).status == 404
        null = b'{"records":[{"data":1}],"config":null}'
        assert ask(client, "POST", f"/{name}", null, WRITER).status == 201
        refused(ask(client, "POST", f"/{name}", body, WRITER))
        assert ask(client, "POST", f"/{name}", body, f"{WRITER}-and-administers").status == 200


@pytest.mark.parametrize("shard", [0, 1])
def test_a_config_in_a_publish_needs_the_scope_admin(shards: WholeServer, shard: int) -> None:
    name = shards.topic_of(shard, "published")
    publish = {"topic": name, "records": [{"data": 1}], "config": {"ttl_ms": 60000}}
    for key, op in ((WRITER, "error"), (f"{WRITER}-and-administers", "ack")):
        with WsClient(shards.port, f"authorization: Bearer {key}") as socket:
            message = socket.ask("publish", **publish)
            assert message["op"] == op
            assert op == "ack" or message["message"] == "config: the key lacks the scope admin"
