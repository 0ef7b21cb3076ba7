"""Routes after process ends: they exist again, resume at their position, and end with their source."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.clients.raw_client import Answer
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

SHARDS = 3


def make(server: WholeServer, name: str, source: str, dest: str, **options: Any) -> Answer:
    return server.ask("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **options})


def append(server: WholeServer, topic: str, *data: object) -> None:
    answer = server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": one} for one in data]})
    assert answer.status in (200, 201), answer


def read(server: WholeServer, topic: str) -> list[object]:
    return [one["data"] for one in server.ask("POST", f"/v0/topics/{topic}/diff", {}).json["records"]]


def listed(server: WholeServer, query: str = "") -> list[dict[str, Any]]:
    """Return the routes; retry while a shard is missing: it may be silent for a second."""
    answers: list[Answer] = []

    def is_whole() -> bool:
        answers.append(server.ask("GET", f"/v0/routers{query}"))
        return answers[-1].status != 503

    server.wait_for(is_whole, "all shards list their routes")
    routes: list[dict[str, Any]] = answers[-1].json["routers"]
    return routes


@pytest.mark.parametrize("checkpoint", [False, True])
def test_routes_survive_a_killed_server_and_resume(tmp_path: Path, checkpoint: bool) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        source = server.topic_of(0, "source")
        dests = [server.topic_of(shard, "dest") for shard in range(SHARDS)]
        for number, dest in enumerate(dests):
            assert make(server, f"r{number}", source, dest, guarantee="exactly_once").status == 201
        append(server, source, 1, 2)
        for dest in dests:
            server.wait_for(lambda dest=dest: read(server, dest) == [1, 2], "the copies")  # type: ignore[misc]
        before = listed(server)
        assert [one["forwarded_total"] for one in before] == [2] * SHARDS
        if checkpoint:
            assert server.stop() == 0
        else:
            server.kill(Random(1))
        server.start()
        assert listed(server) == before
        append(server, source, 3)
        for dest in dests:
            server.wait_for(lambda dest=dest: read(server, dest) == [1, 2, 3], "more copies")  # type: ignore[misc]
        # A new supervisor learns the routes from the shards.
        for name, first, second in (("r1", source, dests[0]), ("s", dests[1], source)):
            assert make(server, name, first, second).status == 409
        assert make(server, "r0", source, dests[0]).status == 200
        assert server.stop() == 0


def test_the_list_keeps_the_routes_of_an_unreachable_shard_and_names_it(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        here, there = server.topic_of(0, "here"), server.topic_of(1, "there")
        assert make(server, "r", here, there).status == 201
        worker = server.a_worker(1)
        worker.signal(signal.SIGSTOP)
        # From now on it does not answer, and is killed after the timeout.
        server.wait_for(lambda: server.ask("GET", "/v0/routers").status == 503, "the shard is missing")
        missing = server.ask("GET", "/v0/routers")
        assert missing.json["error"]["detail"]["missing_shards"] == [1]
        partial = server.ask("GET", "/v0/routers?partial=true").json
        assert (partial["routers"], partial["missing_shards"]) == ([], [1])
        answer = make(server, "s", there, "elsewhere")
        assert (answer.status, answer.json["error"]["detail"]["shard"]) == (503, 1)
        for answer in (server.ask("GET", "/v0/routers/r"), server.ask("DELETE", "/v0/routers/r")):
            assert (answer.status, answer.code) == (503, "not_ready")
        assert make(server, "s", server.topic_of(0, "new"), there).status in (409, 503)
        server.wait_for_shard(1)
        assert [one["router"] for one in listed(server)] == ["r"]
        assert make(server, "s", server.topic_of(0, "new"), there).status == 409
        assert make(server, "r", here, there, filter="x").status == 200
        append(server, here, 1)
        worker.close()


def test_a_route_whose_source_was_deleted_ends_when_its_shard_is_back(
    tmp_path: Path,
) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        source, dest = server.topic_of(0, "source"), server.topic_of(1, "dest")
        assert make(server, "r", source, dest, **{"from": "earliest"}).status == 201
        append(server, source, "old")
        server.wait_for(lambda: read(server, dest) == ["old"], "the copy")
        worker = server.a_worker(1)
        worker.signal(signal.SIGSTOP)
        server.wait_for(lambda: server.ask("GET", "/v0/routers").status == 503, "the shard is missing")
        gone = server.ask("DELETE", f"/v0/topics/{source}").json
        assert (gone["deleted"], gone["routers_removed"]) == (True, ["r"])
        append(server, source, "new")
        worker.signal(signal.SIGKILL)
        server.wait_for_shard(1)
        server.wait_for(lambda: listed(server) == [], "the end of the route")
        assert read(server, dest) == ["old"]
        # It does not block another route.
        assert make(server, "r2", source, dest).status == 201
        append(server, source, "newer")
        server.wait_for(lambda: read(server, dest) == ["old", "newer"], "the copy of the other route")
        worker.close()
