"""Webhooks of a whole server, whose receiver fails in every way while the server is killed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
LOCAL = "--webhook-private=127.0.0.0/8"

pytestmark = pytest.mark.slow


class Receiver:
    """A server that checks each request, and accepts, fails, hangs or resets, as `rng` says."""

    def __init__(self, rng: Random | None) -> None:
        self.accepted: list[dict[str, Any]] = []
        """The bodies that were answered with 2xx, in order."""
        self.seqs: list[int] = []
        """The seqs of the records of all whole requests, whatever the answer."""
        self.errors: list[str] = []
        self._rng = rng
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.receive(self)

            def log_message(self, *about: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/in"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def receive(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        with self._lock:
            self._check(handler, body)
            way = "accept" if self._rng is None else self._rng.choice(WAYS)
            parsed = json.loads(body)
            self.seqs += [one["$seq"] for one in parsed["records"]]
            if way in ("accept", "accept and reset"):
                self.accepted.append(parsed)
        if way == "hang":
            time.sleep(0.6)
        if way in ("reset", "accept and reset"):
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        handler.send_response({"accept": 200, "busy": 429}.get(way, 500))
        if way == "busy":
            handler.send_header("retry-after", "0")
        handler.send_header("content-length", "0")
        handler.end_headers()

    def _check(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        fields = handler.headers
        signed = f"{fields['webhook-id']}.{fields['webhook-timestamp']}.".encode() + body
        digest = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        if fields["webhook-signature"] != f"v1,{digest}":
            self.errors.append("wrong signature")
        if abs(int(fields["webhook-timestamp"]) - time.time()) > 60:
            self.errors.append("wrong time")


WAYS = ("accept", "accept", "accept", "accept", "busy", "fail", "reset", "accept and reset", "hang")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(None)
    yield receiver
    receiver.close()


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    with RawClient(server.port) as client:
        answer = client.ask(method, path, body)
    return {**answer.json, "status": answer.status}


def test_each_record_is_delivered_at_least_once_and_in_order_across_kills(tmp_path: Path) -> None:
    seed = str(seed_of_this_run())
    rng = Random(seed)
    receiver = Receiver(rng)
    try:
        with WholeServer(tmp_path, LOCAL, shards=2) as server:
            body = {"source": "a", "dest": receiver.url, "secret": SECRET, "batch": 7, "timeout_ms": 300}
            assert ask(server, "PUT", "/v0/routers/r", body)["status"] == 201
            for count in range(2):
                for number in range(10):
                    records = [{"data": 10 * count + number}] * rng.randint(1, 4)
                    sent = {"records": records, "idempotency_key": f"{count} {number}"}
                    assert ask(server, "POST", "/v0/topics/a", sent)["status"] in (200, 201)
                time.sleep(rng.random())
                server.kill()
                server.start()
            head = ask(server, "POST", "/v0/topics/a/diff", {"after_seq": 0, "limit": 1})["head_seq"]
            route = ask(server, "GET", "/v0/routers/r")
            until = time.monotonic() + 90
            while time.monotonic() < until and route["delivery"]["lag"]:
                time.sleep(0.1)
                route = ask(server, "GET", "/v0/routers/r")
                if route["delivery"]["open_until"]:
                    # An open breaker waits for half a minute; a changed rule begins without failures.
                    body["timeout_ms"] = 700 - int(body["timeout_ms"])  # type: ignore[call-overload]
                    ask(server, "PUT", "/v0/routers/r", body)
            assert route["delivery"]["lag"] == 0, (seed, route)
    finally:
        receiver.close()
    assert receiver.errors == [], seed
    assert sorted(set(receiver.seqs)) == list(range(1, head + 1)), seed
    check_order(receiver.seqs, seed)
    accepted = [one["$seq"] for body in receiver.accepted for one in body["records"]]
    assert sorted(set(accepted)) == list(range(1, head + 1)), seed


def check_order(seqs: list[int], seed: str) -> None:
    """No record comes before all earlier ones came at least once."""
    highest = 0
    for seq in seqs:
        assert seq <= highest + 1, seed
        highest = max(highest, seq)


def test_a_webhook_survives_a_move_and_a_restart_and_ends_with_its_source(
    tmp_path: Path, receiver: Receiver
) -> None:
    with WholeServer(tmp_path, LOCAL, shards=2) as server:
        body = {"source": "a", "dest": receiver.url, "secret": SECRET}
        route = ask(server, "PUT", "/v0/routers/r", body)
        assert "secret" not in route
        deliver(server, receiver, 1)
        shard = ask(server, "GET", "/v0/topics/a")["shard"]
        assert ask(server, "POST", "/v0/topics/a/move", {"shard": 1 - shard})["moved"]
        deliver(server, receiver, 2)
        server.stop()
        server.start()
        deliver(server, receiver, 3)
        state = ask(server, "GET", "/v0/routers/r")
        assert (state["forwarded_total"], state["delivery"]["last_status"]) == (3, 200)
        without_secret = {"source": "a", "dest": receiver.url + "?new", "batch": 5}
        assert ask(server, "PUT", "/v0/routers/r", without_secret)["status"] == 200
        deliver(server, receiver, 4)
        assert ask(server, "DELETE", "/v0/topics/a")["routers_removed"] == ["r"]
        assert ask(server, "GET", "/v0/routers/r")["status"] == 404
        log = server.log.read_text(encoding="utf-8")
    assert receiver.errors == []
    assert SECRET not in log
    assert receiver.seqs == [1, 2, 3, 4]


def deliver(server: WholeServer, receiver: Receiver, data: int) -> None:
    assert ask(server, "POST", "/v0/topics/a", {"records": [{"data": data}]})["status"] in (200, 201)
    server.wait_for(lambda: len(receiver.accepted) == data, f"{data} is delivered")
    assert [one["data"] for one in receiver.accepted[-1]["records"]] == [data]
    server.wait_for(
        lambda: ask(server, "GET", "/v0/routers/r").get("delivery", {}).get("lag") == 0, "the position moved"
    )


def test_a_refused_batch_goes_to_the_dead_letter_topic_on_any_shard(tmp_path: Path) -> None:
    with socket.socket() as unused, WholeServer(tmp_path, LOCAL, shards=2) as server:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        for source in ("a", "b", "c"):
            dead = {"dead_letter": f"dead-{source}", "max_attempts": 1}
            body = {"source": source, "dest": url, "secret": SECRET, **dead}
            assert ask(server, "PUT", f"/v0/routers/{source}", body)["status"] == 201
            ask(server, "POST", f"/v0/topics/{source}", {"records": [{"data_base64": "AP8="}, {"data": 2}]})
        for source in ("a", "b", "c"):
            path = f"/v0/topics/dead-{source}"
            server.wait_for(
                lambda path=path: ask(server, "GET", path).get("count") == 2,  # type: ignore[misc]
                "the batch is in the dead-letter topic",
            )
            first, second = ask(server, "POST", f"{path}/diff", {"after_seq": 0})["records"]
            assert (first["data_base64"], second["data"]) == ("AP8=", 2)
            assert (first["meta"]["$webhook"]["topic"], second["meta"]["$webhook"]["seq"]) == (source, 2)
