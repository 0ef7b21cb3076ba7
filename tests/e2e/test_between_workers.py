"""Requests that cross workers of a whole server: placement, writes in doubt, caps, long polls."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

SHARDS = 2
TIMEOUT_SECONDS = 30.0


def _names(shard: int, prefix: str) -> Iterator[str]:
    return (name for n in count() if shard_of(topic_id(name := f"{prefix}{n}"), SHARDS) == shard)


HOME, AWAY = next(_names(0, "t")), next(_names(1, "t"))
ONE = b'{"records":[{"data":1}]}'


def _metrics(port: int, key: str = "") -> dict[str, Any]:
    fields = ["accept: application/json", *([f"authorization: Bearer {key}"] if key else [])]
    with RawClient(port) as client:
        return dict(client.ask_json("GET", "/v0/metrics", None, *fields))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("workers")) as running:
        yield running


# -- connections -------------------------------------------------------------------------------------------


def _closed(port: int) -> int:
    """Return the number of connections that were closed to be placed anew."""
    return _total(_metrics(port), "topics_connections_moved_total")


def _remote_requests(port: int) -> int:
    return _total(_metrics(port), "topics_requests_forwarded_total")


def _total(metrics: dict[str, Any], name: str) -> int:
    samples = metrics[name]
    return sum(one["value"] for one in samples) if isinstance(samples, list) else int(samples)


def test_a_misplaced_connection_closes_and_the_next_one_is_at_the_right_worker(server: WholeServer) -> None:
    """Send with the standard library's client, which connects again after `Connection: close`."""
    closed = _closed(server.port)
    heads, closes = [], 0
    fields = {"content-type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_SECONDS)) as client:

        def append() -> None:
            nonlocal closes
            client.request("POST", f"/v0/topics/{AWAY}", ONE, fields)
            answer = client.getresponse()
            assert answer.status in (200, 201)
            closes += answer.will_close
            heads.append(json.loads(answer.read())["first_seq"])

        client.request("PUT", f"/v0/topics/{HOME}", b"{}", fields)
        client.getresponse().read()
        until = time.monotonic() + TIMEOUT_SECONDS
        while not closes:
            assert time.monotonic() < until
            append()
        time.sleep(0.6)
        before = _remote_requests(server.port)
        for _ in range(200):
            append()
        server.wait_for(lambda: _closed(server.port) == closed + 1, "the connection closes")
        assert _remote_requests(server.port) - before < 10
    assert closes == 1
    assert heads == list(range(heads[0], heads[0] + len(heads)))


def test_a_connection_that_uses_all_shards_stays(server: WholeServer) -> None:
    closed = _closed(server.port)
    with RawClient(server.port) as client:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for topic in (HOME, AWAY):
                assert client.ask("POST", f"/v0/topics/{topic}", ONE).status in (200, 201)
    time.sleep(0.6)
    assert _closed(server.port) == closed


def test_a_connection_that_pipelines_stays_and_loses_nothing(server: WholeServer) -> None:
    closed = _closed(server.port)
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * 400)
    one = request_bytes("POST", f"/v0/topics/{AWAY}", body)
    with RawClient(server.port) as client:
        assert client.ask("GET", f"/v0/topics/{HOME}").status in (200, 404)
        seqs: list[int] = []
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            client.send(one * 100)
            seqs += [client.read_answer().json["first_seq"] for _ in range(100)]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    time.sleep(0.6)
    assert _closed(server.port) == closed


def test_a_large_body_for_another_shard_is_in_memory_once_per_process(server: WholeServer) -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * (1_000_000))] * 48)
    with RawClient(server.port) as client:
        assert client.ask("GET", f"/v0/topics/{HOME}").status in (200, 404)
        before = [(child, child.reset_peak_bytes()) for child in server.children()]
        assert client.ask("POST", f"/v0/topics/{AWAY}", body).status in (200, 201)
    for child, resident in before:
        assert child.peak_bytes() - resident < 1.5 * len(body)
        child.close()


# -- in doubt ----------------------------------------------------------------------------------------------


def _write(server: WholeServer, keyed: bool, number: int, stop: threading.Event, answers: list[Any]) -> None:
    with RawClient(server.port) as client:
        client.socket.settimeout(60)
        assert client.ask("GET", f"/v0/topics/{HOME}").status in (200, 404)
        for n in count():
            if stop.is_set():
                return
            # Occasional requests for the other shard keep the connection where it is.
            if n % 4 == 0:
                client.ask("GET", f"/v0/topics/{HOME}")
            data = f"{number}-{n}"
            fields = [f"idempotency-key: {data}"] if keyed else []
            body = b'{"records":[{"data":"%b"}]}' % data.encode()
            answer = client.ask("POST", f"/v0/topics/{AWAY}-kill", body, *fields)
            answers.append((data, answer.status, answer.json))
            if answer.status >= 300:
                assert answer.fields["retry-after"] == "1"
                time.sleep(0.05)


def test_keyed_writes_over_a_broken_link_are_answered_when_their_shard_is_back(tmp_path: Path) -> None:
    topic = f"{AWAY}-kill"
    keyed: list[Any] = []
    plain: list[Any] = []
    if shard_of(topic_id(topic), SHARDS) != 1:
        pytest.fail("the topic has to be elsewhere")
    with WholeServer(tmp_path) as server:
        with RawClient(server.port) as client:
            assert client.ask("PUT", f"/v0/topics/{topic}", b'{"durability":"fsync"}').status == 201
        stop = threading.Event()
        threads = [
            threading.Thread(target=_write, args=(server, n % 2 == 0, n, stop, plain if n % 2 else keyed))
            for n in range(6)
        ]
        for one in threads:
            one.start()
        time.sleep(0.7)
        server.kill_worker(1)
        acked = len(keyed)
        server.wait_for(lambda: len(keyed) > acked + 50, "answers to keyed writes")
        stop.set()
        for one in threads:
            one.join()
        records: list[tuple[str, int]] = []
        with RawClient(server.port) as client:
            at = 0
            while True:
                page = client.ask_json("POST", f"/v0/topics/{topic}/diff", {"from_seq": at, "limit": 1000})
                records += [(record["data"], record["$seq"]) for record in page["records"]]
                at = page["next_from_seq"]
                if page["caught_up"]:
                    break
    assert {status for _, status, _ in keyed} <= {200, 503}
    assert any(answer["deduped"] for _, status, answer in keyed if status == 200) or keyed
    assert {status for _, status, _ in plain} <= {200, 503, 504}
    assert max(Counter(data for data, _ in records).values()) == 1
    data_by_seq = dict(records)
    for data, status, answer in keyed + plain:
        if status == 200:
            assert data_by_seq[data] == answer["first_seq"]


# -- caps over all shards ----------------------------------------------------------------------------------


def test_the_cap_on_topics_is_exact_across_shards(tmp_path: Path) -> None:
    bound, answers = 20, []
    with WholeServer(tmp_path, "--max-topics", str(bound)) as server:

        def create(number: int) -> None:
            names = zip(_names(number % 2, f"c{number}-"), range(10), strict=False)
            with RawClient(server.port) as client:
                for name, n in names:
                    if n % 2:
                        answer = client.ask("PUT", f"/v0/topics/{name}", b"{}")
                    else:
                        answer = client.ask("POST", f"/v0/topics/{name}", ONE)
                    answers.append((name, answer))

        threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        made = [name for name, answer in answers if answer.status == 201]
        assert len(made) == bound
        refused = next(answer for _, answer in answers if answer.status != 201)
        assert {answer.status for _, answer in answers} == {201, 429}
        assert (refused.code, refused.fields["retry-after"]) == ("throttled", "1")
        assert refused.json["error"]["detail"]["limit"] == "max_topics"
        assert refused.json["error"]["detail"]["max"] == bound
        with RawClient(server.port) as client:
            listed = client.ask("GET", "/v0/topics?page_size=1000").json["topics"]
            assert sorted(one["topic"] for one in listed) == sorted(made)
            # Existing topics accept writes, and a deleted topic makes room on any shard.
            assert client.ask("POST", f"/v0/topics/{made[0]}", ONE).status == 200
            for n, gone in enumerate(made[:6]):
                assert client.ask("DELETE", f"/v0/topics/{gone}").json["deleted"]
                assert client.ask("PUT", f"/v0/topics/{next(_names(n % 2, f'd{n}-'))}", b"{}").status == 201
                assert client.ask("PUT", f"/v0/topics/{next(_names(n % 2, f'e{n}-'))}", b"{}").status == 429
        with RawClient(server.port) as client:
            # The topics of a shard that is down still count.
            assert client.ask("GET", f"/v0/topics/{next(_names(0, 'f'))}").status == 404
            server.kill_worker(1)
            for n in range(20):
                answer = client.ask("PUT", f"/v0/topics/{next(_names(0, f'f{n}-'))}", b"{}")
                assert answer.status in (429, 503), answer
                time.sleep(0.05)


def test_concurrent_writes_to_a_new_topic_keep_their_order(tmp_path: Path) -> None:
    """Writes arrive while the supervisor is asked for room under the cap."""
    with WholeServer(tmp_path, "--max-topics", "3") as server, RawClient(server.port) as client:
        path = f"/v0/topics/{next(_names(0, 'n'))}"
        client.send(b"".join(request_bytes("POST", path, b'{"records":[{"data":%d}]}' % n) for n in range(9)))
        answers = [client.read_answer() for _ in range(9)]
        assert [answer.json["first_seq"] for answer in answers] == list(range(1, 10))
        assert [answer.status for answer in answers] == [201] + [200] * 8
        records = client.ask("POST", path + "/diff", b"{}").json["records"]
        assert [record["data"] for record in records] == list(range(9))


def test_the_cap_on_bytes_applies_across_shards(tmp_path: Path) -> None:
    bound, size = 100_000, 9_000
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * size)
    with WholeServer(tmp_path, "--max-total-bytes", str(bound)) as server, RawClient(server.port) as client:
        taken, refused = 0, None
        for n in range(40):
            answer = client.ask("POST", f"/v0/topics/{(HOME, AWAY)[n % 2]}", body)
            if answer.status == 429:
                refused = answer
                break
            taken += 1
        assert refused is not None
        assert bound <= taken * (size + 100)
        assert taken * size <= bound + SHARDS * (size + 100)
        assert refused.json["error"]["detail"]["limit"] == "max_total_bytes"
        assert "retry-after" in refused.fields
        # Reads and deletes are still served, and deletes make room.
        assert client.ask("POST", f"/v0/topics/{HOME}/diff", b"{}").status == 200
        assert client.ask("POST", f"/v0/topics/{HOME}/delete", b'{"before_seq":1000}').status == 200
        server.wait_for(lambda: client.ask("POST", f"/v0/topics/{HOME}", body).status == 200, "room", 5)


# -- waits -------------------------------------------------------------------------------------------------


def test_a_remote_long_poll_ends_when_the_server_stops(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, RawClient(server.port) as client:
        for topic in (AWAY, HOME):
            client.ask_json("POST", f"/v0/topics/{topic}", ONE)
        with RawClient(server.port) as other:
            # The first request places the connection.
            assert other.ask("GET", f"/v0/topics/{HOME}").status == 200
            other.start("POST", f"/v0/topics/{AWAY}/diff", {"from_seq": 1, "wait_ms": 30000})
            time.sleep(0.3)
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            answer = other.read_answer()
            assert (answer.status, answer.json["records"], answer.closes) == (200, [], True)
            assert time.monotonic() - began < 5
        assert server.wait() == 0
