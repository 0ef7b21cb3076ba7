"""`POST /v0/topics/:topic/claim` with `wait_ms`: answered with the first job, or at the end of the wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import HttpServer
from tests.harness.server.processes import wait_until


def claim(api: Api, **body: Any) -> Any:
    answer = api.call("POST", "/claim", {"node": "w", **body})
    assert answer.status == 200, answer
    return answer.json


def wait_for_waiting_claims(server: HttpServer, topic: str, count: int) -> None:
    """Wait until so many claims wait in the line of the topic."""

    def is_waiting() -> bool:
        state = server.shard.state
        line = state.claim_lines.get(state.topics[topic])
        return (0 if line is None else line.count) == count

    wait_until(lambda: server.run(is_waiting))


def test_a_claim_with_jobs_is_answered_at_once(api: Api) -> None:
    api.append(1, 2, config={"type": "queue"})
    answer = claim(api, max=5, wait_ms=30_000)
    assert [job["$seq"] for job in answer["claimed"]] == [1, 2]
    assert answer["performance"]["server_total_ms"] < 10_000


def test_a_wait_without_jobs_ends_with_its_time(api: Api) -> None:
    api.put(type="queue")
    answer = claim(api, wait_ms="40ms")
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)
    assert answer["performance"]["server_total_ms"] >= 35


def test_the_bound_of_a_wait_is_named(api: Api) -> None:
    api.append(1, config={"type": "queue"})
    assert claim(api, wait_ms="1m")["clamped"] == {"wait_ms": 30_000}


@pytest.mark.parametrize("wait_ms", [-1, "1", 1.5, None])
def test_a_wait_that_is_no_duration_is_refused(api: Api, wait_ms: object) -> None:
    api.put(type="queue")
    body = {"node": "w", "wait_ms": wait_ms}
    assert api.refused(400, "invalid_request", "POST", "/claim", body).message.startswith("wait_ms: ")


def test_a_waiting_claim_gets_a_job_as_soon_as_it_is_written(server: HttpServer, lane: str, api: Api) -> None:
    api.put(type="queue")
    with server.connect(lane) as first, server.connect(lane) as second:
        body = b'{"node":"%d","wait_ms":30000}'
        requests = []
        for number, client in enumerate((first, second), 1):
            requests.append(client.start("POST", api.path + "/claim", body % number))
            wait_for_waiting_claims(server, api.topic, number)
        api.append("x")
        (job,) = first.finish(requests[0]).json["claimed"]
        assert (job["$seq"], job["data"], job["deliveries"]) == (1, "x", 1)
        assert api.call("POST", "/nack", {"node": "1", "seqs": [1]}).status == 200
        (job,) = second.finish(requests[1]).json["claimed"]
        assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_waiting_claim_hears_of_a_pause_and_of_the_end_of_its_topic(
    server: HttpServer, lane: str, api: Api
) -> None:
    api.put(type="queue")
    with server.connect(lane) as client:
        for change, expected in (("PUT", 200), ("DELETE", 404)):
            request = client.start("POST", api.path + "/claim", b'{"node":"w","wait_ms":30000}')
            wait_for_waiting_claims(server, api.topic, 1)
            api.call(change, "", {"paused": True} if change == "PUT" else None)
            assert client.finish(request).status == expected


def test_a_client_that_hangs_up_gets_no_job(server: HttpServer, lane: str, api: Api) -> None:
    api.put(type="queue")
    with server.connect(lane) as client:
        client.start("POST", api.path + "/claim", b'{"node":"gone","wait_ms":30000}')
        wait_for_waiting_claims(server, api.topic, 1)
    wait_for_waiting_claims(server, api.topic, 0)
    api.append(1)
    assert claim(api)["claimed"][0]["deliveries"] == 1
