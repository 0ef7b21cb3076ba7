"""A topic that moves between shards while processes are killed: one owner, nothing lost, nothing twice."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path
from random import Random

import pytest

from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import LastingClient
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer, name_on
from tests.harness.sweeps.crash_sweep import DEEP

pytestmark = pytest.mark.slow

SHARDS = 3
ROUNDS = 40 if DEEP else 10
TOPIC = name_on(0, SHARDS, "moved")


class Writer(LiveThreads):
    """Appends values, each with a key, until it is acknowledged."""

    def __init__(self, port: int, first: int, topic: str = TOPIC) -> None:
        super().__init__()
        self._port = port
        self._topic = topic
        self.next = first
        self._threads.append(threading.Thread(target=self._run))

    def _run(self) -> None:
        client = LastingClient(self._port)
        while not self._ending.is_set():
            body = {"records": [{"data": self.next}], "idempotency_key": f"k{self.next}"}
            answer = client.ask("POST", f"/v0/topics/{self._topic}", body)
            if answer is not None and answer.status == 200:
                self.next += 1
            else:
                assert answer is None or answer.status in (201, 500, 503, 504, 429), answer
                time.sleep(0.01)
        client.close()


def _move(server: WholeServer, shard: int) -> None:
    """Ask for a move, and do not care whether it is made."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        fields = {"content-type": "application/json"}
        connection.request("POST", f"/v0/topics/{TOPIC}/move", json.dumps({"shard": shard}), fields)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()


def _check(server: WholeServer, count: int) -> None:
    state = server.ask_json("GET", f"/v0/topics/{TOPIC}")
    values: list[int] = []
    seq = 0
    while seq < state["head_seq"]:
        page = server.ask_json("POST", f"/v0/topics/{TOPIC}/diff", {"after_seq": seq, "limit": 1000})
        values += [record["data"] for record in page["records"]]
        seq = page["next_from_seq"]
    assert values[:count] == list(range(count))
    assert values[count:] in ([], [count])


@pytest.mark.parametrize("seed", range(2))
def test_a_topic_has_one_owner_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    rng = Random(f"moves {seed}")
    with WholeServer(tmp_path, shards=SHARDS) as server:
        server.ask_json("PUT", f"/v0/topics/{TOPIC}", {"durability": "fsync", "cap_records": 0})
        count = 0
        for _ in range(ROUNDS):
            with Writer(server.port, count) as writer:
                mover = threading.Thread(target=_move, args=(server, rng.randrange(SHARDS)))
                mover.start()
                time.sleep(rng.uniform(0.0, 0.4))
                is_all = rng.random() < 0.4
                if is_all:
                    server.kill(rng)
                else:
                    server.kill_worker(rng.randrange(SHARDS))
                mover.join(60)
                assert not mover.is_alive()
            count = writer.next
            if is_all:
                server.start()
            for shard in range(SHARDS):
                server.wait_for_shard(shard)
            _check(server, count)
        assert count > ROUNDS
        server.stop()
        data = tmp_path / "data"
        holders = [
            shard
            for shard in range(SHARDS)
            if run_here("inspect", data, "--shard", shard, "--topic", TOPIC).code == 0
        ]
        assert len(holders) == 1
        assert run_here("doctor", data).code == 0
