"""Routes over all shards copy each record once and in order while workers are killed."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP

SHARDS = 3
WRITERS = 2
SECONDS = 60.0 if DEEP else 6.0
TAGS = (None, "x", "xy")

pytestmark = pytest.mark.slow


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    try:
        with RawClient(port) as client:
            answer = client.ask(method, path, body)
            return answer.status, answer.json
    except OSError:
        return 0, None  # The worker of this connection was killed.


class Writer(threading.Thread):
    def __init__(self, port: int, number: int, seed: str, topic: str, ending: threading.Event) -> None:
        super().__init__()
        self._port, self._number, self._topic, self._ending = port, number, topic, ending
        self._rng = Random(f"{seed} {number}")
        self.acked: set[str] = set()

    def run(self) -> None:
        count = 0
        while not self._ending.is_set():
            data = [f"{self._number}.{count + one}" for one in range(self._rng.choice((1, 3, 40)))]
            count += len(data)
            records = [{"data": one, "tag": self._rng.choice(TAGS), "meta": {"n": one}} for one in data]
            if ask(self._port, "POST", f"/v0/topics/{self._topic}", {"records": records})[0] in (200, 201):
                self.acked.update(data)
            self._ending.wait(0.002)


def records_of(port: int, topic: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    cursor, is_at_end = 0, False
    while not is_at_end:
        body = {"from_seq": cursor, "limit": 1000, "include_tags": True}
        status, answer = ask(port, "POST", f"/v0/topics/{topic}/diff", body)
        assert status == 200, answer
        assert answer.get("tombstone") is None, answer
        records += answer["records"]
        cursor, is_at_end = answer["next_from_seq"], answer["caught_up"]
    return records


def contents(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["data"], one.get("$tag"), one["meta"]["n"]) for one in records]


def test_records_are_copied_exactly_once_while_workers_are_killed(tmp_path: Path) -> None:
    seed = str(seed_of_this_run())
    rng = Random(seed)
    with WholeServer(tmp_path, shards=SHARDS) as server:
        port = server.port
        source, near, next_, far, back = (
            server.topic_of(shard, name)
            for shard, name in ((0, "source"), (0, "near"), (1, "next"), (2, "far"), (0, "back"))
        )
        assert ask(port, "PUT", f"/v0/topics/{far}", {"durability": "fsync"})[0] == 201
        for name, begin, end, options in (
            ("near", source, near, {}),
            ("next", source, next_, {"guarantee": "exactly_once"}),
            ("far", next_, far, {"filter": ["tag", "Glob", "x*"]}),
            ("back", far, back, {}),
        ):
            body = {"source": begin, "dest": end, **options}
            assert ask(port, "PUT", f"/v0/routers/{name}", body)[0] == 201
        ending = threading.Event()
        writers = [Writer(port, number, seed, source, ending) for number in range(WRITERS)]
        for one in writers:
            one.start()
        server.kill_workers(rng, SECONDS, (0.1, 0.8))
        ending.set()
        for one in writers:
            one.join()
        written = contents(records_of(port, source))
        kept = [one for one in written if one[1] is not None]
        expected = {near: written, next_: written, far: kept, back: kept}

        def is_copied() -> bool:
            return all(
                ask(port, "GET", f"/v0/topics/{topic}")[1]["head_seq"] >= len(records)
                for topic, records in expected.items()
            )

        server.wait_for(is_copied, f"all copies, seed {seed}")
        assert len(written) == len({one[0] for one in written})
        assert {one[0] for one in written} >= set().union(*(one.acked for one in writers))
        for topic, records in expected.items():
            assert contents(records_of(port, topic)) == records, (seed, topic)
        print(f"{len(written)} records, {len(kept)} of them with a tag")
