"""A node with two brokers and two shards: a killed broker, names created at once as both kinds, a drain."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

KILLS: Final = 4
NAMES: Final = 12
SILENCE_SECONDS: Final = 5.0
"""Longer than a broker that serves takes for an append on a busy machine."""
DRAIN_SECONDS: Final = 10.0
ENVIRON: Final = {"TOPICS_BATCH_MAX_DELAY_MS": "20", "TOPICS_BROKERS": "2"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WholeServer]:
    (tmp_path / "objects").mkdir()
    environ = {**ENVIRON, "TOPICS_STORE_URL": f"file://{tmp_path}/objects"}
    with WholeServer(tmp_path, shards=2, environ=environ) as running:
        running.wait_for(lambda: len(running.broker_pids()) == 2, "both brokers run")
        yield running


class Appends:
    """A client that appends one number after the other, each with a key until it is acknowledged."""

    def __init__(self, server: WholeServer, topic: str) -> None:
        self._server = server
        self._topic = topic
        self.count = 0
        self.longest = 0.0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Appends:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def has_grown(self, count: int) -> bool:
        return self.count > count

    def _run(self) -> None:
        while not self._has_ended.is_set():
            started = time.monotonic()
            while not self._append():
                time.sleep(0.01)
            self.longest = max(self.longest, time.monotonic() - started)
            self.count += 1

    def _append(self) -> bool:
        body = {"records": [{"data": self.count}]}
        try:
            answer = self._server.ask(
                "POST", f"/v0/topics/{self._topic}", body, f"Idempotency-Key: n{self.count}"
            )
        except OSError:
            return False
        assert answer.status in (200, 201, 503, 504), answer
        return answer.status < 300


def data_of(server: WholeServer, topic: str) -> list[Any]:
    page = server.ask_json("POST", f"/v0/topics/{topic}/diff", {"after_seq": 0, "limit": 10_000})
    return [record["data"] for record in page["records"]]


def test_one_broker_serves_while_the_other_is_killed(server: WholeServer) -> None:
    assert server.ask("PUT", "/v0/topics/t", {"placement": "shared"}).status == 201
    with Appends(server, "t") as appends:
        for number in range(KILLS):
            before = appends.count
            with closing(server.a_broker(number % 2)) as broker:
                broker.signal(signal.SIGKILL)
                assert broker.wait()
            server.wait_for(partial(appends.has_grown, before + 20), "appends continue")
            server.wait_for(lambda: len(server.broker_pids()) == 2, "the broker is started again")
    assert appends.longest < SILENCE_SECONDS
    assert data_of(server, "t") == list(range(appends.count))


def test_a_name_that_is_created_as_both_kinds_at_once_has_one_kind(server: WholeServer) -> None:
    bodies: list[dict[str, str]] = [{}, {"placement": "shared"}] * 3
    for number in range(NAMES):
        name = f"both{number}"
        begin = threading.Barrier(len(bodies))
        outcomes: Counter[tuple[str, int]] = Counter()

        def create(
            body: dict[str, str], name: str = name, begin: Any = begin, outcomes: Any = outcomes
        ) -> None:
            with server.connect() as client:
                begin.wait()
                answer = client.ask("PUT", f"/v0/topics/{name}", body)
                outcomes[body.get("placement", "local"), answer.status] += 1

        threads = [threading.Thread(target=create, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        config = server.ask_json("GET", f"/v0/topics/{name}")
        kind = config.get("placement", "local")
        assert sum(count for (_, status), count in outcomes.items() if status == 201) == 1, outcomes
        created = {of for of, status in outcomes if status == 201}
        assert created == {kind}, outcomes
        listed = server.ask_json("GET", f"/v0/topics?prefix={name}")["topics"]
        assert len([one for one in listed if one["topic"] == name]) == 1, listed


def test_a_shared_read_that_waits_ends_with_the_drain(server: WholeServer) -> None:
    assert server.ask("PUT", "/v0/topics/quiet", {"placement": "shared"}).status == 201
    waiting = {"after_seq": 0, "wait_ms": 30_000}
    consume = {
        "topic_partitions": [{"topic": "quiet", "partition": 0, "fetch_offset": 1}],
        "max_wait_ms": 30_000,
    }
    with server.connect() as reader, server.connect() as consumer, server.connect() as writer:
        begun = reader.start("POST", "/v0/topics/quiet/diff", waiting)
        consuming = consumer.start("POST", "/consume", consume)
        time.sleep(0.5)
        answered: list[float] = []
        appended = writer.start(
            "POST", "/v0/topics/last", {"config": {"placement": "shared"}, "records": [{"data": 1}]}
        )
        server.signal(signal.SIGTERM)
        started = time.monotonic()
        page = reader.finish(begun)
        answered.append(time.monotonic() - started)
        consumed = consumer.finish(consuming)
        answered.append(time.monotonic() - started)
        assert server.wait() == 0
        assert (page.status, page.json["records"]) == (200, [])
        assert (consumed.status, json.loads(consumed.body)["results"][0]["records"]) == (200, [])
        assert max(answered) < DRAIN_SECONDS
        written = writer.finish(appended)
        assert written.status in (201, 503), written
    server.start()
    # What was acknowledged before the end of the drain is there.
    assert data_of(server, "last") == [1] if written.status == 201 else True
