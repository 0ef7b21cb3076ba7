"""The number of shards changes while clients work: nothing is lost, nothing twice, the order is kept."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import LastingClient
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP

pytestmark = pytest.mark.slow

TOPICS = [f"t{number}" for number in range(12)]
RETRIED = (429, 500, 503, 504)
END_SECONDS = 120.0


def one(data: Any) -> dict[str, Any]:
    return {"records": [{"data": data}]}


def reshard(server: WholeServer, count: int) -> dict[str, Any]:
    return server.ask_json("POST", "/v0/shards", {"count": count})  # type: ignore[no-any-return]


def wait_until_steady(server: WholeServer, count: int) -> dict[str, Any]:
    def is_steady() -> bool:
        state = server.ask_json("GET", "/v0/shards")
        return (state["state"], state["count"], state["rule"]) == ("steady", count, count)

    server.wait_for(is_steady, f"the server has {count} shards", END_SECONDS)
    return server.ask_json("GET", "/v0/shards")  # type: ignore[no-any-return]


def check_directory(folder: Path, count: int) -> None:
    """Check that a stopped server left exactly `count` shards and that all tools find them well."""
    data = folder / "data"
    assert sorted(os.listdir(data / "shards")) == [f"{shard:02d}" for shard in range(count)]
    assert set(os.listdir(data)) <= {"LAYOUT.json", "PLACEMENT.json", "LOCK", "shards"}
    layout = json.loads((data / "LAYOUT.json").read_text())
    assert (layout["shards"], "directories" in layout) == (count, False)
    placement = json.loads((data / "PLACEMENT.json").read_text())
    assert (placement["shards"], placement["exceptions"], "unmoved" in placement) == (count, {}, False)
    assert run_here("verify", data).code == 0
    assert run_here("doctor", data).code == 0


class Clients(LiveThreads):
    """One writer and one poller for each topic, and the pauses that the writers saw."""

    def __init__(self, server: WholeServer) -> None:
        super().__init__()
        self._port = server.port
        self.acknowledged = dict.fromkeys(TOPICS, 0)
        self.read: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.problems: list[object] = []
        self.longest_pause = 0.0
        for topic in TOPICS:
            self._threads.append(threading.Thread(target=self._write, args=(topic,)))
            self._threads.append(threading.Thread(target=self._poll, args=(topic,)))

    def _write(self, topic: str) -> None:
        client = LastingClient(self._port)
        number, since = self.acknowledged[topic], time.monotonic()
        while not self._ending.is_set():
            body = {**one(number), "idempotency_key": f"{topic}-{number}"}
            answer = client.ask("POST", f"/v0/topics/{topic}", body)
            if answer is not None and answer.status in (200, 201):
                number += 1
                self.acknowledged[topic] = number
                now = time.monotonic()
                self.longest_pause, since = max(self.longest_pause, now - since), now
            elif answer is not None and answer.status not in RETRIED:
                self.problems.append((topic, answer.status, answer.body))
            time.sleep(0.01)
        client.close()

    def _poll(self, topic: str) -> None:
        client = LastingClient(self._port)
        values = self.read[topic]
        while not self._ending.is_set():
            body = {"from_seq": len(values), "wait_ms": 100, "limit": 100}
            answer = client.ask("POST", f"/v0/topics/{topic}/diff", body)
            if answer is None or answer.status in (*RETRIED, 404):
                time.sleep(0.01)
                continue
            if answer.status != 200 or answer.json.get("gaps"):
                self.problems.append((topic, answer.status, answer.body))
            values += [record["data"] for record in answer.json["records"]]
        client.close()


def check_topics(server: WholeServer, clients: Clients) -> None:
    """Check each topic against the acknowledgements of its writer and the records of its poller."""
    assert clients.problems == []
    for topic in TOPICS:
        count, values, seq = clients.acknowledged[topic], [], 0
        head = server.ask_json("GET", f"/v0/topics/{topic}")["head_seq"]
        while seq < head:
            page = server.ask_json("POST", f"/v0/topics/{topic}/diff", {"from_seq": seq, "limit": 1000})
            values += [record["data"] for record in page["records"]]
            seq = page["next_from_seq"]
        assert values in (list(range(count)), list(range(count + 1))), topic
        assert clients.read[topic] == values[: len(clients.read[topic])], topic
        assert count > 5, topic


@pytest.mark.parametrize("fronts", [1, 2])
def test_clients_work_while_the_number_of_shards_changes(tmp_path: Path, fronts: int) -> None:
    with WholeServer(tmp_path, f"--fronts={fronts}", shards=2) as server:
        for topic in TOPICS:
            server.ask_json("PUT", f"/v0/topics/{topic}", {"cap_records": 0})
        server.ask_json("PUT", "/v0/topics/jobs", {"type": "queue"})
        server.ask_json("PUT", "/v0/routers/copy", {"source": "t0", "dest": "copied"})
        server.ask_json("POST", "/v0/topics/t1/move", {"shard": 0})
        with ExitStack() as stack:
            clients = stack.enter_context(Clients(server))
            jobs = 0
            for count in (5, 3, 1, 2):
                reshard(server, count)
                for _ in range(10):
                    server.ask("POST", "/v0/topics/jobs", one(jobs))
                    jobs += 1
                    created = f"new{count}-{jobs}"
                    server.wait_for(lambda name=created: is_created(server, name), "a topic is created")
                state = wait_until_steady(server, count)
                assert state["topics_left"] == 0
                assert reshard(server, count)["state"] == "steady"
                assert server.ask("GET", "/v0/ready").status == 200
        print(f"fronts {fronts}: longest pause of a writer {clients.longest_pause * 1000:.0f} ms", state)
        check_topics(server, clients)
        leased = server.ask_json(
            "POST", "/v0/topics/jobs/claim", {"node": "w", "max": 100, "lease_ms": 60_000}
        )
        assert len(leased["claimed"]) == server.ask_json("GET", "/v0/topics/jobs")["head_seq"] > 0
        source = server.ask_json("GET", "/v0/topics/t0")["head_seq"]
        server.wait_for(
            lambda: server.ask_json("GET", "/v0/topics/copied")["head_seq"] == source, "all is copied"
        )
        assert server.stop() == 0
    check_directory(tmp_path, 2)


def is_created(server: WholeServer, name: str) -> bool:
    answer = server.ask("PUT", f"/v0/topics/{name}", {})
    assert answer.status in (200, 201, 503), answer
    return answer.status != 503


def test_a_session_continues_while_its_shard_does_and_ends_with_it(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        homes = {0: server.topic_of(0, "a"), 1: server.topic_of(1, "b")}
        wids = {}
        for shard, topic in homes.items():
            server.ask_json("POST", f"/v0/topics/{topic}", one(0))
            body = {"topics": {topic: {"from_seq": 0}}}
            wids[shard] = server.ask_json("POST", "/v0/watch", body)["wid"]
        events = {shard: EventClient(server.port, f"/v0/watch/{wid}").begin() for shard, wid in wids.items()}
        reshard(server, 1)
        wait_until_steady(server, 1)
        for topic in homes.values():
            server.ask_json("POST", f"/v0/topics/{topic}", one(1))
        assert events[0].records(2) == [(homes[0], 1), (homes[0], 2)]
        assert server.ask("GET", f"/v0/watch/{wids[1]}").status == 410
        body = {"topics": {homes[1]: {"from_seq": 0}}}
        with EventClient(server.port, server.ask_json("POST", "/v0/watch", body)["stream_url"]) as client:
            assert client.begin().records(2) == [(homes[1], 1), (homes[1], 2)]
        for client in events.values():
            client.close()
        assert server.stop() == 0
    check_directory(tmp_path, 1)


def test_bad_requests_name_the_field_and_the_bound(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        for count in (0, -1, 257):
            answer = server.ask("POST", "/v0/shards", {"count": count})
            assert answer.status == 400
            assert answer.json["error"]["message"] == f"count: must be 1 to 256, got {count}"
        assert server.ask("POST", "/v0/shards", {"shards": 2}).status == 400
        assert server.ask("POST", "/v0/shards", {}).status == 400
        state = server.ask_json("GET", "/v0/shards")
        assert (state["count"], state["rule"], state["state"]) == (1, 1, "steady")
    with WholeServer(tmp_path / "m", "--memory", shards=1) as server:
        assert server.ask("POST", "/v0/shards", {"count": 2}).status == 501


@pytest.mark.parametrize("seed", range(8 if DEEP else 2))
def test_a_reshard_continues_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    rng = Random(f"reshard {seed}")
    with WholeServer(tmp_path, "--fronts=2", shards=2) as server:
        for topic in TOPICS:
            server.ask_json("PUT", f"/v0/topics/{topic}", {"cap_records": 0, "durability": "fsync"})
        clients = Clients(server)
        for count in (4, 1, 3):
            with clients:
                reshard(server, count)
                for _ in range(2):
                    time.sleep(rng.uniform(0.0, 1.0))
                    running = server.worker_pids()
                    if running:
                        server.kill_worker(rng.choice(sorted(running)))
                time.sleep(rng.uniform(0.0, 0.5))
                server.kill(rng)
            server.start()
            assert server.ask_json("GET", "/v0/shards")["target"] == count
            wait_until_steady(server, count)
            clients = continued(server, clients)
            with clients:
                time.sleep(0.3)
            check_topics(server, clients)
            clients = continued(server, clients)
        assert server.stop() == 0
    check_directory(tmp_path, 3)


@pytest.mark.parametrize("state", ["", "growing", "surveying", "moving", "retiring"])
def test_a_kill_in_any_state_forgets_no_request(tmp_path: Path, state: str) -> None:
    count = 1 if state == "retiring" else 5
    with WholeServer(tmp_path, shards=3) as server:
        for topic in TOPICS:
            server.ask_json("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
            server.ask_json("POST", f"/v0/topics/{topic}", one(topic))
        reshard(server, count)
        while state and server.ask_json("GET", "/v0/shards")["state"] not in (state, "steady"):
            pass
        server.kill()
        server.start()
        assert server.ask_json("GET", "/v0/shards")["target"] == count
        wait_until_steady(server, count)
        for topic in TOPICS:
            page = server.ask_json("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0})
            assert [record["data"] for record in page["records"]] == [topic]
        assert server.stop() == 0
    check_directory(tmp_path, count)


def continued(server: WholeServer, before: Clients) -> Clients:
    """Return clients that continue where others ended, on the present port of the server."""
    clients = Clients(server)
    for topic in TOPICS:
        clients.acknowledged[topic] = before.acknowledged[topic]
        clients.read[topic] = before.read[topic]
    clients.problems = before.problems
    return clients
