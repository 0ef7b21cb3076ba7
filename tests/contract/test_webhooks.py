"""Webhooks: PUT, GET, list and DELETE of routes to a URL, through every lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import Answer, HttpClient, RawClient
from tests.harness.server.http_server import CODED, H2
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


class Webhooks:
    """A client, whose topics have names that no other test uses."""

    def __init__(self, client: HttpClient, name: str, lane: str) -> None:
        self.client = client
        self._lane = lane
        self.name = name

    def topic(self, short: str) -> str:
        return f"{self.name}.{short}"

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        is_chunked = self._lane == CODED and body is not None
        return self.client.finish(self.client.start(method, path, body, is_chunked=is_chunked))

    def path(self, route: str) -> str:
        return f"/v0/routers/{quote(self.topic(route))}"

    def append(self, topic: str, data: object) -> None:
        answer = self.ask("POST", f"/v0/topics/{self.topic(topic)}", {"records": [{"data": data}]})
        assert answer.status in (200, 201), answer

    def is_there(self, topic: str) -> bool:
        return self.ask("GET", f"/v0/topics/{self.topic(topic)}").status == 200

    def listed(self) -> list[str]:
        return [one["router"] for one in self.ask("GET", f"/v0/routers?prefix={self.name}").json["routers"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("data"), shards=2) as running:
        yield running


@pytest.fixture
def webhooks(server: WholeServer, lane: str, topic: str) -> Iterator[Webhooks]:
    with H2Client(server.port) if lane == H2 else RawClient(server.port) as client:
        yield Webhooks(client, topic, lane)


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WEBHOOK_DEFAULTS = {
    "filter": None,
    "from": "head",
    "format": "json",
    "batch": 100,
    "timeout_ms": 10_000,
    "max_attempts": None,
    "dead_letter": None,
}


def put_webhook(webhooks: Webhooks, route: str, **options: Any) -> Answer:
    # It is never connected to: the address is not public.
    body = {"source": webhooks.topic("a"), "dest": "http://127.0.0.1:9/in", "secret": SECRET, **options}
    return webhooks.ask("PUT", webhooks.path(route), {name: one for name, one in body.items() if one != ""})


def test_a_webhook_is_listed_with_its_state_and_without_its_secret(webhooks: Webhooks) -> None:
    made = put_webhook(webhooks, "hook")
    assert made.status == 201, made
    ends = {"source": webhooks.topic("a"), "dest": "http://127.0.0.1:9/in"}
    fields = {name: made.json[name] for name in made.json if name not in ("performance", "created")}
    assert fields == {"router": webhooks.topic("hook"), **ends, **WEBHOOK_DEFAULTS}
    webhooks.append("a", 1)
    state = webhooks.ask("GET", webhooks.path("hook")).json
    state.pop("performance")
    (entry,) = webhooks.ask("GET", f"/v0/routers?prefix={webhooks.name}&dest={quote(ends['dest'])}").json[
        "routers"
    ]
    for one in (state, entry):
        delivery = one.pop("delivery")
        assert list(delivery) == ["lag", "attempts", "last_status", "last_error", "open_until"]
        assert delivery["last_status"] is None
        assert one == {**fields, "forwarded_total": 0}
    options = {"format": "ndjson", "batch": 5, "timeout_ms": "2s", "dead_letter": webhooks.topic("dead")}
    changed = put_webhook(webhooks, "hook", secret="", **options)
    assert changed.status == 200, changed
    assert (changed.json["timeout_ms"], changed.json["max_attempts"]) == (2000, 10)
    assert SECRET not in str([made, state, entry, changed])
    assert webhooks.ask("DELETE", webhooks.path("hook")).json["deleted"] is True


def test_two_webhooks_may_lead_to_one_url_and_their_url_may_change(webhooks: Webhooks) -> None:
    assert [put_webhook(webhooks, name).status for name in ("one", "two")] == [201, 201]
    assert put_webhook(webhooks, "one", dest="http://127.0.0.1:9/new").status == 200
    copies = webhooks.ask(
        "PUT", webhooks.path("one"), {"source": webhooks.topic("a"), "dest": webhooks.topic("b")}
    )
    assert (copies.status, copies.json["error"]["detail"]["reason"]) == (409, "router_repoint_forbidden")
    removed = webhooks.ask("DELETE", f"/v0/topics/{webhooks.topic('a')}").json["routers_removed"]
    assert removed == [webhooks.topic("one"), webhooks.topic("two")]
    assert webhooks.listed() == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"secret": ""}, "secret"),
        ({"secret": "whsec_short"}, "secret"),
        ({"secret": "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "secret"),
        ({"dest": "ftp://example.com/"}, "dest"),
        ({"dest": "https://"}, "dest"),
        ({"dest": "https://user:word@example.com/"}, "dest"),
        ({"dest": "https://example.com:99999/"}, "dest"),
        ({"dest": "https://example.com/#a"}, "dest"),
        ({"dest": "https://example.com/ a"}, "dest"),
        ({"dest": "https://example.com/" + "a" * 2048}, "dest"),
        ({"batch": 0}, "batch"),
        ({"batch": 1001}, "batch"),
        ({"timeout_ms": 99}, "timeout_ms"),
        ({"timeout_ms": 60_001}, "timeout_ms"),
        ({"timeout_ms": "soon"}, "timeout_ms"),
        ({"format": "xml"}, "format"),
        ({"max_attempts": 3}, "max_attempts"),
        ({"max_attempts": 0, "dead_letter": "d"}, "max_attempts"),
        ({"dead_letter": "a/b"}, "dead_letter"),
        ({"preserve_tag": False}, "preserve_tag"),
        ({"guarantee": "exactly_once"}, "guarantee"),
        ({"allow_cycle": True}, "allow_cycle"),
        ({"dest": "b"}, "secret"),
    ],
)
def test_a_wrong_field_of_a_webhook_is_named_and_nothing_is_made(
    webhooks: Webhooks, options: dict[str, Any], field: str
) -> None:
    answer = put_webhook(webhooks, "hook", **options)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.json["error"]["message"].startswith(f"{field}: "), answer.json
    assert SECRET not in str(answer)
    assert webhooks.listed() == []
    assert not webhooks.is_there("a")
