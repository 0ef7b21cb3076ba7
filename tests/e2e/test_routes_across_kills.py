"""Several clients create, change and delete routes and topics while workers are killed.

Each client has its own routes and sources, so it knows which routes must exist; destinations are shared, so
that clients conflict.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP

SHARDS = 3
CLIENTS = 6
SECONDS = 60.0 if DEEP else 8.0
DESTS = [f"dest{number}" for number in range(6)]
# These answers prove that nothing was done.
NOT_DONE = {404, 409, 503}

pytestmark = pytest.mark.slow


class RouteClient(threading.Thread):
    def __init__(self, port: int, number: int, seed: str, ending: threading.Event) -> None:
        super().__init__()
        self._port = port
        self._rng = Random(f"{seed} {number}")
        self._ending = ending
        self.sources = [f"source{number}.{one}" for one in range(3)]
        self.names = [f"r{number}.{one}" for one in range(4)]
        self.ends: dict[str, tuple[str, str] | None] = dict.fromkeys(self.names)
        """The ends of each route that must exist; None for a route that must not exist."""
        self.statuses: Counter[int] = Counter()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._step()
        except Exception as error:
            self.error = error

    def _step(self) -> None:
        rng = self._rng
        kind = rng.choice(["put", "put", "put", "delete", "delete topic", "append"])
        name, source, dest = rng.choice(self.names), rng.choice(self.sources), rng.choice(DESTS)
        if kind == "put":
            if rng.random() < 0.3:
                dest = rng.choice(self.sources)
            self._put(name, source, dest)
        elif kind == "delete":
            status, answer = self._ask("DELETE", f"/v0/routers/{name}")
            # A route whose source was deleted may exist briefly, while its shard is unreachable.
            if status == 200 and self.ends.get(name) is not None:
                assert answer["deleted"] is True, name
            self._note(name, status, None)
        elif kind == "append":
            self._ask("POST", f"/v0/topics/{source}", {"records": [{"data": 1}]})
        else:
            status, _ = self._ask("DELETE", f"/v0/topics/{source}")
            for one, ends in list(self.ends.items()):
                if ends is not None and source in ends and status not in NOT_DONE:
                    self._note(one, status, None)

    def _put(self, name: str, source: str, dest: str) -> None:
        status, _ = self._ask("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest})
        if status in (200, 201):
            assert self.ends.get(name) in (None, (source, dest)), name
        self._note(name, status, (source, dest))

    def _note(self, name: str, status: int, ends: tuple[str, str] | None) -> None:
        if status in (200, 201):
            self.ends[name] = ends
        elif status not in NOT_DONE and status != 400:
            self.ends.pop(name, None)

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        try:
            with RawClient(self._port) as client:
                answer = client.ask(method, path, body)
        except OSError:
            # The worker of this connection was killed.
            self.statuses[0] += 1
            return 0, None
        self.statuses[answer.status] += 1
        assert answer.status in (200, 201, 400, 404, 409, 503, 504), answer
        return answer.status, answer.json


def test_answered_route_changes_hold_and_never_conflict(tmp_path: Path) -> None:
    seed = str(seed_of_this_run())
    rng = Random(seed)
    with WholeServer(tmp_path, shards=SHARDS) as server:
        ending = threading.Event()
        clients = [RouteClient(server.port, number, seed, ending) for number in range(CLIENTS)]
        for one in clients:
            one.start()
        server.kill_workers(rng, SECONDS, (0.3, 1.0))
        ending.set()
        for one in clients:
            one.join()
        print(sum((one.statuses for one in clients), Counter()))
        errors = [one.error for one in clients if one.error is not None]
        assert not errors, (seed, errors)
        for _ in range(2):
            server.wait_for(lambda: is_whole(server), f"every route has its topics, seed {seed}")
            check(server, clients, seed)
            server.stop()
            server.start()


def routes_of(server: WholeServer) -> dict[str, tuple[str, str]]:
    routes = server.ask_json("GET", "/v0/routers?page_size=1000")["routers"]
    return {one["router"]: (one["source"], one["dest"]) for one in routes}


def is_whole(server: WholeServer) -> bool:
    """Return whether both ends of each route exist."""
    topics = server.ask_json("GET", "/v0/topics?page_size=1000")["topics"]
    names = {one["topic"] for one in topics}
    return all(names.issuperset(ends) for ends in routes_of(server).values())


def check(server: WholeServer, clients: list[RouteClient], seed: str) -> None:
    listed = routes_of(server)
    for one in clients:
        for name, ends in one.ends.items():
            assert listed.get(name) == ends, (seed, name)
    into = Counter(dest for _, dest in listed.values())
    assert not into or max(into.values()) == 1, (seed, listed)
    up = {dest: source for source, dest in listed.values()}
    for topic in up:
        seen = {topic}
        while (topic := up.get(topic, "")) and topic not in seen:
            seen.add(topic)
        assert not topic, f"seed {seed}: a cycle by {topic}"
