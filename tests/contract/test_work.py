"""A stream of jobs: `GET /v0/topics/:topic/work`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer


@pytest.fixture(scope="module", params=[1, 2])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("work"), shards=request.param) as running:
        yield running


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    return server.ask_json(method, f"/v0/topics/{path}", body)


def queue(server: WholeServer, prefix: str, jobs: int, **config: object) -> str:
    name = server.topic_of(server.shards - 1, prefix)
    ask(server, "PUT", name, {"type": "queue", **config})
    if jobs:
        ask(server, "POST", name, {"records": [{"data": number} for number in range(1, jobs + 1)]})
    return name


def stream(server: WholeServer, name: str, query: str) -> EventClient:
    return EventClient(server.port, f"/v0/topics/{name}/work?{query}").begin()


def test_a_stream_keeps_so_many_jobs_and_gets_more_as_they_end(server: WholeServer) -> None:
    name = queue(server, "steady", 3)
    with stream(server, name, "node=w&max=2&lease_ms=60000") as client:
        jobs = [client.next(), client.next()]
        assert [(one.name, one.id, one.data["data"]) for one in jobs] == [("job", "1", 1), ("job", "2", 2)]
        assert jobs[0].data["topic"] == name
        assert ask(server, "GET", name)["queue"]["in_flight"] == 2
        body = {"node": "w", "seqs": [1], "lease_ids": [jobs[0].data["lease_id"]]}
        assert ask(server, "POST", f"{name}/ack", body)["acked"] == 1
        assert client.next().id == "3"
        ask(server, "POST", name, {"records": [{"data": 4}]})
        ask(server, "POST", f"{name}/ack", {"node": "w", "seqs": [2, 3]})
        assert client.next().id == "4"


def test_a_stream_that_ends_gives_its_jobs_back_at_once(server: WholeServer) -> None:
    name = queue(server, "leaving", 2)
    with stream(server, name, "node=w&max=5") as client:
        assert [client.next().id, client.next().id] == ["1", "2"]
    server.wait_for(lambda: ask(server, "GET", name)["queue"]["ready"] == 2, "both are back")
    with stream(server, name, "node=v") as client:
        assert client.next().data["deliveries"] == 2


def test_a_job_whose_lease_ran_out_comes_to_a_stream_that_waits(server: WholeServer) -> None:
    name = queue(server, "waiting", 1)
    ask(server, "POST", f"{name}/claim", {"node": "w", "lease_ms": 300})
    with stream(server, name, "node=v") as client:
        assert (client.next().id, ask(server, "GET", name)["queue"]["in_flight"]) == ("1", 1)


def test_leases_last_while_the_stream_does(server: WholeServer) -> None:
    name = queue(server, "kept", 1)
    with stream(server, name, "node=w&max=2&lease_ms=1000") as client:
        assert client.next().id == "1"
        # Due after three leases; the first job is not delivered again before.
        ask(server, "POST", name, {"records": [{"data": 2}], "delay_ms": 3000})
        assert client.next().id == "2"
        assert ask(server, "GET", name)["queue"]["in_flight"] == 2
    server.wait_for(lambda: ask(server, "GET", name)["queue"]["ready"] == 2, "both are back")


def test_a_claim_on_any_connection_waits_for_a_job(server: WholeServer) -> None:
    name = queue(server, "awaited", 0)
    elsewhere = server.topic_of(0, "elsewhere")
    with RawClient(server.port) as gone, RawClient(server.port) as client:
        for one in (gone, client):
            assert one.ask("GET", f"/v0/topics/{elsewhere}").status == 404
        body = b'{"node":"w","wait_ms":30000}'
        gone.start("POST", f"/v0/topics/{name}/claim", body)
        gone.close()
        request = client.start("POST", f"/v0/topics/{name}/claim", body)
        ask(server, "POST", name, {"records": [{"data": 1}], "delay_ms": 300})
        answer = client.finish(request)
        assert [(job["$seq"], job["deliveries"]) for job in answer.json["claimed"]] == [(1, 1)]
        assert answer.json["performance"]["server_total_ms"] >= 200


def test_a_stream_ends_with_its_queue(server: WholeServer) -> None:
    name = queue(server, "deleted", 0)
    with stream(server, name, "node=v") as client:
        ask(server, "DELETE", name)
        event = client.next()
        assert (event.name, event.data["topic"]) == ("topic-deleted", name)


@pytest.mark.parametrize(
    ("query", "accept", "status", "code"),
    [
        ("", "*/*", 400, "invalid_request"),
        ("node=w&max=0", "*/*", 400, "invalid_request"),
        ("node=w&max=x", "*/*", 400, "invalid_request"),
        ("node=w&lease_ms=-1", "*/*", 400, "invalid_request"),
        ("node=w", "application/json", 406, "not_acceptable"),
    ],
)
def test_a_stream_that_cannot_be_had_says_why(
    server: WholeServer, query: str, accept: str, status: int, code: str
) -> None:
    name = queue(server, "refusing", 0)
    with RawClient(server.port) as client:
        answer = client.ask("GET", f"/v0/topics/{name}/work?{query}", None, f"accept: {accept}")
        assert (answer.status, answer.code) == (status, code)


def test_a_log_has_no_stream_of_jobs(server: WholeServer) -> None:
    name = server.topic_of(0, "log")
    with RawClient(server.port) as client:
        assert client.ask("GET", f"/v0/topics/{name}/work?node=w").code == "topic_not_found"
        ask(server, "PUT", name, {})
        assert client.ask("GET", f"/v0/topics/{name}/work?node=w").code == "not_a_queue"


def test_a_stream_stays_open_while_its_queue_is_paused_and_resumes_after(server: WholeServer) -> None:
    name = queue(server, "paused", 2)
    with stream(server, name, "node=w") as client:
        assert client.next().id == "1"
        ask(server, "PUT", name, {"paused": True})
        assert ask(server, "POST", f"{name}/ack", {"node": "w", "seqs": [1]})["acked"] == 1
        ask(server, "POST", name, {"records": [{"data": 3}], "delay_ms": 1})
        server.wait_for(lambda: ask(server, "GET", name)["queue"]["ready"] == 2, "both wait")
        assert ask(server, "GET", name)["queue"]["in_flight"] == 0
        ask(server, "PUT", name, {"paused": False})
        # Delayed jobs that are due come before fresh jobs.
        assert client.next().id == "3"


@pytest.mark.parametrize("way", ["ack", "delete"])
def test_a_stream_gets_the_next_of_a_tag_when_the_one_in_front_is_gone(server: WholeServer, way: str) -> None:
    name = queue(server, f"order-{way}", 0, order_by="tag")
    ask(server, "POST", name, {"records": [{"data": number, "tag": "t"} for number in range(2)]})
    with stream(server, name, "node=w&max=9") as client:
        assert client.next().id == "1"
        body = {"node": "w", "seqs": [1]} if way == "ack" else {"seqs": [1]}
        ask(server, "POST", f"{name}/{way}", body)
        assert client.next().id == "2"


def test_a_delayed_job_comes_to_a_stream_that_waits(server: WholeServer) -> None:
    name = queue(server, "delayed", 0)
    with stream(server, name, "node=w") as client:
        ask(server, "POST", name, {"records": [{"data": 1}], "delay_ms": 100})
        assert client.next().id == "1"


def test_jobs_that_were_parked_come_to_a_stream_when_they_are_freed(server: WholeServer) -> None:
    name = queue(server, "freed", 1, max_deliveries=1)
    with stream(server, name, "node=w") as client:
        assert client.next().id == "1"
        ask(server, "POST", f"{name}/nack", {"node": "w", "seqs": [1]})
        server.wait_for(lambda: ask(server, "GET", name)["queue"].get("parked") == 1, "it is parked")
        ask(server, "PUT", name, {"max_deliveries": 0})
        event = client.next()
        assert (event.id, event.data["deliveries"]) == ("1", 2)


def test_a_token_in_the_query_opens_a_stream(tmp_path: Path) -> None:
    keys = "a-key-that-works:rw,a-key-that-only-reads:r"
    with WholeServer(tmp_path, environ={"TOPICS_API_KEYS": keys + ",a-key-for-everything"}) as running:
        for shard in range(running.shards):
            name = running.topic_of(shard, "mails")
            with RawClient(running.port) as client:
                admin = "authorization: Bearer a-key-for-everything"
                assert client.ask("PUT", f"/v0/topics/{name}", b'{"type":"queue"}', admin).status == 201
                client.ask("POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}', admin)
                path = f"/v0/topics/{name}/work?node=w"
                refused = client.ask("GET", f"{path}&token=a-key-that-only-reads")
                assert (refused.status, refused.json["error"]["detail"]) == (403, {"scopes": ["write"]})
                assert client.ask("GET", path).status == 401
                assert client.ask("GET", f"{path}&token=no-key-at-all").status == 401
            with EventClient(running.port, f"{path}&token=a-key-that-works").begin() as events:
                assert events.next().id == "1"
