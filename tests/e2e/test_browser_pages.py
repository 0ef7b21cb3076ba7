"""The page of `docs/guides/browsers.md` on the real server, as a browser of another origin asks for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.raw_client import Answer
from tests.harness.clients.ws_client import WsClient, upgrade_request
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer

ORIGIN = "http://localhost:3000"
ALLOW = "access-control-allow-origin"


class Page:
    """What a browser does for a page: a preflight where one is needed, and no answer that is not allowed."""

    def __init__(self, server: WholeServer, origin: str) -> None:
        self._server = server
        self.origin = origin

    def fetch(self, method: str, path: str, body: object = None) -> Answer | None:
        """Return the answer that the page may read, or None."""
        fields = [f"origin: {self.origin}"]
        if method != "GET":
            lines = (*fields, f"access-control-request-method: {method}")
            before = self._server.ask(
                "OPTIONS", path, None, *lines, "access-control-request-headers: content-type"
            )
            methods = before.fields.get("access-control-allow-methods", "").split(", ")
            if before.status != 200 or not self._may_read(before) or method not in methods:
                return None
        answer = self._server.ask(method, path, body, *fields)
        return answer if self._may_read(answer) else None

    def _may_read(self, answer: Answer) -> bool:
        return answer.fields.get(ALLOW) == self.origin


@pytest.mark.slow
def test_the_page_of_the_guide_works_from_an_allowed_origin_only(tmp_path: Path) -> None:
    flags = (f"--cors-origins={ORIGIN}", "--fronts=2")
    with WholeServer(tmp_path, *flags, shards=2) as server:
        page, other = Page(server, ORIGIN), Page(server, "http://elsewhere.example")
        for shard in range(2):
            topic = server.topic_of(shard, "orders")
            server.ask_json("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
            session = page.fetch("POST", "/v0/watch", {"topics": {topic: {"after_seq": 0}}})
            assert session is not None
            with EventClient(server.port, session.json["stream_url"], f"origin: {ORIGIN}") as events:
                assert events.begin().fields[ALLOW] == ORIGIN
                assert events.records(1) == [(topic, 1)]
        # The supervisor answers these, and any worker the others.
        for path in ("/", "/v0/topics", "/v0/health", "/v0/metrics", "/v0/routers", "/v0/nothing"):
            assert page.fetch("GET", path) is not None, path
            assert other.fetch("GET", path) is None, path
        for method, path in (("DELETE", "/v0/routers/r"), ("PUT", "/v0/topics/t"), ("POST", "/v0/shards")):
            assert page.fetch(method, path, {} if method != "DELETE" else None) is not None, path
            assert other.fetch(method, path, {}) is None, path
        with WsClient(server.port, f"origin: {ORIGIN}") as socket:
            assert socket.ask("ping") == {"op": "pong"}
        with server.connect() as client:
            client.send(upgrade_request("/v0/ws", f"origin: {other.origin}"))
            assert client.read_answer().status == 403
        # The supervisor answers one of these, a worker the other.
        for path in ("/v0/backup-points", f"/v0/topics/{server.topic_of(1, 'plain')}/records"):
            for origin, is_forbidden in ((other.origin, True), (ORIGIN, False)):
                lines = (f"origin: {origin}",)
                with server.connect() as client:
                    answer = client.ask("POST", path, b"1", *lines, content_type="text/plain")
                assert (answer.status == 403) is is_forbidden, answer
        # A page reads the refusal of a shard that is down, too.
        down = server.topic_of(0, "orders")
        server.kill_worker(0)
        until = time.monotonic() + 10
        while (answer := page.fetch("GET", f"/v0/topics/{down}")) is not None and answer.status == 503:
            assert answer.code == "not_ready"
            assert time.monotonic() < until
        assert answer is not None


@pytest.mark.usefixtures("alone")
def test_every_origin_without_keys_is_refused_at_the_start() -> None:
    ran = run_here("serve", "--cors-origins", "*")
    assert ran.code == 2
    assert "TOPICS_CORS_ORIGINS is *, and TOPICS_API_KEYS is not set" in ran.err


@pytest.mark.usefixtures("alone")
def test_an_origin_with_a_path_is_refused_at_the_start() -> None:
    ran = run_here("serve", "--cors-origins", "https://a.example,https://b.example/app")
    assert ran.code == 2
    assert "entry 2: must be an origin such as https://app.example.com, without a path, or *" in ran.err
