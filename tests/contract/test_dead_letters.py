"""Jobs that are delivered too often, and where they go: with the queue and its dead letters on any shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.server.whole_server import WholeServer


@pytest.fixture(scope="module", params=[1, 2])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("dead"), shards=request.param) as running:
        yield running


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    return server.ask_json(method, f"/v0/topics/{path}", body)


def fail_once(server: WholeServer, queue: str) -> list[int]:
    claimed = ask(server, "POST", f"{queue}/claim", {"node": "w", "max": 10})["claimed"]
    seqs = [job["$seq"] for job in claimed]
    ask(server, "POST", f"{queue}/nack", {"node": "w", "seqs": seqs, "reason": "no luck"})
    return seqs


def queue_of(server: WholeServer, queue: str) -> Any:
    return ask(server, "GET", queue)["queue"]


@pytest.mark.parametrize("same_shard", [True, False])
def test_a_job_delivered_too_often_is_a_dead_letter_and_nothing_else(
    server: WholeServer, same_shard: bool
) -> None:
    queue = server.topic_of(0, f"queue-{same_shard}")
    dead = server.topic_of(0 if same_shard else server.shards - 1, f"dead-{same_shard}")
    ask(server, "PUT", queue, {"type": "queue", "max_deliveries": 2, "dead_letter": dead})
    meta = {f"key-{number}": number for number in range(64)}
    ask(
        server,
        "POST",
        queue,
        {"records": [{"data": "bad", "tag": "t", "node": "n", "meta": meta}, {"data": 2}]},
    )
    assert fail_once(server, queue) == fail_once(server, queue) == [1, 2]
    assert fail_once(server, queue) == []
    server.wait_for(lambda: queue_of(server, queue)["dead_lettered"] == 2, "both are moved")
    assert queue_of(server, queue) == {"ready": 0, "in_flight": 0, "dead_lettered": 2}
    records = ask(server, "POST", f"{dead}/diff", {"include_tags": True})["records"]
    assert [record["data"] for record in records] == ["bad", 2]
    assert (records[0]["$tag"], records[0]["$node"]) == ("t", "n")
    stamps = {
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": 2,
        "$dead_letter_src_seq": 1,
        "$dead_letter_reason": "no luck",
    }
    assert records[0]["meta"] == {**meta, **stamps}
    assert ask(server, "GET", queue)["count"] == 0


def test_a_full_destination_keeps_the_job_parked_until_it_has_room(server: WholeServer) -> None:
    queue, dead = server.topic_of(0, "patient"), server.topic_of(server.shards - 1, "full")
    ask(server, "PUT", dead, {"cap_records": 1, "discard": "reject"})
    ask(server, "POST", dead, {"records": [{"data": 0}]})
    ask(server, "PUT", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
    ask(server, "POST", queue, {"records": [{"data": 1}]})
    fail_once(server, queue)
    assert fail_once(server, queue) == []
    assert queue_of(server, queue) == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "parked": 1}
    ask(server, "POST", f"{dead}/delete", {"before_seq": 2})
    server.wait_for(lambda: queue_of(server, queue)["dead_lettered"] == 1, "it is moved")
    assert [one["data"] for one in ask(server, "POST", f"{dead}/diff", {})["records"]] == [1]


def test_a_queue_with_no_place_for_its_dead_keeps_them(server: WholeServer) -> None:
    queue, dead = server.topic_of(0, "placeless"), server.topic_of(0, "late")
    ask(server, "PUT", queue, {"type": "queue", "max_deliveries": 1})
    ask(server, "POST", queue, {"records": [{"data": 1}]})
    fail_once(server, queue)
    assert fail_once(server, queue) == []
    assert queue_of(server, queue)["parked"] == 1
    ask(server, "PUT", queue, {"dead_letter": dead})
    server.wait_for(lambda: queue_of(server, queue)["dead_lettered"] == 1, "it is moved")


def test_what_is_parked_is_moved_after_a_kill(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        queue, dead = server.topic_of(0, "q"), server.topic_of(1, "d")
        ask(server, "PUT", dead, {"cap_records": 1, "discard": "reject"})
        ask(server, "POST", dead, {"records": [{"data": 0}]})
        ask(server, "PUT", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
        ask(server, "POST", queue, {"records": [{"data": 1}]})
        fail_once(server, queue)
        assert fail_once(server, queue) == []
        server.kill()
        server.start()
        assert queue_of(server, queue)["parked"] == 1
        ask(server, "PUT", dead, {"cap_records": 9})
        server.wait_for(lambda: queue_of(server, queue)["dead_lettered"] == 1, "it is moved")
        assert [one["data"] for one in ask(server, "POST", f"{dead}/diff", {})["records"]] == [0, 1]
